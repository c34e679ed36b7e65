//! `tidegate record`: records the requests of a daemon as a trace for `tidegate replay`.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;

use super::admin_client::AdminArgs;
use super::completions::domains;
use super::signals::CaughtSignals;
use super::verbs::seconds;
use super::{CliResult, failed, usage};
use crate::clock::read_boot_nanos;
use crate::daemon::{log, settings_file};
use crate::terms::{counted, without_number};
use crate::trace::recording::{is_dash, there_already};

/// Records the requests of the daemon as a trace for `tidegate replay`
///
/// Values of attributes are hashed with a key that is drawn for this recording and kept nowhere: one caller stays one
/// caller. Name the attributes that rules match on with --clear. No decision waits for the recording: it drops and counts
/// lines that come faster than it writes them.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// For how long, 24h at most; Ctrl-C ends it before
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    lasts: u64,
    /// Where to: a file that is not there yet, or - for standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// Only requests of this domain [default: all]
    #[arg(long, value_name = "NAME", add = domains())]
    domain: Option<String>,
    /// Do not hash the values of this attribute; repeat it for others
    #[arg(long, value_name = "KEY", alias = "keep", value_delimiter = ',')]
    clear: Vec<String>,
    /// End when so much is written
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    max_size: u64,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Examples:
  tidegate record --for 10m --out trace.jsonl
  tidegate record --for 1h --domain api --clear method --clear path --out trace.jsonl
  tidegate record --for 24h | zstd > trace.jsonl.zst
  tidegate replay trace.jsonl --rules /etc/tidegate/rules --compare stricter-rules

Rules match no hashed value: a replay names the attributes to record with --clear. Only its owner may read the file.

Exit codes: 0 recorded, to the end or to Ctrl-C, also where lines were dropped; 1 the daemon does not answer, refuses or \
went, or the trace cannot be written, with the reason; 2 wrong usage.";

enum End {
    /// Its time is over, or the user ended it.
    Done,
    Full,
    /// The daemon closed the stream.
    Cut,
}

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    if args.lasts > SECONDS_MAX {
        return Err(usage("--for takes one second at least and 24h at most"));
    }
    let body = json!({"for_s": args.lasts, "domain": args.domain, "clear": args.clear});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on, a signal ends the recording with a whole trace.
    let signals =
        runtime.block_on(async { CaughtSignals::new(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]) })?;
    let sink = Sink::open(&args.out, out, args.max_size);
    let mut sink =
        sink.map_err(|error| failed(format_args!("{}: {}", args.out.display(), without_number(&error))))?;
    let (stream, came) = match args.admin.client().begin("/record", &body) {
        Ok(begun) => begun,
        Err(failure) => {
            if sink.created.is_some() {
                let _ = std::fs::remove_file(&args.out);
            }
            return Err(failure.into());
        }
    };
    // The trace itself may go to the same terminal.
    let is_in_the_way = is_dash(&args.out) && io::stdout().is_terminal();
    let target = if is_in_the_way { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let progress = ProgressBar::with_draw_target(None, target).with_style(ProgressStyle::default_spinner());
    let begin_nanos = read_boot_nanos();
    let show = |lines: u64, report: &FeedReport| {
        let passed = Duration::from_nanos(read_boot_nanos().saturating_sub(begin_nanos));
        let left = Duration::from_secs(args.lasts.saturating_sub(passed.as_secs()));
        let (left, lines) = (humantime::format_duration(left), counted(lines, "line"));
        progress.set_message(format!("{lines}, {} dropped, {left} left; Ctrl-C ends it", report.dropped));
        progress.tick();
    };
    let (end, last) = runtime.block_on(record(stream, came, signals, &mut sink, show))?;
    progress.finish_and_clear();
    tell(&end, &last, &sink, args);
    Ok(if matches!(end, End::Cut) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Writes the stream, of which some bytes came already, until the recording ends. Returns the reason, and the last report.
async fn record(
    stream: StdUnixStream,
    came: Vec<u8>,
    mut signals: CaughtSignals,
    sink: &mut Sink<'_>,
    show: impl Fn(u64, &FeedReport),
) -> io::Result<(End, FeedReport)> {
    stream.set_nonblocking(true)?;
    let stream = io::Cursor::new(came).chain(UnixStream::from_std(stream)?);
    let mut feed = BufReader::with_capacity(READ_BYTES, stream);
    let (mut lines, mut last) = (Vec::new(), FeedReport::default());
    loop {
        let begin = lines.len();
        let mut bounded = (&mut feed).take(LINE_BYTES_MAX);
        let read = tokio::select! {
            biased;
            _ = signals.next() => return Ok((End::Done, last)),
            read = tokio::time::timeout(PATIENCE, bounded.read_until(b'\n', &mut lines)) => read,
        };
        match read {
            Ok(Ok(_)) if lines.ends_with(b"\n") => {}
            Ok(Ok(bytes)) if bytes as u64 == LINE_BYTES_MAX => return Err(not_understood()),
            Ok(Err(error)) if error.kind() != io::ErrorKind::ConnectionReset => return Err(error),
            // An incomplete line is dropped.
            _ => return Ok((End::Cut, last)),
        }
        let report = lines.get(begin..).filter(|line| line.starts_with(REPORT));
        let report = report.map(serde_json::from_slice::<ReportLine>).transpose();
        let report = report.map_err(|_| not_understood())?;
        if report.is_some() {
            lines.truncate(begin);
        }
        // Write all lines that are there at once.
        if report.is_some() || !feed.buffer().contains(&b'\n') {
            if !sink.write(&lines)? {
                return Ok((End::Full, last));
            }
            lines.clear();
        }
        if let Some(ReportLine { report }) = report {
            show(sink.lines, &report);
            last = report;
            if last.ended {
                return Ok((End::Done, last));
            }
        }
    }
}

/// Prints the result, with warnings about the trace.
fn tell(end: &End, last: &FeedReport, sink: &Sink<'_>, args: &Args) {
    let lines = counted(sink.lines, "line");
    let to = if sink.created.is_some() { format!(" to {}", args.out.display()) } else { String::new() };
    let why = match end {
        End::Done => String::new(),
        End::Full => "; as much as --max-size lets it write".to_owned(),
        End::Cut => "; the daemon ended it early: the written part is a whole trace".to_owned(),
    };
    log::plainly(&format!("recorded {lines}{to}{why}"));
    let FeedReport { dropped, left_out, rules_changed, .. } = *last;
    for (number, noun, what) in [
        (dropped, "line", "dropped: it came faster than it was written, and the trace has holes"),
        (left_out, "request", "left out: hashed it would be longer than a request may be"),
    ] {
        if number > 0 {
            log::plainly(&format!("warning: {} {what}", counted(number, noun)));
        }
    }
    if rules_changed {
        log::plainly("warning: the rules changed meanwhile: a replay decides all of it by one set");
    }
}

fn size(text: &str) -> Result<u64, String> {
    settings_file::bytes(text).map_err(|wrong| format!("{}: {}", wrong.message, wrong.help))
}

/// The longest recording that the daemon allows.
const SECONDS_MAX: u64 = 24 * 3_600;

#[derive(Clone, Debug, Default, Deserialize)]
struct FeedReport {
    /// Lines dropped because the recording could not keep up.
    dropped: u64,
    /// Requests left out because hashing would make them longer than a request may be.
    left_out: u64,
    #[serde(default)]
    ended: bool,
    #[serde(default)]
    rules_changed: bool,
}

#[derive(Deserialize)]
struct ReportLine {
    report: FeedReport,
}

fn not_understood() -> io::Error {
    io::Error::other("the daemon sends no recording of this version: is it of another version?")
}

/// Prefix of a report; no trace line begins with it.
const REPORT: &[u8] = br#"{"report""#;

/// A report comes every second; after this silence the recording ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// More than the longest request takes as a line.
const LINE_BYTES_MAX: u64 = 1 << 20;

const READ_BYTES: usize = 64 * 1_024;

struct Sink<'o> {
    out: Box<dyn Write + 'o>,
    /// The file, if it was created here.
    created: Option<File>,
    bytes_max: u64,
    bytes: u64,
    lines: u64,
}

impl<'o> Sink<'o> {
    /// Opens the output; `-` is standard output. Creates a file, but never overwrites one.
    fn open(path: &Path, out: &'o mut dyn Write, bytes_max: u64) -> io::Result<Sink<'o>> {
        let sink = |out, created| Sink { out, created, bytes_max, bytes: 0, lines: 0 };
        if is_dash(path) {
            return Ok(sink(Box::new(out), None));
        }
        match OpenOptions::new().write(true).create_new(true).mode(MODE).open(path) {
            Ok(file) => Ok(sink(Box::new(file.try_clone()?), Some(file))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_no_file(path) => {
                Ok(sink(Box::new(OpenOptions::new().write(true).open(path)?), None))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(there_already()),
            Err(error) => Err(error),
        }
    }

    /// Writes as many whole lines as fit. Returns whether all did.
    fn write(&mut self, lines: &[u8]) -> io::Result<bool> {
        let room = usize::try_from(self.bytes_max - self.bytes).unwrap_or(usize::MAX);
        let fits = match lines.get(..room) {
            None => lines,
            Some(first) => {
                let end = first.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
                lines.get(..end).unwrap_or_default()
            }
        };
        let written = self.out.write_all(fits).and_then(|()| self.out.flush());
        if let (Err(_), Some(file)) = (&written, &self.created) {
            // After an error such as a full disk, cut off a partial line.
            let _ = file.set_len(self.bytes);
        }
        written?;
        self.bytes += fits.len() as u64;
        self.lines += fits.iter().filter(|byte| **byte == b'\n').count() as u64;
        Ok(fits.len() == lines.len())
    }
}

/// Whether the path is a pipe, a character device or a socket, which may be written to.
fn is_no_file(path: &Path) -> bool {
    let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
    kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_socket())
}

/// Traces show the activity of callers, so only the owner may read them.
const MODE: u32 = 0o600;
