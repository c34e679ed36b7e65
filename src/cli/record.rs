//! `tidegate record`: records the requests of a daemon as a trace for `tidegate replay`.

mod feed;
mod sink;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::json;

use super::admin_client::AdminArgs;
use super::signals::CaughtSignals;
use super::verbs::seconds;
use super::{CliResult, failed, usage};
use crate::clock::read_boot_nanos;
use crate::daemon::{log, settings_file};
use crate::trace::table::counted;
use feed::{Feed, FeedItem, FeedReport};
use sink::Sink;

/// Records the requests that the daemon judges as a trace for `tidegate replay`
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
    #[arg(long, value_name = "NAME")]
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

Exit codes: 0 recorded, to the end or to Ctrl-C, also where lines were dropped; 1 the daemon does not answer, refuses or
went, or the trace cannot be written, with the reason; 2 wrong usage.";

enum End {
    /// Its time is over.
    Time(FeedReport),
    /// A signal of the user.
    ByHand,
    /// The size limit.
    Full,
    /// The daemon closed the stream.
    Cut,
}

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    if args.lasts > SECONDS_MAX {
        return Err(usage("--for takes one second at least and 24h at most"));
    }
    let asked = json!({"for_s": args.lasts, "domain": args.domain, "clear": args.clear});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on, a signal ends the recording with a whole trace.
    let signals =
        runtime.block_on(async { CaughtSignals::new(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]) })?;
    let sink = Sink::open(&args.out, out, args.max_size);
    let mut sink = sink.map_err(|error| failed(format_args!("{}: {error}", args.out.display())))?;
    let (stream, came) = match args.admin.client().begin("/record", &asked) {
        Ok(begun) => begun,
        Err(failure) => {
            sink.discard();
            return Err(failure.into());
        }
    };
    let mut progress = RecordProgress::new(Duration::from_secs(args.lasts), sink.is_terminal());
    let (end, last) = runtime.block_on(async {
        let feed = Feed::new(stream, came)?;
        record(feed, signals, &mut sink, &mut progress).await
    })?;
    progress.end();
    sink.flush()?;
    tell(&end, &last, &sink, args);
    Ok(if matches!(end, End::Cut) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Writes the stream until the recording ends. Returns the reason, and the last report.
async fn record(
    mut feed: Feed,
    mut signals: CaughtSignals,
    sink: &mut Sink<'_>,
    progress: &mut RecordProgress,
) -> io::Result<(End, FeedReport)> {
    let mut last = FeedReport::default();
    loop {
        let came = tokio::select! {
            biased;
            _ = signals.next() => return Ok((End::ByHand, last)),
            came = feed.next() => came?,
        };
        match came {
            FeedItem::Lines(lines) => {
                if !sink.write(&lines)? {
                    return Ok((End::Full, last));
                }
            }
            FeedItem::Report(report) => {
                progress.show(sink.lines, &report);
                last = report.clone();
                if report.ended {
                    return Ok((End::Time(report), last));
                }
            }
            FeedItem::End => return Ok((End::Cut, last)),
        }
    }
}

/// Prints the result, with warnings about the trace.
fn tell(end: &End, last: &FeedReport, sink: &Sink<'_>, args: &Args) {
    let lines = counted(sink.lines, "line");
    let to = if sink.is_file() { format!(" to {}", args.out.display()) } else { String::new() };
    let why = match end {
        End::Time(_) | End::ByHand => String::new(),
        End::Full => "; as much as --max-size lets it write".to_owned(),
        End::Cut => "; the daemon ended it before its time: what is written is a whole trace".to_owned(),
    };
    log::plainly(&format!("recorded {lines}{to}{why}"));
    let FeedReport { dropped, left_out, .. } = *last;
    for (number, noun, what) in [
        (dropped, "line", "dropped: it came faster than it was written, and the trace has holes"),
        (left_out, "request", "left out: hashed it would be longer than a request may be"),
    ] {
        if number > 0 {
            log::plainly(&format!("warning: {} {what}", counted(number, noun)));
        }
    }
    if matches!(end, End::Time(report) if report.rules_changed) {
        log::plainly("warning: the rules changed meanwhile: a replay judges all of it by one set");
    }
}

fn size(text: &str) -> Result<u64, String> {
    settings_file::bytes(text)
        .map_err(|wrong| format!("{}: {}", wrong.message, wrong.mend.unwrap_or_default()))
}

/// The longest recording that the daemon allows.
const SECONDS_MAX: u64 = 24 * 3_600;

struct RecordProgress {
    line: Option<ProgressBar>,
    begin_nanos: u64,
    lasts: Duration,
}

impl RecordProgress {
    /// `in_the_way`: the trace itself goes to the same terminal.
    fn new(lasts: Duration, in_the_way: bool) -> RecordProgress {
        let wanted = !in_the_way && std::io::stderr().is_terminal();
        let line = wanted.then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()));
        RecordProgress { line, begin_nanos: read_boot_nanos(), lasts }
    }

    /// Updates the line; called every second.
    fn show(&self, lines: u64, report: &FeedReport) {
        let Some(line) = &self.line else { return };
        let passed = Duration::from_nanos(read_boot_nanos().saturating_sub(self.begin_nanos));
        let left = Duration::from_secs(self.lasts.saturating_sub(passed).as_secs());
        let left = humantime::format_duration(left);
        let lines = counted(lines, "line");
        line.set_style(indicatif::ProgressStyle::default_spinner());
        line.set_message(format!("{lines}, {} dropped, {left} left; Ctrl-C ends it", report.dropped));
        line.tick();
    }

    fn end(&self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}
