//! The progress of a long replay, as one line on a terminal that is removed at the end.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressDrawTarget, ProgressStyle};

use super::table::counted;
use crate::clock::read_boot_nanos;

/// A progress bar on standard error, shown after `PATIENCE`.
pub(super) struct ProgressBar {
    begin_nanos: u64,
    /// The length of the trace, if known.
    bytes: Option<u64>,
    bar: Option<indicatif::ProgressBar>,
    wanted: bool,
    unlooked: u32,
}

impl ProgressBar {
    /// Shows a bar later if `wanted` and standard error is a terminal.
    pub(super) fn new(bytes: Option<u64>, wanted: bool) -> ProgressBar {
        let wanted = wanted && std::io::stderr().is_terminal();
        ProgressBar { begin_nanos: read_boot_nanos(), bytes, bar: None, wanted, unlooked: 0 }
    }

    /// Called for every line; looks at the clock every `LINES_PER_LOOK` lines.
    pub(super) fn moved(&mut self, bytes: u64, lines: u64) {
        if !self.wanted {
            return;
        }
        self.unlooked += 1;
        if self.unlooked < LINES_PER_LOOK {
            return;
        }
        self.unlooked = 0;
        let taken = Duration::from_nanos(read_boot_nanos().saturating_sub(self.begin_nanos));
        if self.bar.is_none() && taken > PATIENCE {
            self.bar = Some(bar(self.bytes, taken));
        }
        if let Some(bar) = &self.bar {
            bar.set_message(counted(lines, "line"));
            bar.set_position(bytes);
        }
    }

    /// Prints a message above the bar.
    pub(super) fn say(&self, message: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| show(message)),
            None => show(message),
        }
    }

    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn show(message: &str) {
    // An error has no other place to go.
    let _ = writeln!(std::io::stderr(), "{message}");
}

fn bar(bytes: Option<u64>, taken: Duration) -> indicatif::ProgressBar {
    let bar =
        indicatif::ProgressBar::with_draw_target(bytes, ProgressDrawTarget::stderr()).with_elapsed(taken);
    let template = if bytes.is_some() { WITH_LENGTH } else { WITHOUT_LENGTH };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

const WITH_LENGTH: &str = "[{bar:40}] {percent:>3} %  {msg}, {eta} left";
const WITHOUT_LENGTH: &str = "{msg}, {bytes} in {elapsed}";

/// Shorter replays show no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Lines between readings of the clock; about 1 ms.
const LINES_PER_LOOK: u32 = 512;
