//! A request from its frame to the engine, and what the engine says into a frame.

use std::sync::Arc;

use super::Shared;
use super::answer::Standing;
use super::grants::Grants;
use super::telemetry::Client;
use super::units::{LongUnits, engine_cost};
use crate::clock::{Micros, Now};
use crate::engine::{
    self, Answer, CallResult, Decider, Engine, LimitView, NotCharged, Op, Repeat, Session, Ticket,
};
use crate::protocol::{
    self, Charge, Code, Decision, Descriptors, Judge, LimitEntry, Options, Reply, encode_decision,
    encode_reply,
};
use crate::record::{SESSION_BYTES, What};

/// One request, and who asks it.
#[derive(Clone, Copy)]
pub(super) struct Asking<'a> {
    pub(super) shared: &'a Shared,
    /// As it came.
    pub(super) payload: &'a [u8],
    pub(super) descriptors: &'a Descriptors<'a>,
    pub(super) user: u32,
    /// Whether some domain is not open to this user: only then it is asked whether this one is.
    pub(super) confined: bool,
    pub(super) session: &'a Session,
    /// What the session is called in the names of repeated requests.
    pub(super) named: &'a [u8; SESSION_BYTES],
    /// What the client is written in.
    pub(super) client: Client,
    pub(super) now: Now,
}

/// Whether a request may wait for a call, and what came of one.
pub(super) struct Waits<'a> {
    /// What came of the call that it waited for.
    pub(super) result: Option<CallResult<'a>>,
    pub(super) may_wait: bool,
    /// What to call for, where it is to wait.
    pub(super) ticket: &'a mut Option<Arc<Ticket>>,
}

impl<'a> Asking<'a> {
    /// Judges, and writes what comes of it, unless it is to wait for a call.
    pub(super) fn judge(
        &self,
        op: Op,
        judge: &Judge<'_>,
        call: Waits<'_>,
        decider: &mut Decider,
        replies: &mut Vec<u8>,
        grants: &mut Grants,
    ) -> Standing {
        if call.result.is_none() {
            self.take_reports(&judge.options);
        }
        if self.is_closed(judge.domain) {
            return self.turn_away(Some(judge.id), judge.domain, replies);
        }
        #[cfg(all(debug_assertions, feature = "test-hooks"))]
        stall_if_asked(self.descriptors);
        let long;
        let (cost, oversized) = match (&judge.cost, engine_cost(&judge.cost)) {
            (protocol::Cost::Units(named), (cost, oversized)) => {
                long = LongUnits::new(*named);
                (long.as_ref().map_or(cost, |long| engine::Cost::Units(long)), oversized)
            }
            (protocol::Cost::Requests(_), cost) => cost,
        };
        let request = engine::Request {
            cost,
            oversized,
            priority: judge.priority,
            wait_max: judge.options.max_wait_us.map(Micros),
            repeat: judge.options.idem.map(|name| self.repeat(name)),
            session: Some(self.session),
            id: judge.id,
            queued: judge.options.queued_us.map(Micros),
            all: judge.options.all,
            may_wait: call.may_wait,
            ..engine::Request::new(op, judge.domain, self.of_engine())
        };
        let answer = match call.result {
            None => decider.decide(&request, self.now),
            Some(result) => decider.resume(&request, result, self.now),
        };
        match answer {
            Answer::Decided(decision) => {
                let lease = decision.lease;
                lease.into_iter().for_each(|lease| grants.add(lease));
                write_decision(replies, judge, &decision);
                if self.shared.recorder.is_on() {
                    self.note_judged(judge.domain, &decision);
                }
                if lease.is_some() {
                    grants.end_at(replies.len());
                }
            }
            Answer::Conflict => self.write_conflict(replies, Some(judge.id)),
            Answer::Quota => self.write_quota(replies, judge.id),
            Answer::Ask(ticket) => *call.ticket = Some(ticket),
        }
        Standing::Kept
    }

    /// Charges, and says whether there was what to charge.
    pub(super) fn charge(
        &self,
        charge: &Charge<'_>,
        decider: &mut Decider,
        replies: &mut Vec<u8>,
    ) -> Standing {
        self.take_reports(&charge.options);
        if self.is_closed(charge.domain) {
            return self.turn_away(charge.id, charge.domain, replies);
        }
        let long;
        let amount = match &charge.amount {
            protocol::Amount::Requests(amount) => engine::Amount::Requests(*amount),
            protocol::Amount::Units(named) => {
                long = LongUnits::new(*named);
                engine::Amount::Units(long.as_ref().map_or(named, |long| long))
            }
        };
        let request = engine::Charge {
            domain: charge.domain,
            descriptors: self.of_engine(),
            amount,
            repeat: charge.options.idem.map(|name| self.repeat(name)),
            of: charge.options.of.map(|of| engine::RefundBy { user: self.user, of: named(of) }),
            trusted: self.shared.access.trusts_refunds(charge.domain),
        };
        let charged = decider.charge(&request, self.now);
        if self.shared.recorder.is_on() && charged.is_ok() {
            self.note_charged(charge.domain);
        }
        match (charged, charge.id) {
            (Ok(ok), Some(id)) => encode_reply(replies, &Reply::Done { id, ok }),
            (Err(NotCharged::Conflict(_)), id) => self.write_conflict(replies, id),
            (Err(NotCharged::RefundsNothing), id) => self.write_bare_refund(replies, id),
            (Ok(_), None) => {}
        }
        Standing::Kept
    }

    /// The reports that ride on a request have arrived whatever becomes of it.
    fn take_reports(&self, options: &Options<'_>) {
        self.shared.report(self.client, &options.missed);
        if !options.abandoned.is_empty() {
            let ended = self.engine().abandon(self.session, &mut options.abandoned.iter(), self.now);
            if self.shared.recorder.is_on() {
                let dropped = |lease| self.note(What::Ended(lease, engine::WorkOutcome::Dropped));
                ended.into_iter().for_each(dropped);
            }
        }
    }

    pub(super) fn engine(&self) -> &'a Engine {
        &self.shared.engine
    }

    fn is_closed(&self, domain: &str) -> bool {
        self.confined && !self.shared.access.is_open(domain, self.user)
    }

    /// Answers who may not ask about a domain. Nothing was looked at and nothing changes.
    #[cold]
    fn turn_away(&self, id: Option<u64>, domain: &str, replies: &mut Vec<u8>) -> Standing {
        self.shared.access.tell(domain, self.user, self.now.at);
        self.shared.telemetry.error(Code::NotAllowed);
        if id.is_some() {
            let message = format!("the domain `{domain}` is not open to user {}", self.user);
            encode_reply(replies, &Reply::Error { id, code: Code::NotAllowed, message: &message });
        }
        Standing::Kept
    }

    fn write_quota(&self, replies: &mut Vec<u8>, id: u64) {
        self.shared.telemetry.error(Code::Quota);
        let message = "this session or its user holds too many leases: release what has ended";
        encode_reply(replies, &Reply::Error { id: Some(id), code: Code::Quota, message });
    }

    fn write_conflict(&self, replies: &mut Vec<u8>, id: Option<u64>) {
        self.shared.telemetry.error(Code::Invalid);
        if id.is_some() {
            let message =
                "`idem` was used for another request: descriptors, cost and priority must be the same";
            encode_reply(replies, &Reply::Error { id, code: Code::Invalid, message });
        }
    }

    fn write_bare_refund(&self, replies: &mut Vec<u8>, id: Option<u64>) {
        self.shared.telemetry.error(Code::NotAllowed);
        if id.is_some() {
            let message = "a negative amount must name in `of` the `idem` or lease that it refunds, unless the settings \
                           say `refunds: trusted` of its domain";
            encode_reply(replies, &Reply::Error { id, code: Code::NotAllowed, message });
        }
    }

    fn of_engine(&self) -> engine::Descriptors<'a> {
        engine::Descriptors { attributes: self.descriptors.attributes(), ends: self.descriptors.ends() }
    }

    fn repeat<'n>(&self, name: &'n [u8]) -> Repeat<'n>
    where
        'a: 'n,
    {
        Repeat { session: self.named, user: self.user, name }
    }
}

/// The hook by which tests see what becomes of a thread that hangs. Not in a release build.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
fn stall_if_asked(descriptors: &Descriptors<'_>) {
    let asked = descriptors.attributes().iter().find(|(name, _)| *name == STALL_ATTRIBUTE);
    if let Some(millis) = asked.and_then(|(_, millis)| millis.parse().ok()) {
        std::thread::sleep(std::time::Duration::from_millis(millis));
    }
}

/// The attribute that makes a debug build hang while judging, for so many milliseconds.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
const STALL_ATTRIBUTE: &str = "debug-stall";

fn write_decision(replies: &mut Vec<u8>, judge: &Judge<'_>, decision: &engine::Decision<'_>) {
    let notes: Vec<_> = decision.notes().map(|(kind, rule)| (note_kind(kind), rule)).collect();
    let all: Option<Vec<_>> = judge.options.all.then(|| decision.all().map(limit_entry).collect());
    let mut reply = Decision {
        retry_us: decision.retry.map(|retry| retry.0),
        notes: &notes,
        all: all.as_deref(),
        ..Decision::new(judge.id, verdict(decision.verdict))
    };
    if let Some(LimitView { rule, level }) = decision.binding {
        reply.limit = Some(level.limit);
        reply.window_us = Some(level.window.0);
        reply.remaining = Some(level.remaining);
        reply.reset_us = Some(level.reset.0);
        reply.help = rule.help.as_deref();
        reply.hide = !rule.advertise;
        reply.unit = rule.unit.as_deref();
    }
    if let Some(listed) = decision.listed {
        reply.help = listed.help.as_deref();
    }
    reply.rule = decision.rule_name();
    reply.lease = decision.lease;
    encode_decision(replies, &reply);
}

/// What a refund names.
fn named(of: protocol::Of<'_>) -> engine::Of<'_> {
    match of {
        protocol::Of::Idem(name) => engine::Of::Idem(name),
        protocol::Of::Lease(lease) => engine::Of::Lease(lease),
    }
}

fn limit_entry(view: LimitView<'_>) -> LimitEntry<'_> {
    LimitEntry {
        rule: &view.rule.name,
        limit: view.level.limit,
        window_us: view.level.window.0,
        remaining: view.level.remaining,
        reset_us: view.level.reset.0,
    }
}

fn verdict(verdict: engine::Verdict) -> protocol::Verdict {
    match verdict {
        engine::Verdict::Allow => protocol::Verdict::Allow,
        engine::Verdict::Limit => protocol::Verdict::Limit,
        engine::Verdict::Wait => protocol::Verdict::Wait,
        engine::Verdict::Deny => protocol::Verdict::Deny,
        engine::Verdict::Shed => protocol::Verdict::Shed,
    }
}

fn note_kind(kind: engine::NoteKind) -> protocol::NoteKind {
    match kind {
        engine::NoteKind::Shadow => protocol::NoteKind::Shadow,
        engine::NoteKind::Candidate => protocol::NoteKind::Candidate,
        engine::NoteKind::Over => protocol::NoteKind::Over,
        engine::NoteKind::Near => protocol::NoteKind::Near,
        engine::NoteKind::Quota => protocol::NoteKind::Quota,
    }
}
