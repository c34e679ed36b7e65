//! Passes requests from frames to the engine, and writes the engine's answers as replies.

use tracing::warn;

use super::answer::{AfterFrame, UnwrittenGrants};
use super::membership::Membership;
use crate::clock::{Micros, Now};
use crate::engine::{
    self, ChargeError, Decider, Engine, EngineAnswer, IdempotencyKey, KnownSelection, LimitView,
    MatchingLimit, Op, RemoteCheckResult, UnitNumbers, Unmatched, Verdict,
};
use crate::protocol::{
    self, COST_MAX, ChargeFrame, CheckRequest, Code, DecisionReply, DescriptorList, LimitEntry,
    RequestOptions, ShapedCheck, WireList, WireReply, WorkOutcome, encode_decision, encode_reply,
};
use crate::record::NotedKind;

#[derive(Clone, Copy)]
pub(super) struct RequestContext<'a> {
    pub(super) client: &'a Membership,
    pub(super) payload: &'a [u8],
    pub(super) descriptors: &'a DescriptorList<'a>,
    pub(super) now: Now,
}

/// The remote check of a request: its result, if the request has waited for one, and whether it may wait for another.
pub(super) struct RemoteCheck<'a> {
    pub(super) result: Option<RemoteCheckResult<'a>>,
    pub(super) may_wait: bool,
}

impl<'a> RequestContext<'a> {
    /// Makes the request of a frame for the engine.
    pub(super) fn check_request<'r>(&self, op: Op, frame: &'r CheckRequest<'a>) -> engine::Request<'r>
    where
        'a: 'r,
    {
        let (cost, oversized) = to_engine_cost(&frame.cost);
        engine::Request {
            cost,
            oversized,
            priority: frame.priority,
            wait_max: frame.options.max_wait_us.map(Micros),
            idempotency_key: frame.options.idem.map(|name| self.idempotency_key(name)),
            session: Some(&self.client.session),
            id: frame.id,
            queued: frame.options.queued_us.map(Micros),
            lists_all_limits: frame.options.all,
            ..engine::Request::new(op, frame.domain, self.engine_descriptors())
        }
    }

    /// The same for a frame of the known shape. `known_selection`: of that shape.
    pub(super) fn shaped_request(
        &self,
        check: &ShapedCheck<'a>,
        known_selection: &'a KnownSelection,
    ) -> engine::Request<'a> {
        engine::Request {
            cost: engine::Cost::Requests(check.cost),
            session: Some(&self.client.session),
            id: check.id,
            known_selection: Some(known_selection),
            ..engine::Request::new(check.op, check.domain, self.engine_descriptors())
        }
    }

    /// Decides the request, `remote` with the result of its remote check, and writes the reply, unless it must wait for a
    /// remote check.
    pub(super) fn decide(
        &self,
        request: &engine::Request<'_>,
        remote: Option<RemoteCheckResult<'_>>,
        decider: &mut Decider,
        replies: &mut Vec<u8>,
        grants: &mut UnwrittenGrants,
    ) -> AfterFrame {
        let engine::Request { id, domain, op, .. } = *request;
        if self.is_closed(domain) {
            return self.refuse_domain(Some(id), domain, replies);
        }
        #[cfg(all(debug_assertions, feature = "test-hooks"))]
        stall_if_requested(self.descriptors);
        let answer = match remote {
            None => decider.decide(request, self.now),
            Some(result) => decider.resume(request, result, self.now),
        };
        match answer {
            EngineAnswer::Decided(decision) => {
                let lease = decision.lease;
                lease.into_iter().for_each(|lease| grants.add(lease));
                write_decision(replies, request, &decision);
                self.client.record_in(domain, self.now.at, || self.decided_event(&decision));
                if lease.is_some() {
                    grants.set_reply_end(replies.len());
                }
                if let Some(reason) = decision.unmatched
                    && (reason == Unmatched::Domain || op != Op::Peek)
                {
                    return AfterFrame::Unmatched(reason);
                }
            }
            EngineAnswer::Conflict => self.write_error(Some(id), Code::Invalid, CONFLICT, replies),
            EngineAnswer::TooManyLeases => {
                self.write_error(Some(id), Code::Quota, TOO_MANY_LEASES, replies);
            }
            EngineAnswer::RemoteCheck(shortfalls) => return AfterFrame::Wait(id, shortfalls),
        }
        AfterFrame::Continue
    }

    /// Charges, and replies whether anything was charged.
    pub(super) fn charge(
        &self,
        charge: &ChargeFrame<'_>,
        decider: &mut Decider,
        replies: &mut Vec<u8>,
    ) -> AfterFrame {
        self.apply_reports(&charge.options);
        if self.is_closed(charge.domain) {
            return self.refuse_domain(charge.id, charge.domain, replies);
        }
        let amount = match &charge.amount {
            protocol::AmountField::Requests(amount) => engine::Amount::Requests(*amount),
            protocol::AmountField::Units(named) => engine::Amount::Units(named),
        };
        let request = engine::Charge {
            domain: charge.domain,
            descriptors: self.engine_descriptors(),
            amount,
            idempotency_key: charge.options.idem.map(|name| self.idempotency_key(name)),
            refund_of: charge.options.of.map(|reference| engine::RefundBy { user: self.user(), reference }),
            trusted: self.client.shared.options.access.trusts_refunds(charge.domain),
        };
        let charged = decider.charge(&request, self.now);
        if charged.is_ok() {
            let event = || NotedKind::Charged(self.payload.into());
            self.client.record_in(charge.domain, self.now.at, event);
        }
        match (charged, charge.id) {
            (Ok(ok), Some(id)) => encode_reply(replies, &WireReply::Done { id, ok }),
            (Err(ChargeError::Conflict(_)), id) => self.write_error(id, Code::Invalid, CONFLICT, replies),
            (Err(ChargeError::NoRefundReference), id) => {
                self.write_error(id, Code::NotAllowed, NO_REFUND_REFERENCE, replies);
            }
            (Ok(_), None) => {}
        }
        AfterFrame::Continue
    }

    /// Ends a lease, and replies whether there was one.
    pub(super) fn release(
        &self,
        id: Option<u64>,
        lease: u64,
        outcome: WorkOutcome,
        replies: &mut Vec<u8>,
    ) -> AfterFrame {
        let ok = self.engine().release_lease(&self.client.session, lease, outcome, self.now);
        if ok {
            self.client.record(self.now.at, || NotedKind::Ended(lease, outcome));
        }
        write_done(id, ok, replies)
    }

    /// Restarts the time of a lease, and replies whether there is one.
    pub(super) fn renew(&self, id: u64, lease: u64, replies: &mut Vec<u8>) -> AfterFrame {
        let ok = self.engine().renew_lease(&self.client.session, lease, self.now);
        if ok {
            self.client.record(self.now.at, || NotedKind::Renewed(lease));
        }
        write_done(Some(id), ok, replies)
    }

    pub(super) fn signal(
        &self,
        id: Option<u64>,
        pool: &str,
        name: &str,
        permille: u16,
        replies: &mut Vec<u8>,
    ) -> AfterFrame {
        #[cfg(all(debug_assertions, feature = "test-hooks"))]
        assert!(name != PANIC_SIGNAL, "asked to panic");
        let taken = self.engine().record_pushed_signal(&self.client.session, pool, name, permille, self.now);
        match taken {
            Err(not_its_pool) => {
                let message = format!("{not_its_pool}, which `{pool}` is not");
                self.write_error(id, Code::NotAllowed, &message, replies);
                AfterFrame::Continue
            }
            Ok(()) => {
                self.client.record(self.now.at, || NotedKind::Signal { name: name.into(), permille });
                write_done(id, true, replies)
            }
        }
    }

    /// Applies the reports in a request's options, also if the request itself is refused.
    pub(super) fn apply_reports(&self, options: &RequestOptions<'_>) {
        self.client.note_missed(&options.missed);
        self.client.abandon_requests(&options.abandoned, self.now);
    }

    fn decided_event(&self, decision: &engine::Decision<'_>) -> NotedKind {
        let is_refused = !matches!(decision.verdict, Verdict::Allow | Verdict::Wait);
        NotedKind::Decided {
            payload: self.payload.into(),
            verdict: decision.verdict,
            refused_by: decision.rule_name().filter(|_| is_refused).map(Into::into),
            lease: decision.lease,
        }
    }

    fn engine(&self) -> &'a Engine {
        &self.client.shared.engine
    }

    fn user(&self) -> u32 {
        self.client.key.user
    }

    fn is_closed(&self, domain: &str) -> bool {
        self.client.is_restricted && !self.client.shared.options.access.is_open(domain, self.user())
    }

    /// Replies that the domain is closed to the user. The request changes nothing.
    #[cold]
    fn refuse_domain(&self, id: Option<u64>, domain: &str, replies: &mut Vec<u8>) -> AfterFrame {
        // The domain is one of the settings, so this logs no text of a client.
        warn!(
            domain,
            user = self.user(),
            "this domain is not open to this user: its requests are refused; \
             help: add the user to `domains.{domain}.uids`"
        );
        self.client.shared.options.telemetry.add_turned_away(domain, self.user());
        let message = format!("the domain `{domain}` is not open to user {}", self.user());
        self.write_error(id, Code::NotAllowed, &message, replies);
        AfterFrame::Continue
    }

    fn write_error(&self, id: Option<u64>, code: Code, message: &str, replies: &mut Vec<u8>) {
        self.client.shared.write_error(id, code, message, replies);
    }

    fn engine_descriptors(&self) -> engine::Descriptors<'a> {
        engine::Descriptors { attributes: self.descriptors.attributes(), ends: self.descriptors.ends() }
    }

    fn idempotency_key<'n>(&self, name: &'n [u8]) -> IdempotencyKey<'n>
    where
        'a: 'n,
    {
        IdempotencyKey { session: &self.client.session_name, user: self.user(), name }
    }
}

/// Converts a cost for the engine. Returns also whether it is above the largest cost that rules can count.
pub fn to_engine_cost<'c>(cost: &'c protocol::CostField<'_>) -> (engine::Cost<'c>, bool) {
    let is_oversized = |cost: u64| cost > u64::from(COST_MAX);
    match cost {
        protocol::CostField::Requests(cost) => (engine::Cost::Requests(saturate(*cost)), is_oversized(*cost)),
        protocol::CostField::Units(named) => {
            (engine::Cost::Units(named), named.iter().any(|(_, cost)| is_oversized(cost)))
        }
    }
}

/// Converts to the largest cost that rules can count, saturating.
fn saturate(cost: u64) -> u32 {
    u32::try_from(cost).unwrap_or(COST_MAX)
}

impl<'a> UnitNumbers<u32> for WireList<'a, (&'a str, u64)> {
    fn each(&self, visit: &mut dyn FnMut(&str, u32)) {
        self.iter().for_each(|(unit, cost)| visit(unit, saturate(cost)));
    }
}

impl<'a> UnitNumbers<i64> for WireList<'a, (&'a str, i64)> {
    fn each(&self, visit: &mut dyn FnMut(&str, i64)) {
        self.iter().for_each(|(unit, amount)| visit(unit, amount));
    }
}

const CONFLICT: &str = "`idem` was used for another request: descriptors, cost and priority must be the same";

const TOO_MANY_LEASES: &str = "this session or its user holds too many leases: release those that ended";

const NO_REFUND_REFERENCE: &str = "a negative amount must name in `of` the `idem` or lease that it refunds, \
    unless the settings say `refunds: trusted` of its domain";

/// The signal that makes a debug build panic, to test a panic outside of a decision.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
const PANIC_SIGNAL: &str = "debug-panic";

/// Writes the reply, unless the client requested none.
pub(super) fn write_done(id: Option<u64>, ok: bool, replies: &mut Vec<u8>) -> AfterFrame {
    if let Some(id) = id {
        encode_reply(replies, &WireReply::Done { id, ok });
    }
    AfterFrame::Continue
}

/// Blocks the thread if the request has the stall attribute, to test a hanging thread. Debug builds only.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
fn stall_if_requested(descriptors: &DescriptorList<'_>) {
    let attribute = descriptors.attributes().iter().find(|(name, _)| *name == STALL_ATTRIBUTE);
    if let Some(millis) = attribute.and_then(|(_, millis)| millis.parse().ok()) {
        std::thread::sleep(std::time::Duration::from_millis(millis));
    }
}

/// The attribute that makes a debug build block for its value in milliseconds.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
const STALL_ATTRIBUTE: &str = "debug-stall";

fn write_decision(replies: &mut Vec<u8>, request: &engine::Request<'_>, decision: &engine::Decision<'_>) {
    let notes: Vec<_> = decision.reply_notes().collect();
    let all = || decision.limits().map(limit_entry).collect::<Vec<_>>();
    // A repeated grant does not know them if the first request did not ask, or if the rules have changed.
    let has_some = decision.binding.is_some_and(|view| view.rule.advertise);
    let all = request.lists_all_limits.then(all).filter(|all| !all.is_empty() || !has_some);
    let mut reply = DecisionReply {
        retry_us: decision.retry_after.map(|retry| retry.0),
        notes: &notes,
        all: all.as_deref(),
        ..DecisionReply::new(request.id, decision.verdict)
    };
    if let Some(LimitView { rule, level }) = decision.binding {
        reply.limit = Some(level.limit);
        reply.window_us = Some(level.window.0);
        reply.help = rule.help.as_deref();
        reply.hide = !rule.advertise;
        reply.unit = rule.unit.as_deref();
    }
    if let Some((remaining, reset)) = decision.remaining() {
        reply.remaining = Some(remaining);
        reply.reset_us = reset.map(|reset| reset.0);
    }
    if let Some(listed) = decision.listed {
        reply.help = listed.help.as_deref();
    }
    reply.rate = decision.rate.filter(|_| !reply.hide);
    reply.blocked = decision.blocked;
    let digest = decision.refused_key().filter(|_| !reply.hide).map(|key| key.to_hex());
    reply.digest = digest.as_deref();
    reply.rule = decision.rule_name();
    reply.lease = decision.lease;
    encode_decision(replies, &reply);
}

fn limit_entry(limit: MatchingLimit<'_>) -> LimitEntry<'_> {
    let view = limit.view;
    LimitEntry {
        rule: &view.rule.name,
        limit: view.level.limit,
        window_us: view.level.window.0,
        remaining: view.level.remaining,
        reset_us: view.level.reset.0,
        refuses: limit.refuses,
        descriptors: limit.descriptors.into(),
    }
}
