//! `POST /record`: streams a trace live. Its own low-priority thread writes the lines; events that it is too
//! slow for are dropped and counted.

use std::time::Duration;

use humantime::format_duration;
use hyper::body::{Bytes, Frame};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Sender, channel};

use super::answer::LineFrame;
use super::verbs::{VerbRefusal, VerbResult};
use super::{AdminState, DomainInForce, answer, verbs};
use crate::clock::Timestamp;
use crate::engine::SwitchOrigin;
use crate::record::{RecordReceiver, RecordingKey, RecordingWriter};
use crate::rules::check_name;
use crate::terms::{count, counted};

struct LiveRecording {
    admin: AdminState,
    reel: RecordReceiver,
    writer: RecordingWriter,
    /// Lines that are counted.
    counted: u64,
    lines: Sender<LineFrame>,
    until: Timestamp,
    by: String,
    /// The rules in force at the start of the recording.
    rules: Vec<DomainInForce>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordFields<'a> {
    for_s: Option<u64>,
    domain: Option<&'a str>,
    #[serde(borrow, default)]
    clear: Vec<&'a str>,
}

/// Begins a recording. Its lines come as long as they are taken.
pub(super) fn begin(admin: &AdminState, by: SwitchOrigin, options: &Value) -> VerbResult {
    let RecordFields { for_s, domain, clear } = verbs::fields(options)?;
    let now = admin.clock.now();
    let until = verbs::end(for_s, now)?;
    let lasts = until.since(now.at);
    if lasts > LASTS_MAX {
        let most = format_duration(LASTS_MAX);
        return Err(VerbRefusal::bad(format!("`for_s` is too long: a recording takes {most} at most")));
    }
    let domain = domain.map(named).transpose()?;
    let clear = clear.into_iter().map(named).collect::<Result<Vec<_>, _>>()?;
    let key = RecordingKey::draw()
        .map_err(|error| VerbRefusal::failed(format!("no key to hash values with: {error}")))?;
    let rules = admin.control.rules().domains;
    let what = what(domain, lasts, &clear);
    let writer = RecordingWriter::new(key, clear.into_iter().map(Into::into).collect(), now);
    let reel = admin.recorder.begin(domain).map_err(|busy| VerbRefusal::failed(busy.to_string()))?;
    let (lines, taken) = channel(CHUNKS);
    let by = by.to_string();
    let recording =
        LiveRecording { admin: admin.clone(), reel, writer, counted: 0, lines, until, by: by.clone(), rules };
    let thread = std::thread::Builder::new().name("recorder".into()).spawn(move || recording.run());
    thread
        .map_err(|error| VerbRefusal::failed(format!("no thread to record by: {error}: raise TasksMax")))?;
    admin.ledger.enter(&by, &what, now);
    Ok(answer::lines(taken))
}

fn named(name: &str) -> Result<&str, VerbRefusal> {
    let checked = check_name(name, "a name");
    checked.map(|()| name).map_err(|_| {
        VerbRefusal::bad(
            "a domain and an attribute are names: 1 to 64 bytes without control characters, ':' or '/'",
        )
    })
}

/// Returns the log text of the start of a recording.
fn what(domain: Option<&str>, lasts: Duration, clear: &[&str]) -> String {
    let domains = domain.map_or("all domains".to_owned(), |domain| format!("the domain {domain}"));
    let values = match clear {
        [] => "values hashed".to_owned(),
        clear => format!("values hashed but of {}", clear.join(", ")),
    };
    format!("began to record the requests of {domains}, for {} at most, {values}", format_duration(lasts))
}

impl LiveRecording {
    fn run(mut self) {
        self.reel.give_way();
        let ended = self.roll();
        self.reel.stop();
        if ended.is_ok() {
            // A reader that does not take the end keeps the lines before it.
            self.finish();
        }
        let ended = ended.err().unwrap_or("its time is over");
        let (lines, dropped) = (self.writer.written().lines, self.reel.dropped());
        let what = format!("recorded {}, {} dropped: {ended}", counted(lines, "line"), count(dropped));
        self.admin.ledger.enter(&self.by, &what, self.admin.clock.now());
    }

    /// Writes events until the time is over, or for less long: the error says why.
    fn roll(&mut self) -> Result<(), &'static str> {
        let mut reported = self.admin.clock.now().at;
        self.writer.open(&self.admin.engine.open_sessions());
        loop {
            let some = self.write();
            let now = self.admin.clock.now().at;
            if now.since(reported) >= REPORT_EVERY {
                reported = now;
                self.report(None);
            }
            self.send()?;
            if now >= self.until {
                return Ok(());
            }
            if !some {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Writes the events still buffered, and the final report.
    fn finish(&mut self) {
        while self.write() {
            if self.send().is_err() {
                return;
            }
        }
        let changed = self.admin.control.rules().domains != self.rules;
        self.report(Some(changed));
        let _ = self.send();
    }

    fn write(&mut self) -> bool {
        let some = self.writer.write(&self.reel, CHUNK_BYTES);
        let lines = self.writer.written().lines;
        self.admin.recorder.count_lines(lines - self.counted);
        self.counted = lines;
        some
    }

    /// A line between those of the trace: how it goes, and at the end whether the rules changed meanwhile.
    fn report(&mut self, rules_changed: Option<bool>) {
        let written = self.writer.written();
        let mut report = json!({
            "lines": written.lines,
            "dropped": self.reel.dropped(),
            "left_out": written.left_out,
        });
        if let (Some(changed), Some(fields)) = (rules_changed, report.as_object_mut()) {
            fields.insert("ended".to_owned(), true.into());
            fields.insert("rules_changed".to_owned(), changed.into());
        }
        self.writer.report(&json!({"report": report}));
    }

    /// Sends the written lines to the reader. Events are buffered meanwhile, as long as there is room.
    fn send(&mut self) -> Result<(), &'static str> {
        let bytes = Bytes::from(self.writer.take());
        if bytes.is_empty() {
            return Ok(());
        }
        let mut frame = Ok(Frame::data(bytes));
        let begin = self.admin.clock.now().at;
        loop {
            frame = match self.lines.try_send(frame) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err("its reader went"),
                Err(TrySendError::Full(frame)) => frame,
            };
            if self.admin.clock.now().at.since(begin) >= STALL_MAX {
                return Err("its reader took nothing");
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// A trace of one day covers every hour; use metrics for longer times.
const LASTS_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Poll interval for buffered events. Polling saves decision threads the system call of a wake-up.
const PAUSE: Duration = Duration::from_millis(5);

/// Reports progress to the reader, and detects a closed connection when there are no events.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// A reader that takes nothing for so long is not there to record.
const STALL_MAX: Duration = Duration::from_secs(30);

const CHUNK_BYTES: usize = 64 * 1_024;

/// Chunks that may wait for the reader.
const CHUNKS: usize = 8;
