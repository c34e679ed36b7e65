//! The log: standard error, as text or JSON lines, through a queue that no thread waits for.
//!
//! Of lines caused by traffic, each call site writes a few per 10 s. The first line after a pause has the number of suppressed
//! ones. Lines caused by operators are never suppressed.

use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::json;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use super::log_queue::{LogQueue, write_at_once};
use super::settings::{Log, LogFormat};
use crate::clock::{Timestamp, read_boot_nanos, unix_nanos};
use crate::terms::{LAYOUT, printable};

/// Starts logging and the reporting of panics. Call it once. The queue has no thread yet.
pub(super) fn start(log: Log) -> Arc<LogQueue> {
    let queue = LogQueue::new(std::io::stderr());
    // Lines that cannot be formatted are dropped: the subscriber would panic if it could not report that.
    let lines = tracing_subscriber::fmt().with_writer(Arc::clone(&queue)).log_internal_errors(false);
    let lines = lines.with_max_level(log.level).with_target(false);
    // A second call, as in tests, has no effect.
    let _ = match log.format {
        LogFormat::Text => {
            let lines = lines.with_ansi(is_terminal());
            let lines = lines.map_event_format(|lines| Limited::new(lines, LogFormat::Text));
            tracing::subscriber::set_global_default(lines.finish())
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true);
            let lines = lines.map_event_format(|lines| Limited::new(lines, LogFormat::Json));
            tracing::subscriber::set_global_default(lines.finish())
        }
    };
    report_panics(log.format, Arc::clone(&queue));
    queue
}

/// Reports each panic by its location, at once and past the queue, as the process may end with it. The hook
/// neither waits, nor takes a held lock, nor fails. It shows constant messages only: formatted ones may hold
/// values of callers.
fn report_panics(format: LogFormat, queue: Arc<LogQueue>) {
    let limit = Mutex::new(CallSite::default());
    std::panic::set_hook(Box::new(move |panic| {
        let now = Timestamp::from_nanos(read_boot_nanos());
        let Some(suppressed) = limit.try_lock().map_or(Some(0), |mut limit| limit.admit(now)) else { return };
        let message = panic.payload().downcast_ref::<&'static str>().copied().unwrap_or(LEFT_OUT);
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        if !write_at_once(std::io::stderr(), panic_line(format, message, &at, suppressed).as_bytes()) {
            queue.count_dropped();
        }
    }));
}

/// Returns the line of a panic in the subscriber's format.
fn panic_line(format: LogFormat, message: &str, at: &str, suppressed: u64) -> String {
    let time = jiff::Timestamp::from_nanosecond(unix_nanos().into()).unwrap_or_default();
    let message = format!("panicked: {message}");
    let mut line = match format {
        LogFormat::Text => format!("{time:.6} ERROR {message} at={at:?}\n"),
        LogFormat::Json => {
            let timestamp = format!("{time:.6}");
            let line = json!({"timestamp": timestamp, "level": "ERROR", "message": message, "at": at});
            format!("{line}\n")
        }
    };
    if suppressed > 0 {
        append_suppressed(&mut line, format, suppressed);
    }
    line
}

/// Appends the number of lines that were suppressed before a line.
fn append_suppressed(line: &mut String, format: LogFormat, suppressed: u64) {
    line.truncate(line.trim_end().len());
    if format == LogFormat::Json && line.ends_with('}') {
        line.pop();
        line.push_str(&format!(",\"suppressed\":{suppressed}}}\n"));
    } else {
        line.push_str(&format!(" suppressed={suppressed}\n"));
    }
}

/// Writes messages to standard error before there is a log; waits only briefly if it is blocked.
pub(super) fn before_start(messages: impl Iterator<Item = String>) {
    let queue = LogQueue::new(std::io::stderr());
    // Writes to the queue do not fail.
    messages.for_each(|message| drop(writeln!(&*queue, "{message}")));
    queue.flush(LAST_LINES_MAX);
}

/// Writes a message to standard error past the log: for commands, and before there is a log.
pub(crate) fn plainly(message: &str) {
    // There is no other place to report it.
    let _ = writeln!(std::io::stderr(), "{}", printable(message, &LAYOUT));
}

fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none()
}

const LEFT_OUT: &str = "(its message may contain data of a caller and is left out)";

/// The time at exit for writing the last lines.
pub(super) const LAST_LINES_MAX: Duration = Duration::from_millis(100);

/// A line format that suppresses some lines.
#[derive(Debug)]
struct Limited<F> {
    lines: F,
    format: LogFormat,
    sites: Mutex<HashMap<Identifier, CallSite>>,
}

/// The recent lines of one call site.
#[derive(Clone, Copy, Debug, Default)]
struct CallSite {
    since: Timestamp,
    lines: u32,
    suppressed: u64,
}

impl<F> Limited<F> {
    fn new(lines: F, format: LogFormat) -> Limited<F> {
        Limited { lines, format, sites: Mutex::default() }
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
}

impl CallSite {
    /// Returns the number of suppressed lines before this one; `None`: suppress this one as well.
    fn admit(&mut self, now: Timestamp) -> Option<u64> {
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
            Some(0) => self.lines.format_event(context, writer, event),
            Some(suppressed) => {
                let mut line = String::new();
                self.lines.format_event(context, Writer::new(&mut line), event)?;
                append_suppressed(&mut line, self.format, suppressed);
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
    use super::{CallSite, LINES_MAX, LogFormat, is_of_traffic, panic_line};
    use crate::clock::Timestamp;

    #[test]
    fn panic_lines_keep_the_format_of_the_log() {
        let text = panic_line(LogFormat::Text, "broken", "src/a.rs:1:2", 3);
        assert!(text.ends_with("Z ERROR panicked: broken at=\"src/a.rs:1:2\" suppressed=3\n"), "{text}");
        let json = panic_line(LogFormat::Json, "broken", "src/a.rs:1:2", 3);
        let line: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(line["message"], "panicked: broken");
        assert_eq!((&line["at"], &line["suppressed"]), (&"src/a.rs:1:2".into(), &3.into()));
    }

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
