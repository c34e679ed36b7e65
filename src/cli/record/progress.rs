//! Shows the progress of a recording on one line of a terminal, cleared at the end.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};

use super::feed::FeedReport;
use crate::clock::read_boot_nanos;
use crate::trace::table::counted;

pub(super) struct RecordProgress {
    line: Option<ProgressBar>,
    begin_nanos: u64,
    lasts: Duration,
}

impl RecordProgress {
    /// `in_the_way`: the trace itself goes to the same terminal.
    pub(super) fn new(lasts: Duration, in_the_way: bool) -> RecordProgress {
        let wanted = !in_the_way && std::io::stderr().is_terminal();
        let line = wanted.then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()));
        RecordProgress { line, begin_nanos: read_boot_nanos(), lasts }
    }

    /// Updates the line; called every second.
    pub(super) fn show(&self, lines: u64, report: &FeedReport) {
        let Some(line) = &self.line else { return };
        let passed = Duration::from_nanos(read_boot_nanos().saturating_sub(self.begin_nanos));
        let left = Duration::from_secs(self.lasts.saturating_sub(passed).as_secs());
        let left = humantime::format_duration(left);
        let lines = counted(lines, "line");
        line.set_style(indicatif::ProgressStyle::default_spinner());
        line.set_message(format!("{lines}, {} dropped, {left} left; Ctrl-C ends it", report.dropped));
        line.tick();
    }

    pub(super) fn end(&self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}
