//! Converts recorded events to the lines of a trace. Uses no clock and no file.

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::io;

use super::digest::{RecordingKey, letters};
use super::line::{RecordedAmount, RecordedId, RecordedLine};
use super::noted::{EventOrigin, Noted, NotedKind};
use super::recorder::RecordReceiver;
use super::sessions::{SessionLabel, Sessions};
use crate::clock::{Now, Timestamp};
use crate::engine::{OpenSession, Verdict, WorkOutcome};
use crate::protocol::{
    AmountField, CheckRequest, CostField, DescriptorList, FRAME_BYTES_MAX, RefundReference, RequestFrame,
    RequestOptions, decode_request,
};

/// Writes the lines of one recording.
#[derive(Debug)]
pub struct RecordingWriter {
    key: RecordingKey,
    /// Attributes whose values are not hashed.
    clear: Vec<Box<str>>,
    /// Nanoseconds to add for Unix time, fixed at the start: steps of the wall clock do not move lines.
    utc: i64,
    newest: u64,
    sessions: Sessions,
    /// Counts requests to `acquire` without a lease of their own.
    unleased: u64,
    repeats: RepeatedLeases,
    written: RecordingTotals,
}

/// The totals of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingTotals {
    /// Lines.
    pub lines: u64,
    /// Requests left out because their hashed form exceeds the size of a frame.
    pub left_out: u64,
}

/// The descriptors of a request: alternating keys and values.
type HashedDescriptors<'l> = Vec<Vec<Cow<'l, str>>>;

impl RecordingWriter {
    /// Begins a recording that hashes all values except those of the attributes in `clear`.
    #[must_use]
    pub fn new(key: RecordingKey, clear: Vec<Box<str>>, now: Now) -> RecordingWriter {
        RecordingWriter {
            key,
            clear,
            utc: now.utc_offset_nanos,
            newest: 0,
            sessions: Sessions::default(),
            unleased: 0,
            repeats: RepeatedLeases::default(),
            written: RecordingTotals::default(),
        }
    }

    /// Returns the totals so far.
    #[must_use]
    pub fn written(&self) -> RecordingTotals {
        self.written
    }

    /// Writes the sessions that were open before the recording.
    ///
    /// # Errors
    /// None, as the destination is memory.
    pub fn open(&mut self, open: &[OpenSession], at: Timestamp, to: &mut Vec<u8>) -> io::Result<()> {
        for session in open {
            let label = SessionLabel::of_open(session, &self.key);
            self.hello(label, &session.pool, session.slots, at, to)?;
            session.ends_at.into_iter().for_each(|ends_at| self.sessions.leave(label, ends_at));
        }
        Ok(())
    }

    /// Writes queued events until `to` holds `bytes_max`. Returns whether there were any.
    ///
    /// # Errors
    /// None, as the destination is memory.
    pub fn write(&mut self, reel: &RecordReceiver, bytes_max: usize, to: &mut Vec<u8>) -> io::Result<bool> {
        let mut some = false;
        while to.len() < bytes_max
            && let Some(noted) = reel.next()
        {
            some = true;
            self.tell(&noted, to)?;
        }
        Ok(some)
    }

    pub(super) fn tell(&mut self, noted: &Noted, to: &mut Vec<u8>) -> io::Result<()> {
        let Noted { at, who, what } = noted;
        let Some(who) = who else {
            let due = self.sessions.end_due(*at);
            return due.into_iter().try_for_each(|label| self.bye(label, *at, to));
        };
        let label = SessionLabel::of(who, &self.key);
        match what {
            NotedKind::Hello { pool, slots } => self.hello(label, pool, *slots, *at, to),
            NotedKind::Left(ends_at) => {
                self.sessions.leave(label, *ends_at);
                Ok(())
            }
            NotedKind::Gone if self.sessions.end(label) => self.bye(label, *at, to),
            NotedKind::Gone | NotedKind::Tick => Ok(()),
            NotedKind::Ended(lease, outcome) => {
                let id = self.lease_id(*lease);
                self.release(id, *outcome, *at, to)
            }
            NotedKind::Renewed(lease) => {
                let id = Some(self.lease_id(*lease));
                self.line(&RecordedLine { op: "renew", id, ..RecordedLine::default() }, *at, to)
            }
            NotedKind::Judged { payload, .. } | NotedKind::Charged(payload) => {
                self.greet(label, who, *at, to)?;
                self.asked(payload, &label.text(), noted, to)
            }
            NotedKind::Signal { name, permille } => {
                self.greet(label, who, *at, to)?;
                let (session, pool) = (label.text(), who.session.pool_name());
                let line = RecordedLine {
                    op: "signal",
                    session: Some(&session),
                    pool: Some(pool),
                    name: Some(name),
                    permille: Some(*permille),
                    ..RecordedLine::default()
                };
                self.line(&line, *at, to)
            }
        }
    }

    /// Writes a session that is not in the trace yet: it began earlier, or its beginning was dropped.
    fn greet(
        &mut self,
        label: SessionLabel,
        who: &EventOrigin,
        at: Timestamp,
        to: &mut Vec<u8>,
    ) -> io::Result<()> {
        self.hello(label, who.session.pool_name(), 0, at, to)
    }

    fn hello(
        &mut self,
        label: SessionLabel,
        pool: &str,
        slots: u32,
        at: Timestamp,
        to: &mut Vec<u8>,
    ) -> io::Result<()> {
        if !self.sessions.is_new(label) {
            return Ok(());
        }
        let (session, slots) = (label.text(), Some(slots).filter(|slots| *slots > 0));
        self.line(
            &RecordedLine {
                op: "hello",
                session: Some(&session),
                pool: Some(pool),
                slots,
                ..RecordedLine::default()
            },
            at,
            to,
        )
    }

    fn bye(&mut self, label: SessionLabel, at: Timestamp, to: &mut Vec<u8>) -> io::Result<()> {
        self.line(
            &RecordedLine { op: "bye", session: Some(&label.text()), ..RecordedLine::default() },
            at,
            to,
        )
    }

    fn release(
        &mut self,
        id: RecordedId,
        outcome: WorkOutcome,
        at: Timestamp,
        to: &mut Vec<u8>,
    ) -> io::Result<()> {
        self.line(
            &RecordedLine { op: "release", id: Some(id), outcome: Some(outcome), ..RecordedLine::default() },
            at,
            to,
        )
    }

    fn asked(&mut self, payload: &[u8], session: &str, noted: &Noted, to: &mut Vec<u8>) -> io::Result<()> {
        let mut descriptors = DescriptorList::new();
        match decode_request(payload, &mut descriptors) {
            Ok(RequestFrame::Hit(judge)) => self.judged("hit", &judge, &descriptors, session, noted, to),
            Ok(RequestFrame::Peek(judge)) => self.judged("peek", &judge, &descriptors, session, noted, to),
            Ok(RequestFrame::Acquire(judge)) => {
                self.judged("acquire", &judge, &descriptors, session, noted, to)
            }
            Ok(RequestFrame::Charge(charge)) => {
                let Some(hashed) = self.hash(payload, &descriptors) else { return Ok(()) };
                let amount = match charge.amount {
                    AmountField::Requests(amount) => RecordedAmount::Requests(amount),
                    AmountField::Units(units) => RecordedAmount::Units(units.iter().collect()),
                };
                let line = RecordedLine {
                    op: "charge",
                    session: Some(session),
                    domain: Some(charge.domain),
                    descriptors: Some(&hashed),
                    amount: Some(amount),
                    idem: self.idem(&charge.options),
                    of: match charge.options.of {
                        Some(RefundReference::IdempotencyKey(idem)) => Some(self.idem_as_told(idem)),
                        _ => None,
                    },
                    of_id: match charge.options.of {
                        Some(RefundReference::Lease(lease)) => Some(self.lease_id(lease)),
                        _ => None,
                    },
                    ..RecordedLine::default()
                };
                self.line(&line, noted.at, to)
            }
            // Other requests are not recorded.
            _ => Ok(()),
        }
    }

    fn judged(
        &mut self,
        op: &'static str,
        judge: &CheckRequest<'_>,
        descriptors: &DescriptorList<'_>,
        session: &str,
        noted: &Noted,
        to: &mut Vec<u8>,
    ) -> io::Result<()> {
        let NotedKind::Judged { payload, verdict, refused_by, lease } = &noted.what else { return Ok(()) };
        let Some(hashed) = self.hash(payload, descriptors) else { return Ok(()) };
        let cost = match judge.cost {
            CostField::Requests(1) => None,
            CostField::Requests(cost) => Some(RecordedAmount::Requests(signed(cost))),
            CostField::Units(units) => {
                Some(RecordedAmount::Units(units.iter().map(|(unit, cost)| (unit, signed(cost))).collect()))
            }
        };
        let options = &judge.options;
        let is_work = op == "acquire";
        let id = is_work.then(|| self.work_id(*lease, options.idem.is_some()));
        let line = RecordedLine {
            op,
            id: id.clone(),
            session: Some(session),
            domain: Some(judge.domain),
            descriptors: Some(&hashed),
            cost,
            priority: judge.priority,
            idem: self.idem(options),
            queued_us: options.queued_us,
            max_wait_us: options.max_wait_us,
            verdict: Some(*verdict),
            rule: refused_by.as_deref(),
            ..RecordedLine::default()
        };
        self.line(&line, noted.at, to)?;
        let is_granted = matches!(verdict, Verdict::Allow | Verdict::Wait);
        match id {
            // The request was abandoned before it was granted.
            Some(id) if is_granted && lease.is_none() => self.release(id, WorkOutcome::Dropped, noted.at, to),
            _ => Ok(()),
        }
    }

    /// Returns the descriptors with hashed values; `None`, after counting it, if the request exceeds a frame.
    fn hash<'d>(
        &mut self,
        payload: &[u8],
        descriptors: &DescriptorList<'d>,
    ) -> Option<HashedDescriptors<'d>> {
        let (mut hashed, mut start, mut bytes) = (Vec::new(), 0, payload.len() + IDEM_GROWTH_BYTES);
        for end in descriptors.ends() {
            let end = usize::from(*end);
            let pairs = descriptors.attributes().get(std::mem::replace(&mut start, end)..end)?;
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
    fn work_id(&mut self, lease: Option<u64>, is_named: bool) -> RecordedId {
        match lease {
            Some(lease) if !is_named || self.repeats.is_first(lease) => self.lease_id(lease),
            _ => {
                self.unleased += 1;
                RecordedId::Number(self.unleased)
            }
        }
    }

    fn lease_id(&self, lease: u64) -> RecordedId {
        RecordedId::Lease(letters(self.key.digest("lease", &lease.to_le_bytes())))
    }

    fn idem(&self, options: &RequestOptions<'_>) -> Option<String> {
        options.idem.map(|idem| self.idem_as_told(idem))
    }

    fn idem_as_told(&self, idem: &[u8]) -> String {
        letters(self.key.digest("idem", idem))
    }

    fn line(&mut self, line: &RecordedLine<'_>, at: Timestamp, to: &mut Vec<u8>) -> io::Result<()> {
        // Concurrent threads queue events in the order of their decisions, which their clocks may not follow.
        self.newest = at.as_nanos().saturating_add_signed(self.utc).max(self.newest);
        self.written.lines += 1;
        line.write(self.newest, to)
    }
}

/// Converts a cost to a number of the trace; larger ones saturate, as no rule can count them.
fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
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

/// Retries come within a minute.
const REPEATS_MAX: usize = 65_536;

/// The growth of a payload by hashing `idem` and `of`, in bytes at most.
const IDEM_GROWTH_BYTES: usize = 32;
