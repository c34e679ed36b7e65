//! The log: standard error, as text or as JSON lines.

use std::io::Write;

use super::log_limit::Limited;
use super::settings::{Log, LogFormat};

/// Starts logging. Called once.
pub(super) fn start(log: Log) {
    let lines =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(log.level).with_target(false);
    // A second call, as a test might make it, changes nothing.
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
}

/// Tells of panics in the log, by their place. Of a message only what was written beforehand is shown: one that was
/// put together may hold what a caller said of its users.
pub(super) fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload().downcast_ref::<&'static str>().copied().unwrap_or(LEFT_OUT);
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(at, "panicked: {message}");
    }));
}

/// Says something on standard error before there is a log. Whoever closed it does not want to know.
pub(super) fn plainly(message: &str) {
    let _ = writeln!(std::io::stderr(), "{message}");
}

fn is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr()) && std::env::var_os("NO_COLOR").is_none()
}

const LEFT_OUT: &str = "(its message may hold what a caller sent and is left out)";
