//! Converts recorded events to the lines of a trace. Uses no clock and no file.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write;

use serde::{Serialize, Serializer};
use serde_json::Value;

use super::digest::{RecordingKey, letters};
use super::recorder::{EventOrigin, Noted, NotedKind, RecordReceiver, SESSION_BYTES};
use crate::clock::{Now, Timestamp};
use crate::engine::{OpenSession, Verdict, WorkOutcome};
use crate::protocol::{
    AmountField, CheckRequest, CostField, DescriptorList, FRAME_BYTES_MAX, Op, RefundReference, RequestFrame,
    RequestOptions, decode_request,
};

/// Writes the lines of one recording.
#[derive(Debug)]
pub(crate) struct RecordingWriter {
    key: RecordingKey,
    /// Attributes whose values are not hashed.
    clear: Vec<Box<str>>,
    /// Nanoseconds to add for Unix time, fixed at the start: steps of the wall clock do not move lines.
    utc: i64,
    began: Timestamp,
    newest: u64,
    sessions: Sessions,
    /// Counts requests to `acquire` without a lease of their own.
    unleased: u64,
    repeats: RepeatedLeases,
    written: RecordingTotals,
    /// Lines that were not taken yet.
    out: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordingTotals {
    pub(crate) lines: u64,
    /// Requests left out because their hashed form exceeds the size of a frame.
    pub(crate) left_out: u64,
}

impl RecordingWriter {
    /// Begins a recording that hashes all values except those of the attributes in `clear`. `now` is a time before
    /// the first event.
    pub(crate) fn new(key: RecordingKey, clear: Vec<Box<str>>, now: Now) -> RecordingWriter {
        RecordingWriter {
            key,
            clear,
            utc: now.utc_offset_nanos,
            began: now.at,
            newest: 0,
            sessions: Sessions::default(),
            unleased: 0,
            repeats: RepeatedLeases::default(),
            written: RecordingTotals::default(),
            out: Vec::new(),
        }
    }

    pub(crate) fn written(&self) -> RecordingTotals {
        self.written
    }

    /// Writes the sessions that were open before the recording, as of its beginning: events have happened since, and no
    /// line may be later than the lines after it.
    pub(crate) fn open(&mut self, open: &[OpenSession]) {
        for session in open {
            let label = SessionLabel::of_open(session, &self.key);
            self.hello(label, &session.pool, session.slots, self.began);
            session.ends_at.into_iter().for_each(|ends_at| self.sessions.leave(label, ends_at));
        }
    }

    /// Writes queued events until `bytes_max` are written. Returns whether there were any.
    pub(crate) fn write(&mut self, reel: &RecordReceiver, bytes_max: usize) -> bool {
        let mut some = false;
        while self.out.len() < bytes_max
            && let Some(noted) = reel.next()
        {
            some = true;
            self.tell(&noted);
        }
        some
    }

    /// Writes a line between those of the trace.
    pub(crate) fn report(&mut self, report: &Value) {
        self.out.extend_from_slice(format!("{report}\n").as_bytes());
    }

    /// Returns the bytes written since the last call.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    pub(super) fn tell(&mut self, noted: &Noted) {
        let Noted { at, who, what } = noted;
        let Some(who) = who else {
            self.sessions.end_due(*at).into_iter().for_each(|label| self.bye(label, *at));
            return;
        };
        let label = SessionLabel::of(who, &self.key);
        match what {
            NotedKind::Hello { pool, slots } => self.hello(label, pool, *slots, *at),
            NotedKind::Disconnected(ends_at) => self.sessions.leave(label, *ends_at),
            NotedKind::SessionEnded if self.sessions.end(label) => self.bye(label, *at),
            NotedKind::SessionEnded | NotedKind::Tick => {}
            NotedKind::Ended(lease, outcome) => self.release(self.lease_id(*lease), *outcome, *at),
            NotedKind::Renewed(lease) => {
                let id = self.lease_id(*lease);
                self.line("renew", *at).add("id", Some(id)).end();
            }
            NotedKind::Decided { payload, .. } | NotedKind::Charged(payload) => {
                self.greet(label, who, *at);
                self.record_request(payload, &label.text(), noted);
            }
            NotedKind::Signal { name, permille } => {
                self.greet(label, who, *at);
                let line = self.line("signal", *at).add("session", Some(label.text()));
                let line = line.add("pool", Some(who.session.pool_name())).add("name", Some(name));
                line.add("permille", Some(permille)).end();
            }
        }
    }

    /// Writes a session that is not in the trace yet: it began earlier, or its beginning was dropped.
    fn greet(&mut self, label: SessionLabel, who: &EventOrigin, at: Timestamp) {
        self.hello(label, who.session.pool_name(), 0, at);
    }

    fn hello(&mut self, label: SessionLabel, pool: &str, slots: u32, at: Timestamp) {
        if !self.sessions.is_new(label) {
            return;
        }
        let line = self.line("hello", at).add("session", Some(label.text())).add("pool", Some(pool));
        line.add("slots", Some(slots).filter(|slots| *slots > 0)).end();
    }

    fn bye(&mut self, label: SessionLabel, at: Timestamp) {
        self.line("bye", at).add("session", Some(label.text())).end();
    }

    fn release(&mut self, id: Value, outcome: WorkOutcome, at: Timestamp) {
        self.line("release", at).add("id", Some(id)).add("outcome", Some(outcome)).end();
    }

    fn record_request(&mut self, payload: &[u8], session: &str, noted: &Noted) {
        let mut descriptors = DescriptorList::new();
        match decode_request(payload, &mut descriptors) {
            Ok(RequestFrame::Check(op, judge)) => self.judged(op, &judge, &descriptors, session, noted),
            Ok(RequestFrame::Charge(charge)) => {
                let Some(hashed) = self.hash(payload, &descriptors) else { return };
                let amount = match charge.amount {
                    AmountField::Requests(amount) => RecordedAmount::Requests(amount),
                    AmountField::Units(units) => RecordedAmount::Units(units.iter().collect()),
                };
                let idem = self.idem(&charge.options);
                let (of, of_id) = match charge.options.of {
                    Some(RefundReference::IdempotencyKey(idem)) => (Some(self.hash_idem(idem)), None),
                    Some(RefundReference::Lease(lease)) => (None, Some(self.lease_id(lease))),
                    None => (None, None),
                };
                let line = self.line("charge", noted.at).add("session", Some(session));
                let line = line.add("domain", Some(charge.domain)).add("descriptors", Some(hashed));
                line.add("amount", Some(amount)).add("idem", idem).add("of", of).add("of_id", of_id).end();
            }
            // Other requests are not recorded.
            _ => {}
        }
    }

    fn judged(
        &mut self,
        op: Op,
        judge: &CheckRequest<'_>,
        descriptors: &DescriptorList<'_>,
        session: &str,
        noted: &Noted,
    ) {
        let NotedKind::Decided { payload, verdict, refused_by, lease } = &noted.what else { return };
        let Some(hashed) = self.hash(payload, descriptors) else { return };
        let cost = match judge.cost {
            CostField::Requests(1) => None,
            CostField::Requests(cost) => Some(RecordedAmount::Requests(signed(cost))),
            CostField::Units(units) => {
                Some(RecordedAmount::Units(units.iter().map(|(unit, cost)| (unit, signed(cost))).collect()))
            }
        };
        let options = &judge.options;
        let is_work = op == Op::Acquire;
        let id = is_work.then(|| self.work_id(*lease, options.idem.is_some()));
        let idem = self.idem(options);
        let line = self.line(op.into(), noted.at).add("id", id.as_ref()).add("session", Some(session));
        let line = line.add("domain", Some(judge.domain)).add("descriptors", Some(hashed)).add("cost", cost);
        let line = line.add("priority", judge.priority).add("idem", idem).add("queued_us", options.queued_us);
        // The verdict is for people and tools: a replay computes its own.
        let line = line.add("max_wait_us", options.max_wait_us).add("verdict", Some(verdict));
        line.add("rule", refused_by.as_deref()).end();
        let is_granted = matches!(verdict, Verdict::Allow | Verdict::Wait);
        // The request was abandoned before it was granted.
        if let Some(id) = id.filter(|_| is_granted && lease.is_none()) {
            self.release(id, WorkOutcome::Dropped, noted.at);
        }
    }

    /// Returns the descriptors, each as alternating keys and hashed values; `None`, after counting it, if the request exceeds
    /// a frame.
    fn hash<'d>(
        &mut self,
        payload: &[u8],
        descriptors: &DescriptorList<'d>,
    ) -> Option<Vec<Vec<Cow<'d, str>>>> {
        let (mut hashed, mut bytes) = (Vec::new(), payload.len() + IDEM_GROWTH_BYTES);
        for pairs in descriptors.iter() {
            let mut texts = Vec::with_capacity(2 * pairs.len());
            for (key, value) in pairs {
                let text = self.hash_value(key, value);
                bytes = (bytes + text.len()).saturating_sub(value.len());
                texts.extend([(*key).into(), text]);
            }
            hashed.push(texts);
        }
        if bytes > FRAME_BYTES_MAX {
            self.written.left_out += 1;
            return None;
        }
        Some(hashed)
    }

    /// Returns a value as the trace shows it. Empty values, which rules treat as absent, stay empty.
    fn hash_value<'v>(&self, attribute: &str, value: &'v str) -> Cow<'v, str> {
        if value.is_empty() || self.clear.iter().any(|clear| **clear == *attribute) {
            value.into()
        } else {
            self.key.hash_value(attribute, value).into()
        }
    }

    /// Returns the id of an acquire request: its lease, or a number if it has none or is a retry.
    fn work_id(&mut self, lease: Option<u64>, is_named: bool) -> Value {
        match lease {
            Some(lease) if !is_named || self.repeats.is_first(lease) => self.lease_id(lease),
            _ => {
                self.unleased += 1;
                self.unleased.into()
            }
        }
    }

    fn lease_id(&self, lease: u64) -> Value {
        letters(self.key.digest("lease", &lease.to_le_bytes())).into()
    }

    fn idem(&self, options: &RequestOptions<'_>) -> Option<String> {
        options.idem.map(|idem| self.hash_idem(idem))
    }

    fn hash_idem(&self, idem: &[u8]) -> String {
        letters(self.key.digest("idem", idem))
    }

    /// Begins a line.
    fn line(&mut self, op: &str, at: Timestamp) -> RecordedLine<'_> {
        // Concurrent threads queue events in the order of their decisions, which their clocks may not follow.
        self.newest = at.as_nanos().saturating_add_signed(self.utc).max(self.newest);
        self.written.lines += 1;
        let (seconds, nanos) = (self.newest / NANOS_PER_SECOND, self.newest % NANOS_PER_SECOND);
        // Unix time as a text, because a float would lose digits. Writing to memory cannot fail.
        let _ = write!(self.out, "{{\"t\":{seconds}.{nanos:09},\"op\":\"{op}\"");
        RecordedLine(&mut self.out)
    }
}

/// A line that `tidegate replay` reads, under construction at the end of the buffer.
struct RecordedLine<'o>(&'o mut Vec<u8>);

impl RecordedLine<'_> {
    /// Adds a field if it has a value.
    fn add(self, name: &str, value: Option<impl Serialize>) -> Self {
        if let Some(value) = value {
            let _ = write!(self.0, ",\"{name}\":");
            let _ = serde_json::to_writer(&mut *self.0, &value);
        }
        self
    }

    fn end(self) {
        self.0.extend_from_slice(b"}\n");
    }
}

enum RecordedAmount<'l> {
    Requests(i64),
    Units(Vec<(&'l str, i64)>),
}

impl Serialize for RecordedAmount<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            RecordedAmount::Requests(number) => serializer.serialize_i64(*number),
            RecordedAmount::Units(units) => serializer.collect_map(units.iter().copied()),
        }
    }
}

/// Converts a cost to a number of the trace; larger ones saturate, as no rule can count them.
fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}

#[derive(Debug, Default)]
struct Sessions {
    /// Per session: the time at which it ends unless a client reconnects.
    ends_at_by_session: HashMap<SessionLabel, Option<Timestamp>>,
}

/// The name of a session in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SessionLabel(u64);

impl SessionLabel {
    fn of(who: &EventOrigin, key: &RecordingKey) -> SessionLabel {
        SessionLabel::new(who.user, &who.named, key)
    }

    fn of_open(open: &OpenSession, key: &RecordingKey) -> SessionLabel {
        let mut named = [1; SESSION_BYTES];
        named.iter_mut().skip(1).zip(open.name).for_each(|(to, from)| *to = from);
        SessionLabel::new(open.user, &named, key)
    }

    fn new(user: u32, named: &[u8], key: &RecordingKey) -> SessionLabel {
        SessionLabel(key.digest("session", &[&user.to_le_bytes(), named].concat()))
    }

    fn text(self) -> String {
        letters(self.0)
    }
}

impl Sessions {
    /// Marks a session as connected. Returns whether it still has to be written.
    fn is_new(&mut self, label: SessionLabel) -> bool {
        // Beyond the bound the session is written each time; a replay takes that as one more connection.
        let is_full = self.ends_at_by_session.len() >= SESSIONS_MAX;
        match self.ends_at_by_session.get_mut(&label) {
            Some(ends_at) => {
                *ends_at = None;
                false
            }
            None if is_full => true,
            None => {
                self.ends_at_by_session.insert(label, None);
                true
            }
        }
    }

    /// Sets the time at which a session ends unless a client reconnects.
    fn leave(&mut self, label: SessionLabel, ends_at: Timestamp) {
        self.ends_at_by_session.get_mut(&label).into_iter().for_each(|known| *known = Some(ends_at));
    }

    /// Removes an ended session. Returns whether it was written.
    fn end(&mut self, label: SessionLabel) -> bool {
        self.ends_at_by_session.remove(&label).is_some()
    }

    /// Removes and returns the sessions whose reconnect time has passed.
    fn end_due(&mut self, at: Timestamp) -> Vec<SessionLabel> {
        let due =
            self.ends_at_by_session.extract_if(|_, ends_at| ends_at.is_some_and(|ends_at| ends_at <= at));
        due.map(|(label, _)| label).collect()
    }
}

/// Leases granted under an idempotency key, which a retry returns again.
#[derive(Debug, Default)]
struct RepeatedLeases {
    known: HashSet<u64>,
    in_order: VecDeque<u64>,
}

impl RepeatedLeases {
    fn is_first(&mut self, lease: u64) -> bool {
        if !self.known.insert(lease) {
            return false;
        }
        self.in_order.push_back(lease);
        if self.in_order.len() > REPEATS_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Four times the concurrent maximum, as dropped events may include the ends of sessions.
const SESSIONS_MAX: usize = 65_536;

/// Retries come within a minute.
const REPEATS_MAX: usize = 65_536;

/// The growth of a payload by hashing `idem` and `of`, in bytes at most.
const IDEM_GROWTH_BYTES: usize = 32;
