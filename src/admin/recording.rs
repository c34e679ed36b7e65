//! `POST /record`: the lines of a trace while they happen. A thread of its own writes them and gives way to decisions; what
//! it is too slow for is dropped and counted.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use humantime::format_duration;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::control::DomainInForce;
use super::verbs::asked::Asked;
use super::{By, Desk, Refusal};
use crate::clock::Timestamp;
use crate::engine;
use crate::record::{Key, Reel, Writer};
use crate::rules::check_name;

/// Where it is asked for.
pub(super) const PATH: &str = "/record";

/// One recording.
struct Recording {
    desk: Arc<Desk>,
    reel: Reel,
    writer: Writer,
    /// Lines that are counted.
    counted: u64,
    lines: Sender<Bytes>,
    until: Timestamp,
    by: String,
    /// The rules in force at its beginning.
    rules: Vec<DomainInForce>,
}

/// Why it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Its time is over.
    Time,
    /// Whoever read it has gone.
    Gone,
    /// Whoever reads it takes nothing.
    Stalled,
    /// It cannot be written.
    Failed,
}

impl Ended {
    fn text(self) -> &'static str {
        match self {
            Ended::Time => "its time is over",
            Ended::Gone => "its reader went",
            Ended::Stalled => "its reader took nothing",
            Ended::Failed => "it could not be written",
        }
    }
}

/// Begins a recording. Its lines come as long as they are taken.
pub(super) fn begin(desk: &Arc<Desk>, by: By, asked: &Value) -> Result<Receiver<Bytes>, Refusal> {
    let asked = Asked::of(asked, &["for_s", "domain", "clear"])?;
    let now = desk.clock.now();
    let until = asked.until(now)?.ok_or_else(|| Refusal::bad("for how long: write `for_s`, in seconds"))?;
    let lasts = until.since(now.at);
    if lasts > LASTS_MAX {
        let most = format_duration(LASTS_MAX);
        return Err(Refusal::bad(format!("`for_s` is too long: a recording takes {most} at most")));
    }
    let domain = asked.text("domain")?.map(named).transpose()?;
    let clear = asked.texts("clear")?.into_iter().map(named).collect::<Result<Vec<_>, _>>()?;
    let key = Key::draw().map_err(|error| Refusal::failed(format!("no key to hash values with: {error}")))?;
    let rules = desk.control.rules().domains;
    let what = what(domain, lasts, &clear);
    let writer = Writer::new(key, clear.into_iter().map(Into::into).collect(), now);
    let reel = desk.recorder.begin(domain).map_err(|busy| Refusal::failed(busy.to_string()))?;
    let (lines, taken) = channel(CHUNKS);
    let by = engine::By::User(by.uid).to_string();
    let recording =
        Recording { desk: Arc::clone(desk), reel, writer, counted: 0, lines, until, by: by.clone(), rules };
    let thread = std::thread::Builder::new().name("recorder".into()).spawn(move || recording.run());
    thread.map_err(|error| Refusal::failed(format!("no thread to record by: {error}: raise TasksMax")))?;
    desk.ledger.enter(&by, &what, now);
    Ok(taken)
}

fn named(name: &str) -> Result<&str, Refusal> {
    let checked = check_name(name, "a name");
    checked.map(|()| name).map_err(|_| {
        Refusal::bad(
            "a domain and an attribute are names: 1 to 64 bytes without control characters, ':' or '/'",
        )
    })
}

/// What the log says of its beginning.
fn what(domain: Option<&str>, lasts: Duration, clear: &[&str]) -> String {
    let domains = domain.map_or("all domains".to_owned(), |domain| format!("the domain {domain}"));
    let values = match clear {
        [] => "values hashed".to_owned(),
        clear => format!("values hashed but of {}", clear.join(", ")),
    };
    format!("began to record what is judged in {domains}, for {} at most, {values}", format_duration(lasts))
}

impl Recording {
    fn run(mut self) {
        self.reel.give_way();
        let ended = self.roll().unwrap_or(Ended::Failed);
        self.reel.stop();
        if ended == Ended::Time {
            // Whoever does not take the last of it has what came before.
            let _ = self.finish();
        }
        let (lines, dropped) = (self.writer.written().lines, self.reel.dropped());
        let what = format!("recorded {lines} lines, {dropped} dropped: {}", ended.text());
        self.desk.ledger.enter(&self.by, &what, self.desk.clock.now());
    }

    /// Writes what happens until it ends.
    fn roll(&mut self) -> io::Result<Ended> {
        let mut chunk = Vec::new();
        let mut reported = self.desk.clock.now().at;
        self.writer.open(&self.desk.engine.open_sessions(), reported, &mut chunk)?;
        loop {
            let some = self.write(&mut chunk)?;
            let now = self.desk.clock.now().at;
            if now.since(reported) >= REPORT_EVERY {
                reported = now;
                self.report(&mut chunk, None)?;
            }
            if let Err(ended) = self.send(&mut chunk) {
                return Ok(ended);
            }
            if now >= self.until {
                return Ok(Ended::Time);
            }
            if !some {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Writes what was still put aside, and what it all came to.
    fn finish(&mut self) -> io::Result<()> {
        let mut chunk = Vec::new();
        while self.write(&mut chunk)? {
            if self.send(&mut chunk).is_err() {
                return Ok(());
            }
        }
        let changed = self.desk.control.rules().domains != self.rules;
        self.report(&mut chunk, Some(changed))?;
        let _ = self.send(&mut chunk);
        Ok(())
    }

    fn write(&mut self, chunk: &mut Vec<u8>) -> io::Result<bool> {
        let some = self.writer.write(&self.reel, CHUNK_BYTES, chunk)?;
        let lines = self.writer.written().lines;
        self.desk.recorder.count_lines(lines - self.counted);
        self.counted = lines;
        Ok(some)
    }

    /// A line between those of the trace: how it goes, and at the end whether the rules changed meanwhile.
    fn report(&self, chunk: &mut Vec<u8>, rules_changed: Option<bool>) -> io::Result<()> {
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
        serde_json::to_writer(&mut *chunk, &json!({"report": report}))?;
        chunk.push(b'\n');
        Ok(())
    }

    /// Hands on what is written. While it is not taken more is put aside, as long as there is room.
    fn send(&self, chunk: &mut Vec<u8>) -> Result<(), Ended> {
        if chunk.is_empty() {
            return Ok(());
        }
        let mut bytes = Bytes::from(std::mem::take(chunk));
        let begin = self.desk.clock.now().at;
        loop {
            bytes = match self.lines.try_send(bytes) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err(Ended::Gone),
                Err(TrySendError::Full(bytes)) => bytes,
            };
            if self.desk.clock.now().at.since(begin) >= STALL_MAX {
                return Err(Ended::Stalled);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// A trace of a day has every hour of it; what is to be watched for longer has metrics.
const LASTS_MAX: Duration = Duration::from_secs(24 * 3_600);

/// How often it looks whether something was put aside: nobody has to wake it, which would cost those who decide a system
/// call.
const PAUSE: Duration = Duration::from_millis(5);

/// So whoever reads knows how it goes, and whoever went is noticed when nothing happens.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// A reader that takes nothing for so long is not there to record.
const STALL_MAX: Duration = Duration::from_secs(30);

/// What is handed on at once.
const CHUNK_BYTES: usize = 64 * 1_024;

/// So many wait to be taken.
const CHUNKS: usize = 8;
