//! Opens a trace and plays it in its format.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::access_line::UnreadableLine;
use super::combined::CombinedLines;
use super::event::{EventConsumer, TraceEvent};
use super::failure::{TraceFailure, TraceLineError};
use super::jsonl::Jsonl;
use super::lines::{Lines, NextLine};
use super::progress::ProgressBar;
use super::summary::PlayedCounts;
use crate::clock::Timestamp;
use crate::rules::open::{self, OpenError, Opened};

/// What a trace is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TraceFormat {
    /// One JSON object a line; the first bad line ends it
    #[default]
    Jsonl,
    /// An access log of Apache or nginx; lines that cannot be read are counted and passed over
    Combined,
}

pub(crate) struct RecordedTrace {
    input: Box<dyn BufRead>,
    /// Its length if it is a file.
    bytes: Option<u64>,
    /// Whether messages may quote it.
    quotable: bool,
}

impl RecordedTrace {
    /// Opens a trace; `-` is standard input.
    ///
    /// # Errors
    /// It cannot be opened, is not a regular file, or is a link that leads out of its directory.
    pub(crate) fn open(path: &Path) -> io::Result<RecordedTrace> {
        if is_dash(path) {
            let input = Box::new(BufReader::with_capacity(READ_BYTES, io::stdin().lock()));
            return Ok(RecordedTrace { input, bytes: None, quotable: true });
        }
        let Opened { file, bytes, quotable } = open::beneath(path).map_err(|error| {
            let help = match error {
                OpenError::NotRegular => "write `-` and pipe it in: zcat trace.gz | tidegate replay -",
                _ => error.help(),
            };
            io::Error::other(format!("{error}\nhelp: {help}"))
        })?;
        let input = Box::new(BufReader::with_capacity(READ_BYTES, file));
        Ok(RecordedTrace { input, bytes: Some(bytes), quotable })
    }

    pub(crate) fn of_bytes(trace: Vec<u8>) -> RecordedTrace {
        let bytes = u64::try_from(trace.len()).ok();
        RecordedTrace { input: Box::new(io::Cursor::new(trace)), bytes, quotable: true }
    }

    /// Plays the trace to its end, as an access log if a domain is given, with a progress bar if
    /// `shows_progress`. Returns the result and counts for the summary.
    pub(crate) fn play(
        mut self,
        domain: Option<&str>,
        strict: bool,
        shows_progress: bool,
        player: &mut impl EventConsumer,
    ) -> (Result<(), TraceFailure>, PlayedCounts) {
        let mut progress = ProgressBar::new(self.bytes, shows_progress);
        let mut lines = Lines::new(&mut *self.input);
        let mut player = CountedPlayer { player, lines: 0, first: None, last: Timestamp::ORIGIN };
        let (played, remarks) = match domain {
            Some(domain) => {
                let mut log = CombinedLines::new(domain, strict, self.quotable);
                access_log(&mut lines, &mut log, &mut player, &mut progress)
            }
            None => (json_lines(&mut lines, &mut player, &mut progress), Vec::new()),
        };
        progress.end();
        let CountedPlayer { lines, first, last, .. } = player;
        let span = first.map_or(Duration::ZERO, |first| last.since(first));
        let played = played.map_err(|failure| if self.quotable { failure } else { failure.withheld() });
        (played, PlayedCounts { lines, span, remarks })
    }
}

/// Counts the events that it passes on.
struct CountedPlayer<'p, P> {
    player: &'p mut P,
    lines: u64,
    first: Option<Timestamp>,
    last: Timestamp,
}

impl<P: EventConsumer> EventConsumer for CountedPlayer<'_, P> {
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure> {
        self.lines += 1;
        self.first.get_or_insert(event.at);
        self.last = event.at;
        self.player.play(event)
    }

    fn take_news(&mut self) -> Vec<String> {
        self.player.take_news()
    }
}

fn json_lines(
    lines: &mut Lines<'_>,
    player: &mut CountedPlayer<'_, impl EventConsumer>,
    progress: &mut ProgressBar,
) -> Result<(), TraceFailure> {
    let mut jsonl = Jsonl::default();
    each_line(lines, player, progress, |number, text, player| match text {
        Some(text) => jsonl.line(text, number, player),
        None => Err(TraceFailure::Line { number, wrong: TraceLineError::TooLong }),
    })
}

fn access_log(
    lines: &mut Lines<'_>,
    log: &mut CombinedLines<'_>,
    player: &mut CountedPlayer<'_, impl EventConsumer>,
    progress: &mut ProgressBar,
) -> (Result<(), TraceFailure>, Vec<String>) {
    let played = each_line(lines, player, progress, |number, text, player| match text {
        Some(text) => log.line(text, number, player),
        None => log.pass_over(number, UnreadableLine::TooLong),
    });
    // Play the lines before an invalid line too.
    let ended = log.end(player);
    (played.and(ended), log.remarks())
}

/// Calls `line` for every line with its number; `None` stands for a line above the bound.
fn each_line<P: EventConsumer>(
    lines: &mut Lines<'_>,
    player: &mut CountedPlayer<'_, P>,
    progress: &mut ProgressBar,
    mut line: impl FnMut(u64, Option<&[u8]>, &mut CountedPlayer<'_, P>) -> Result<(), TraceFailure>,
) -> Result<(), TraceFailure> {
    loop {
        match lines.next() {
            Ok(NextLine::Line { number, text }) => line(number, Some(text), player)?,
            Ok(NextLine::TooLong { number }) => line(number, None, player)?,
            Ok(NextLine::End) => return Ok(()),
            Err(source) => return Err(TraceFailure::Read { number: lines.number, source }),
        }
        player.take_news().iter().for_each(|news| progress.say(news));
        progress.moved(lines.bytes, player.lines);
    }
}

/// The directory of relative paths in a trace: the trace's own; for `-` the working directory.
pub(crate) fn directory(trace: &Path) -> PathBuf {
    let beside = if is_dash(trace) { None } else { trace.parent() };
    beside.unwrap_or_else(|| Path::new("")).to_owned()
}

pub(crate) fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

const READ_BYTES: usize = 1 << 16;
