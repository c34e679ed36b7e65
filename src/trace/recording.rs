//! Opens a trace and plays it in its format.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressDrawTarget, ProgressState, ProgressStyle};

use super::access_line::{AccessLine, UnreadableLine};
use super::combined::CombinedLines;
use super::event::{EventConsumer, TraceEvent, TraceFailure, TraceLineError};
use super::jsonl::Jsonl;
use super::summary::PlayedCounts;
use crate::clock::{Timestamp, read_boot_nanos};
use crate::rules::open::{self, OpenError, Opened};
use crate::terms::counted;

/// What a trace is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TraceFormat {
    /// One JSON object a line; the first bad line ends it
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

    /// Returns the format by its first line that is not blank.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn detect(&mut self) -> io::Result<TraceFormat> {
        let (mut first, mut begin) = (Vec::new(), 0);
        while first.get(begin..).is_none_or(|line| line.trim_ascii().is_empty())
            && first.len() < LINE_BYTES_MAX
        {
            begin = first.len();
            let left = (LINE_BYTES_MAX - begin) as u64;
            if Read::by_ref(&mut self.input).take(left).read_until(b'\n', &mut first)? == 0 {
                break;
            }
        }
        let line = first.get(begin..).unwrap_or_default();
        let format = match AccessLine::default().read(line) {
            Ok(()) => TraceFormat::Combined,
            Err(_) => TraceFormat::Jsonl,
        };
        let rest = std::mem::replace(&mut self.input, Box::new(io::empty()));
        self.input = Box::new(io::Cursor::new(first).chain(rest));
        Ok(format)
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
            Ok(Some((number, text))) => line(number, text, player)?,
            Ok(None) => return Ok(()),
            Err(source) => return Err(TraceFailure::Read { number: lines.number, source }),
        }
        player.take_news().iter().for_each(|news| progress.say(news));
        progress.moved(lines.bytes, player.lines);
    }
}

/// The directory of relative paths in a trace: the trace's own; for `-` the working directory.
pub(crate) fn directory(trace: &Path) -> PathBuf {
    let parent = if is_dash(trace) { None } else { trace.parent() };
    parent.unwrap_or_else(|| Path::new("")).to_owned()
}

pub(crate) fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The error of an output that would replace a file.
pub(crate) fn there_already() -> io::Error {
    let message = "it is there already, and is not written over: name another, or remove it";
    io::Error::new(io::ErrorKind::AlreadyExists, message)
}

const READ_BYTES: usize = 1 << 16;

/// A progress bar on standard error, if that is a terminal; hidden until `PATIENCE` has passed.
struct ProgressBar {
    begin_nanos: u64,
    bar: indicatif::ProgressBar,
    is_due: bool,
    unlooked: u32,
}

impl ProgressBar {
    /// Makes a bar, which stays hidden unless `wanted`. `bytes` is the length of the trace, if known.
    fn new(bytes: Option<u64>, wanted: bool) -> ProgressBar {
        let bar = indicatif::ProgressBar::with_draw_target(bytes, ProgressDrawTarget::hidden());
        let begin_nanos = read_boot_nanos();
        let template = if bytes.is_some() { WITH_LENGTH } else { WITHOUT_LENGTH };
        if let Ok(style) = ProgressStyle::with_template(template) {
            let left = move |state: &ProgressState, text: &mut dyn fmt::Write| {
                let taken = Duration::from_nanos(read_boot_nanos().saturating_sub(begin_nanos));
                let left = time_left(taken, state.pos(), state.len().unwrap_or_default());
                let _ = write!(text, "{}", humantime::format_duration(left));
            };
            bar.set_style(style.progress_chars("=> ").with_key("left", left));
        }
        ProgressBar { begin_nanos, bar, is_due: wanted, unlooked: 0 }
    }

    /// Called for every line; looks at the clock every `LINES_PER_LOOK` lines.
    fn moved(&mut self, bytes: u64, lines: u64) {
        self.unlooked += 1;
        if self.unlooked < LINES_PER_LOOK {
            return;
        }
        self.unlooked = 0;
        let taken = Duration::from_nanos(read_boot_nanos().saturating_sub(self.begin_nanos));
        if self.is_due && taken > PATIENCE {
            self.is_due = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(counted(lines, "line"));
        self.bar.set_position(bytes);
    }

    fn say(&self, message: &str) {
        self.bar.suspend(|| show(message));
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Estimates the time left, in whole seconds, by the average speed since the begin: a trace takes as long for each byte,
/// and an estimate by the last seconds follows every slow moment of the host.
fn time_left(taken: Duration, bytes: u64, all_bytes: u64) -> Duration {
    let left = all_bytes.saturating_sub(bytes) as f64 / bytes.max(1) as f64;
    Duration::from_secs(
        Duration::try_from_secs_f64(taken.as_secs_f64() * left).unwrap_or(Duration::MAX).as_secs(),
    )
}

fn show(message: &str) {
    // An error has no other place to go.
    let _ = writeln!(std::io::stderr(), "{message}");
}

const WITH_LENGTH: &str = "[{bar:40}] {percent:>3} %  {msg}, {left} left";
const WITHOUT_LENGTH: &str = "{msg}, {bytes} in {elapsed}";

/// Shorter replays show no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Lines between readings of the clock; about 1 ms.
const LINES_PER_LOOK: u32 = 512;

/// The number of a line and its text; no text: it is longer than the bound.
type NumberedLine<'l> = (u64, Option<&'l [u8]>);

struct Lines<'r> {
    input: &'r mut dyn BufRead,
    text: Vec<u8>,
    /// The number of the last line read, from 1.
    number: u64,
    bytes: u64,
}

impl<'r> Lines<'r> {
    fn new(input: &'r mut dyn BufRead) -> Lines<'r> {
        Lines { input, text: Vec::new(), number: 0, bytes: 0 }
    }

    /// Reads the next line that is not empty: its number, and its text with its line feed if it has one. A line above
    /// the bound is skipped entirely and has no text.
    fn next(&mut self) -> io::Result<Option<NumberedLine<'_>>> {
        loop {
            self.number += 1;
            let ended = self.line()?;
            if self.text.is_empty() {
                return Ok(None);
            }
            if !ended && self.text.len() >= LINE_BYTES_MAX {
                self.skip_rest()?;
                return Ok(Some((self.number, None)));
            }
            if !self.text.trim_ascii().is_empty() {
                return Ok(Some((self.number, Some(&self.text))));
            }
        }
    }

    /// Reads up to a line feed or the bound; returns whether a line feed was read.
    fn line(&mut self) -> io::Result<bool> {
        self.text.clear();
        let bound = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
        let read = (&mut *self.input).take(bound).read_until(b'\n', &mut self.text)?;
        self.bytes += u64::try_from(read).unwrap_or(u64::MAX);
        Ok(self.text.ends_with(b"\n"))
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        while !self.line()? && !self.text.is_empty() {}
        Ok(())
    }
}

/// The longest line. A frame has 16 KiB, at most six times as much as JSON or with a web server's escapes;
/// longer lines are no trace and must not fill the memory.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;
