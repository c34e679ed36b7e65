//! Opens a trace and plays it in its format.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::access_log::{AccessLine, CombinedLines};
use super::event::{EventConsumer, TraceEvent, TraceFailure};
use super::jsonl::Jsonl;
use super::summary::PlayedCounts;
use crate::clock::{Timestamp, read_boot_nanos};
use crate::rules::open::{self, OpenError, Opened};
use crate::terms::{LAYOUT, counted, printable};

/// What a trace is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TraceFormat {
    /// One JSON object a line; the first bad line ends it
    Jsonl,
    /// An access log of Apache or nginx; lines that cannot be read are counted and passed over
    Combined,
}

pub(crate) struct RecordedTrace {
    lines: Lines,
    /// Its length if it is a file.
    length: Option<u64>,
    /// Whether messages may quote it.
    quotable: bool,
}

impl RecordedTrace {
    /// Opens a trace; `-` is standard input. Fails unless it is a regular file, and for a link that leads out of its directory.
    pub(crate) fn open(path: &Path) -> io::Result<RecordedTrace> {
        if is_dash(path) {
            let input = BufReader::with_capacity(READ_BYTES, io::stdin().lock());
            return Ok(RecordedTrace { lines: Lines::new(input), length: None, quotable: true });
        }
        let Opened { file, bytes, quotable } = open::beneath(path).map_err(|error| {
            let help = match error {
                OpenError::NotRegular => "write `-` and pipe it in: zcat trace.gz | tidegate replay -",
                _ => error.help(),
            };
            io::Error::other(format!("{error}\nhelp: {help}"))
        })?;
        let input = BufReader::with_capacity(READ_BYTES, file);
        Ok(RecordedTrace { lines: Lines::new(input), length: Some(bytes), quotable })
    }

    /// Returns the format by its first line that is not blank.
    pub(crate) fn detect(&mut self) -> io::Result<TraceFormat> {
        self.lines.next()?;
        self.lines.is_ahead = true;
        let is_access_log = !self.lines.is_too_long && AccessLine::read(&self.lines.text).is_ok();
        Ok(if is_access_log { TraceFormat::Combined } else { TraceFormat::Jsonl })
    }

    pub(crate) fn of_bytes(trace: Vec<u8>) -> RecordedTrace {
        let length = u64::try_from(trace.len()).ok();
        RecordedTrace { lines: Lines::new(io::Cursor::new(trace)), length, quotable: true }
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
        let begin_nanos = read_boot_nanos();
        let bar = progress_bar(self.length, begin_nanos);
        let mut player = CountedPlayer { player, lines: 0, first: None, last: Timestamp::ORIGIN };
        let mut log = domain.map(|domain| CombinedLines::new(domain, strict, self.quotable));
        let mut json = Jsonl::default();
        let mut played = Ok(());
        while played.is_ok() {
            let read = self.lines.next();
            let Lines { ref text, number, is_too_long, .. } = self.lines;
            played = match (read, &mut log) {
                (Ok(false), _) => break,
                (Err(source), _) => Err(TraceFailure::Read { number, source }),
                (Ok(true), Some(log)) if is_too_long => {
                    log.pass_over(number, "longer than a line of a log can be".to_owned())
                }
                (Ok(true), Some(log)) => log.line(text, number, &mut player),
                (Ok(true), None) if is_too_long => {
                    let most = LINE_BYTES_MAX >> 10;
                    let wrong = format!("longer than {most} KiB: is this a trace, one JSON object a line?");
                    Err(TraceFailure::Line { number, wrong })
                }
                (Ok(true), None) => json.line(text, number, &mut player),
            };
            for news in player.player.take_news() {
                bar.suspend(|| show(&news));
            }
            if self.lines.number.is_multiple_of(LINES_PER_LOOK) {
                if shows_progress && bar.is_hidden() && passed_since(begin_nanos) > PATIENCE {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                }
                bar.set_message(counted(player.lines, "line"));
                bar.set_position(self.lines.bytes);
            }
        }
        // Play the lines before an invalid line too.
        if let Some(log) = &mut log {
            let ended = log.end(&mut player);
            played = played.and(ended);
        }
        bar.finish_and_clear();
        let CountedPlayer { lines, first, last, .. } = player;
        let span = first.map_or(Duration::ZERO, |first| last.since(first));
        let remarks = log.map(|log| log.remarks()).unwrap_or_default();
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

/// Makes a hidden progress bar. `length` is that of the trace, if known.
fn progress_bar(length: Option<u64>, begin_nanos: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::hidden());
    let template = if length.is_some() { WITH_LENGTH } else { WITHOUT_LENGTH };
    if let Ok(style) = ProgressStyle::with_template(template) {
        let left = move |state: &ProgressState, text: &mut dyn fmt::Write| {
            let passed = passed_since(begin_nanos);
            let left = time_left(passed, state.pos(), state.len().unwrap_or_default());
            let _ = write!(text, "{}", humantime::format_duration(left));
        };
        bar.set_style(style.progress_chars("=> ").with_key("left", left));
    }
    bar
}

fn passed_since(begin_nanos: u64) -> Duration {
    Duration::from_nanos(read_boot_nanos().saturating_sub(begin_nanos))
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
    let _ = writeln!(std::io::stderr(), "{}", printable(message, &LAYOUT));
}

const WITH_LENGTH: &str = "[{bar:40}] {percent:>3} %  {msg}, {left} left";
const WITHOUT_LENGTH: &str = "{msg}, {bytes} in {elapsed}";

/// Shorter replays show no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Lines between readings of the clock; about 1 ms.
const LINES_PER_LOOK: u64 = 512;

struct Lines {
    input: Box<dyn BufRead>,
    text: Vec<u8>,
    /// The number of the last line read, from 1.
    number: u64,
    bytes: u64,
    /// Whether the last line was longer than the bound: then it has no text.
    is_too_long: bool,
    /// Whether the last line was read to detect the format, and comes again.
    is_ahead: bool,
}

impl Lines {
    fn new(input: impl BufRead + 'static) -> Lines {
        let input = Box::new(input);
        Lines { input, text: Vec::new(), number: 0, bytes: 0, is_too_long: false, is_ahead: false }
    }

    /// Reads the next line that is not empty, with its line feed if it has one; of one above the bound no text. Returns
    /// whether there is one.
    fn next(&mut self) -> io::Result<bool> {
        while !std::mem::take(&mut self.is_ahead) {
            self.number += 1;
            self.is_too_long = !self.line()? && self.text.len() >= LINE_BYTES_MAX;
            if self.is_too_long {
                while !self.line()? && !self.text.is_empty() {}
                break;
            }
            if self.text.is_empty() || !self.text.trim_ascii().is_empty() {
                break;
            }
        }
        Ok(self.is_too_long || !self.text.is_empty())
    }

    /// Reads up to a line feed or the bound; returns whether a line feed was read.
    fn line(&mut self) -> io::Result<bool> {
        self.text.clear();
        let mut bounded = Read::by_ref(&mut self.input).take(LINE_BYTES_MAX as u64);
        self.bytes += bounded.read_until(b'\n', &mut self.text)? as u64;
        Ok(self.text.ends_with(b"\n"))
    }
}

/// The longest line. A frame has 16 KiB, at most six times as much as JSON or with a web server's escapes;
/// longer lines are no trace and must not fill the memory.
const LINE_BYTES_MAX: usize = 1 << 20;
