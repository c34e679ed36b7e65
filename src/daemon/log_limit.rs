//! The log throttle: of lines caused by traffic, each call site writes a few per 10 s. The first line after a
//! pause has the number of suppressed ones. Lines caused by operators are never suppressed.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::{Timestamp, read_boot_nanos};

/// A line format that suppresses some lines.
#[derive(Debug)]
pub(super) struct Limited<F> {
    format: F,
    is_json: bool,
    sites: Mutex<HashMap<Identifier, CallSite>>,
}

/// The recent lines of one call site.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallSite {
    since: Timestamp,
    lines: u32,
    suppressed: u64,
}

impl<F> Limited<F> {
    pub(super) fn new(format: F, is_json: bool) -> Limited<F> {
        Limited { format, is_json, sites: Mutex::default() }
    }

    fn admit(&self, metadata: &Metadata<'_>) -> Option<u64> {
        if !is_of_traffic(metadata.target()) {
            return Some(0);
        }
        // The map is bounded by the number of call sites.
        self.sites
            .lock()
            .entry(metadata.callsite())
            .or_default()
            .admit(Timestamp::from_nanos(read_boot_nanos()))
    }

    fn close(&self, line: &mut String, suppressed: u64) {
        line.truncate(line.trim_end().len());
        if self.is_json && line.ends_with('}') {
            line.pop();
            line.push_str(&format!(",\"suppressed\":{suppressed}}}\n"));
        } else {
            line.push_str(&format!(" suppressed={suppressed}\n"));
        }
    }
}

impl CallSite {
    /// Returns the number of suppressed lines before this one; `None`: suppress this one as well.
    pub(super) fn admit(&mut self, now: Timestamp) -> Option<u64> {
        if now.since(self.since) >= PERIOD {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines >= LINES_MAX {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self.admit(event.metadata()) {
            // Writes nothing, not even a newline.
            None => Ok(()),
            Some(0) => self.format.format_event(context, writer, event),
            Some(suppressed) => {
                let mut line = String::new();
                self.format.format_event(context, Writer::new(&mut line), event)?;
                self.close(&mut line, suppressed);
                writer.write_str(&line)
            }
        }
    }
}

/// Whether lines of this target are caused by clients, scrapers or servers.
fn is_of_traffic(target: &str) -> bool {
    SPOKEN_BY_TRAFFIC.iter().any(|room| {
        target.strip_prefix(room).is_some_and(|rest| matches!(rest.as_bytes().first(), None | Some(b':')))
    })
}

/// The modules that serve, Redis, which may come and go, and the service manager, which may not listen. Panics have their
/// own throttle.
const SPOKEN_BY_TRAFFIC: [&str; 6] = [
    crate::server::LOG_TARGET,
    crate::adapters::LOG_TARGET,
    crate::engine::LOG_TARGET,
    crate::fleet::LOG_TARGET,
    crate::admin::LOG_TARGET,
    super::service_manager::LOG_TARGET,
];

/// Enough to show the cause.
const LINES_MAX: u32 = 8;

/// Frequent enough to be noticed, rare enough to be read.
const PERIOD: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::{CallSite, LINES_MAX, Limited, is_of_traffic};
    use crate::clock::Timestamp;

    #[test]
    fn logs_first_lines_and_counts_the_rest() {
        let mut site = CallSite::default();
        let mut admit = |seconds: u64| site.admit(Timestamp::from_nanos(seconds * 1_000_000_000));
        for _ in 0..LINES_MAX {
            assert_eq!(admit(20), Some(0));
        }
        for second in 20..30 {
            assert_eq!(admit(second), None);
        }
        assert_eq!(admit(30), Some(10), "the first one after it says how many");
        assert_eq!(admit(30), Some(0));
    }

    #[test]
    fn appends_count_to_the_line() {
        let closed = |is_json, line: &str| {
            let mut line = line.to_owned();
            Limited::new((), is_json).close(&mut line, 3);
            line
        };
        assert_eq!(closed(false, "WARN what user=1\n"), "WARN what user=1 suppressed=3\n");
        assert_eq!(closed(true, "{\"message\":\"what\"}\n"), "{\"message\":\"what\",\"suppressed\":3}\n");
    }

    #[test]
    fn throttles_only_lines_caused_by_traffic() {
        for (target, limited) in [
            ("tidegate::server::accept", true),
            ("tidegate::server", true),
            ("tidegate::servers", false),
            ("tidegate::adapters::envoy::handler", true),
            ("tidegate::fleet::link::node", true),
            ("tidegate::daemon::service_manager", true),
            ("tidegate::daemon::rules_in_force", false),
            ("tidegate::state::keeper", false),
        ] {
            assert_eq!(is_of_traffic(target), limited, "{target}");
        }
    }
}
