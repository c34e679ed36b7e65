//! The log: standard error, as text or JSON lines, through a queue that no thread waits for.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::log_limit::{CallSite, Limited};
use super::log_queue::{LogQueue, write_at_once};
use super::settings::{Log, LogFormat};
use crate::clock::{Timestamp, read_boot_nanos, unix_nanos};

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
            let lines = lines.map_event_format(|format| Limited::new(format, false));
            tracing::subscriber::set_global_default(lines.finish())
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true);
            let lines = lines.map_event_format(|format| Limited::new(format, true));
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
    match format {
        LogFormat::Text => {
            let suppressed = if suppressed > 0 { format!(" suppressed={suppressed}") } else { String::new() };
            format!("{time:.6} ERROR panicked: {message} at={at:?}{suppressed}\n")
        }
        LogFormat::Json => {
            let mut line = serde_json::json!({
                "timestamp": format!("{time:.6}"), "level": "ERROR", "message": format!("panicked: {message}"), "at": at,
            });
            if suppressed > 0
                && let Some(line) = line.as_object_mut()
            {
                line.insert("suppressed".into(), suppressed.into());
            }
            format!("{line}\n")
        }
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
    let _ = writeln!(std::io::stderr(), "{message}");
}

fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none()
}

const LEFT_OUT: &str = "(its message may contain data of a caller and is left out)";

/// The time at exit for writing the last lines.
pub(super) const LAST_LINES_MAX: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::{LogFormat, panic_line};

    #[test]
    fn panic_lines_keep_the_format_of_the_log() {
        let text = panic_line(LogFormat::Text, "broken", "src/a.rs:1:2", 3);
        assert!(text.ends_with("Z ERROR panicked: broken at=\"src/a.rs:1:2\" suppressed=3\n"), "{text}");
        let json = panic_line(LogFormat::Json, "broken", "src/a.rs:1:2", 0);
        let line: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(line["message"], "panicked: broken");
        assert_eq!((&line["at"], line.get("suppressed")), (&"src/a.rs:1:2".into(), None));
    }
}
