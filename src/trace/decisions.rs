//! Writes one JSON line for each decision; every key is always present.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::event::{TraceEvent, TraceText};
use crate::clock::Micros;
use crate::engine::{Decision, LimitView, Verdict};

pub(crate) struct Decisions<'w> {
    out: &'w mut dyn Write,
    line: Vec<u8>,
}

impl<'w> Decisions<'w> {
    pub(crate) fn new(out: &'w mut dyn Write) -> Decisions<'w> {
        Decisions { out, line: Vec::new() }
    }

    /// Writes a decision; `None` stands for a request that was allowed without a check.
    pub(super) fn write(
        &mut self,
        event: &TraceEvent<'_>,
        decision: Option<&Decision<'_>>,
    ) -> io::Result<()> {
        let binding = decision.and_then(|decision| decision.binding.as_ref());
        let written = DecisionRecord {
            t: event.t,
            id: event.id,
            verdict: decision.map_or(Verdict::Allow, |decision| decision.verdict),
            rule: decision.and_then(Decision::rule_name),
            limit: binding.map(|view| view.level.limit),
            window_us: binding.map(|view| view.level.window.0),
            remaining: binding.map(|view| view.level.remaining),
            reset_us: binding.map(|view| view.level.reset.0),
            retry_us: decision
                .map_or(Some(Micros::ZERO), |decision| decision.retry_after)
                .map(|retry| retry.0),
            priority: decision.and_then(|decision| decision.priority),
            notes: Notes(decision),
            all: MatchedLimits(decision),
        };
        // Serialize to a buffer first: many short writes become one.
        self.line.clear();
        serde_json::to_writer(&mut self.line, &written)?;
        self.line.push(b'\n');
        self.out.write_all(&self.line)
    }
}

#[derive(Serialize)]
struct DecisionRecord<'d> {
    t: TraceText<'d>,
    id: Option<TraceText<'d>>,
    verdict: Verdict,
    rule: Option<&'d str>,
    limit: Option<u64>,
    window_us: Option<u64>,
    remaining: Option<u64>,
    reset_us: Option<u64>,
    retry_us: Option<u64>,
    priority: Option<&'d str>,
    notes: Notes<'d>,
    all: MatchedLimits<'d>,
}

/// Kind and rule in one flat list, as on the wire.
struct Notes<'d>(Option<&'d Decision<'d>>);

impl Serialize for Notes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let notes = self.0.iter().flat_map(|decision| decision.notes());
        serializer.collect_seq(notes.flat_map(|(kind, rule)| [kind.name(), rule]))
    }
}

/// Every limit that matched, as on the wire.
struct MatchedLimits<'d>(Option<&'d Decision<'d>>);

impl Serialize for MatchedLimits<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = self.0.iter().flat_map(|decision| decision.limits());
        let entries = all.map(|LimitView { rule, level }| {
            (&*rule.name, level.limit, level.window.0, level.remaining, level.reset.0)
        });
        serializer.collect_seq(entries)
    }
}
