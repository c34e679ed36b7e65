//! Plays a trace: every line through the codec's bounds and the engine, the engine's own time before it.

use std::collections::HashSet;
use std::io::{self, BufRead};
use std::sync::Arc;

use super::decisions::Decisions;
use super::trace::{Cost, Line, Text, time};
use crate::clock::{Now, Timestamp};
use crate::engine::{self, Answer, Decider, Engine, Op, TICK_MILLIS};
use crate::protocol::{
    self, Descriptors, Judge, Options, Request, Split, decode_request, encode_request, split,
};

/// An engine in virtual time.
pub(super) struct Player {
    engine: Arc<Engine>,
    decider: Decider,
    now: Now,
    last_tick: Option<Timestamp>,
    ids: HashSet<Box<str>>,
    frame: Vec<u8>,
    lines: u64,
    first: Option<Timestamp>,
}

/// Why a replay stops.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("line {number}: {wrong}")]
    Line { number: u64, wrong: Wrong },
    #[error("line {number}: {source}")]
    Read { number: u64, source: io::Error },
    #[error("{0}")]
    Write(io::Error),
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub(super) enum Wrong {
    #[error("not a line of a trace: {0}")]
    Json(serde_json::Error),
    #[error("`t` is {0}: write seconds from 0 as a decimal of at most 9 places, such as 0.25")]
    Time(String),
    #[error("`t` is {0}, before the line above: sort the trace by time")]
    Backwards(String),
    #[error("unknown op `{0}`: write hello, hit, peek, acquire, release, bye")]
    UnknownOp(String),
    #[error("op `{0}` is not supported yet")]
    NotSupported(String),
    #[error("{op} needs `{field}`")]
    Missing { op: String, field: &'static str },
    #[error("id {0} was used before")]
    IdTwice(String),
    #[error("a descriptor is a flat list of keys and values, at most 16 pairs in each of at most 8")]
    Descriptors,
    #[error("{0}")]
    Bounds(protocol::Fault),
    #[error("{0}")]
    TooLarge(protocol::TooLarge),
}

impl Player {
    pub(super) fn new(engine: Arc<Engine>) -> Player {
        Player {
            decider: engine.decider(),
            engine,
            now: Now::default(),
            last_tick: None,
            ids: HashSet::new(),
            frame: Vec::new(),
            lines: 0,
            first: None,
        }
    }

    /// The engine that judges.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Lines played.
    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// From the first line to the last.
    pub(super) fn span(&self) -> std::time::Duration {
        self.now.at.since(self.first.unwrap_or(self.now.at))
    }

    /// Plays to the end, or to the first line that is bad.
    pub(super) fn play(
        &mut self,
        mut input: impl BufRead,
        decisions: &mut Decisions<'_>,
    ) -> Result<(), Failure> {
        let mut text = Vec::new();
        let mut number = 0;
        loop {
            text.clear();
            number += 1;
            match input.read_until(b'\n', &mut text) {
                Ok(0) => return Ok(()),
                Ok(_) if text.trim_ascii().is_empty() => {}
                Ok(_) => self.line(&text, number, decisions)?,
                Err(source) => return Err(Failure::Read { number, source }),
            }
        }
    }

    fn line(&mut self, text: &[u8], number: u64, decisions: &mut Decisions<'_>) -> Result<(), Failure> {
        let bad = |wrong| Failure::Line { number, wrong };
        let line: Line<'_> = serde_json::from_slice(text).map_err(|error| bad(Wrong::Json(error)))?;
        self.advance(line.t.get()).map_err(bad)?;
        self.lines += 1;
        let op = line.op.as_deref().unwrap_or("hit");
        let op = match op {
            "hit" => Op::Hit,
            "peek" => Op::Peek,
            "acquire" if line.id.is_none() => {
                return Err(bad(Wrong::Missing { op: op.into(), field: "id" }));
            }
            // Without concurrency limits an acquire is a hit, and nothing is there to release.
            "acquire" => Op::Hit,
            "hello" | "bye" | "release" | "renew" => return Ok(()),
            "charge" | "signal" | "reload" => return Err(bad(Wrong::NotSupported(op.into()))),
            other => return Err(bad(Wrong::UnknownOp(other.into()))),
        };
        self.note_id(&line).map_err(bad)?;
        self.judge(op, &line, decisions, number)
    }

    /// Moves time on to a line, and lets the engine do what it does by itself before it.
    fn advance(&mut self, text: &str) -> Result<(), Wrong> {
        let at = time(text).ok_or_else(|| Wrong::Time(text.into()))?;
        if at < self.now.at {
            return Err(Wrong::Backwards(text.into()));
        }
        self.now = Now { at, utc: 0 };
        self.first.get_or_insert(at);
        let last = *self.last_tick.get_or_insert(at);
        // Ticks stand a fixed time apart from the first line on. Of those that fall into a gap the last does the
        // work of all.
        let due = at.since(last).as_millis() / u128::from(TICK_MILLIS);
        if due > 0 {
            let nanos = u64::try_from(due).unwrap_or(u64::MAX).saturating_mul(TICK_MILLIS * 1_000_000);
            let tick = last.after(std::time::Duration::from_nanos(nanos));
            self.engine.tick(Now { at: tick, utc: 0 });
            self.last_tick = Some(tick);
        }
        Ok(())
    }

    fn note_id(&mut self, line: &Line<'_>) -> Result<(), Wrong> {
        let Some(id) = line.id.map(serde_json::value::RawValue::get) else { return Ok(()) };
        if self.ids.insert(id.into()) { Ok(()) } else { Err(Wrong::IdTwice(id.into())) }
    }

    fn judge(
        &mut self,
        op: Op,
        line: &Line<'_>,
        decisions: &mut Decisions<'_>,
        number: u64,
    ) -> Result<(), Failure> {
        let bad = |wrong| Failure::Line { number, wrong };
        self.frame.clear();
        encode(line, &mut self.frame).map_err(bad)?;
        // The bounds of the socket hold here too, and are told in its words.
        let Split::Frame { payload, .. } = split(&self.frame) else { return Ok(()) };
        let mut descriptors = Descriptors::new();
        let request = decode_request(payload, &mut descriptors).map_err(|fault| bad(Wrong::Bounds(fault)))?;
        let Request::Hit(judge) = request else { return Ok(()) };
        let named: Vec<(&str, u32)>;
        let cost = match judge.cost {
            protocol::Cost::Requests(cost) => engine::Cost::Requests(cost),
            protocol::Cost::Units(units) => {
                named = units.iter().collect();
                engine::Cost::Units(&named)
            }
        };
        let of_engine = engine::Descriptors { attributes: descriptors.attributes(), ends: descriptors.ends() };
        let request = engine::Request { cost, all: true, ..engine::Request::new(op, judge.domain, of_engine) };
        let Answer::Decided(decision) = self.decider.decide(&request, self.now) else { return Ok(()) };
        decisions.write(line, &decision).map_err(Failure::Write)
    }
}

/// Writes a line as the frame that would have come over the socket.
fn encode(line: &Line<'_>, frame: &mut Vec<u8>) -> Result<(), Wrong> {
    let op = || line.op.as_deref().unwrap_or("hit").to_owned();
    let domain = line.domain.as_deref().ok_or_else(|| Wrong::Missing { op: op(), field: "domain" })?;
    let written = line.descriptors.as_ref();
    let written = written.ok_or_else(|| Wrong::Missing { op: op(), field: "descriptors" })?;
    let mut descriptors = Descriptors::new();
    for descriptor in written {
        let pairs: Vec<(&str, &str)> = descriptor.as_chunks().0.iter().map(pair).collect();
        if descriptor.len() % 2 != 0 || !descriptors.push(&pairs) {
            return Err(Wrong::Descriptors);
        }
    }
    let units: Vec<(&str, u32)>;
    let cost = match &line.cost {
        None => protocol::Cost::Requests(1),
        Some(Cost::Requests(cost)) => protocol::Cost::Requests(*cost),
        Some(Cost::Units(named)) => {
            units = named.iter().map(|(unit, cost)| (unit.as_str(), *cost)).collect();
            protocol::Cost::Units(units.as_slice().into())
        }
    };
    let options = Options {
        idem: line.idem.as_deref().map(str::as_bytes),
        queued_us: line.queued_us,
        max_wait_us: line.max_wait_us,
        all: true,
        ..Options::default()
    };
    let priority = line.priority.as_deref();
    let judge = Judge { cost, priority, options, ..Judge::new(0, domain) };
    encode_request(frame, &Request::Hit(judge), &descriptors).map_err(Wrong::TooLarge)
}

fn pair<'l>([key, value]: &'l [Text<'_>; 2]) -> (&'l str, &'l str) {
    (&key.0, &value.0)
}
