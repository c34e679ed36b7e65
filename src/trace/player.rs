//! Runs an engine in virtual time: its own timers run at their time, before the next event of the trace.

use std::sync::Arc;
use std::time::Duration;

use super::callers::ReplayCallers;
use super::event::{HelloEvent, LeaseOwner, SignalEvent};
use super::ids::IdDigest;
use super::ticks::Ticks;
use super::work::{TraceWork, USER};
use crate::clock::{Now, Timestamp};
use crate::engine::{
    self, Charge, ChargeError, Conflict, Decider, Decision, Engine, EngineAnswer, HashKey, Op, RefundBy,
    RefundReference, Request, SessionError, TICK_MILLIS, Totals, WorkOutcome, WrongPool,
};
use crate::rules::{Domain, Mode};

pub(crate) struct Player {
    engine: Arc<Engine>,
    decider: Decider,
    now: Now,
    ticks: Ticks,
    last_sweep: Option<Timestamp>,
    /// Events since the last sweep.
    played: u32,
    work: TraceWork,
    callers: ReplayCallers,
    /// Requests without a decision because their session held too many leases.
    beyond_quota: u64,
    rules: Vec<Arc<Domain>>,
    /// Whether the rules have pools with shedding.
    watches: bool,
}

/// Why an event cannot be played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotPlayed {
    #[error("{0}: repeats of one `idem` ask the same")]
    Repeated(#[from] Conflict),
    #[error("{0}")]
    NotCharged(ChargeError),
    #[error("{0}: `bye` ends one")]
    NotOpened(#[from] SessionError),
    #[error("{0}: name a session of that pool, or none")]
    NotItsPool(#[from] WrongPool),
}

impl Player {
    /// Makes an engine with these rules and no state.
    pub(crate) fn new(rules: Vec<Arc<Domain>>, seed: u64) -> Player {
        let mut key = [0; 16];
        key.iter_mut().zip(seed.to_le_bytes()).for_each(|(to, from)| *to = from);
        let hash_key = HashKey::from_bytes(key);
        let options = engine::EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: MEMORY_BYTES };
        let engine = Arc::new(Engine::new(options));
        let callers = ReplayCallers::default();
        let decider = engine.decider();
        let mut player = Player {
            engine,
            decider,
            now: Now::default(),
            ticks: Ticks::default(),
            last_sweep: None,
            played: 0,
            work: TraceWork::default(),
            callers,
            beyond_quota: 0,
            rules: Vec::new(),
            watches: false,
        };
        player.reload(rules);
        player
    }

    /// Advances virtual time and runs the ticks and expiries that are due.
    pub(crate) fn advance(&mut self, at: Timestamp) {
        self.now = Now { at, utc_offset_nanos: 0 };
        if self.watches || self.work.has_begun() {
            self.ticks.run(&self.engine, at);
            self.engine.end_expired_leases(self.now);
        } else {
            self.ticks.pass(at);
        }
        self.sweep(at);
    }

    fn sweep(&mut self, at: Timestamp) {
        let last = *self.last_sweep.get_or_insert(at);
        self.played = self.played.saturating_add(1);
        // The last sweep in a gap covers all. Sweeps also need some events between them, as replays are fast.
        let passed = at.since(last);
        let due = passed.as_millis() / u128::from(TICK_MILLIS);
        if due > 0 && (self.played >= EVENTS_PER_SWEEP || passed >= SWEEP_DUE) {
            self.played = 0;
            let nanos = u64::try_from(due).unwrap_or(u64::MAX).saturating_mul(TICK_MILLIS * NANOS_PER_MILLI);
            let tick = last.after(Duration::from_nanos(nanos));
            self.engine.sweep(Now { at: tick, utc_offset_nanos: 0 });
            self.last_sweep = Some(tick);
        }
    }

    /// Decides a request. `None`: its session holds too many leases; the daemon answers with an error then,
    /// and clients continue.
    ///
    /// # Errors
    /// A retry differs from the request with the same `idem`; there are too many sessions.
    pub(crate) fn judge(
        &mut self,
        request: &Request<'_>,
        by: &LeaseOwner<'_>,
    ) -> Result<Option<Decision<'_>>, NotPlayed> {
        // Only acquires, and requests with shedding pools, need a session.
        let session = if request.op == Op::Acquire || self.watches {
            Some(self.work.session(&self.engine, by, self.now)?)
        } else {
            None
        };
        let request = Request { session: session.as_ref(), ..*request };
        let decision = match self.decider.decide(&request, self.now) {
            EngineAnswer::Decided(decision) => decision,
            EngineAnswer::Conflict => return Err(Conflict.into()),
            // No requests wait here, so the engine never asks for a remote check.
            EngineAnswer::RemoteCheck(_) => return Ok(None),
            EngineAnswer::TooManyLeases => {
                self.beyond_quota += 1;
                return Ok(None);
            }
        };
        if request.op != Op::Peek {
            self.callers.note(request.domain, decision.checks().map(|check| (check.rule, check.key)));
        }
        if let (Some(id), Some(lease), Some(session)) = (by.id, decision.lease, session) {
            self.work.note(&self.engine, id, session, lease, self.now);
        }
        Ok(Some(decision))
    }

    /// Charges after the fact, or refunds a lease; returns whether a rule or lease matched.
    pub(crate) fn charge(&mut self, charge: &Charge<'_>, of: Option<IdDigest>) -> Result<bool, NotPlayed> {
        let mut charge = *charge;
        if let Some(id) = of {
            // No lease has the number 0.
            let lease = self.work.lease(id).unwrap_or_default();
            charge.refund_of = Some(RefundBy { user: USER, reference: RefundReference::Lease(lease) });
        }
        Ok(self.decider.charge(&charge, self.now)?)
    }

    /// Ends a lease; returns whether it existed.
    pub(crate) fn release(&mut self, id: IdDigest, outcome: WorkOutcome) -> bool {
        self.work.release(&self.engine, id, outcome, self.now)
    }

    /// Renews a lease; returns whether it existed.
    pub(crate) fn renew(&mut self, id: IdDigest) -> bool {
        self.work.renew(&self.engine, id, self.now)
    }

    /// Opens a session.
    ///
    /// # Errors
    /// It exists with another pool or other slots; there are too many sessions.
    pub(crate) fn hello(&mut self, hello: &HelloEvent<'_>) -> Result<(), NotPlayed> {
        Ok(self.work.hello(&self.engine, hello, self.now)?)
    }

    /// Closes a session and ends its leases.
    pub(crate) fn bye(&mut self, session: &str) {
        self.work.bye(&self.engine, session, self.now);
    }

    /// Applies an application's signal.
    pub(super) fn signal(&mut self, signal: &SignalEvent<'_>) -> Result<(), NotPlayed> {
        let SignalEvent { pool, name, permille, .. } = *signal;
        let session = match signal.session {
            None => self.work.session_in(&self.engine, pool, self.now)?,
            session => self.work.session(&self.engine, &LeaseOwner { session, id: None }, self.now)?,
        };
        Ok(self.engine.record_pushed_signal(&session, pool, name, permille, self.now)?)
    }

    pub(crate) fn reload(&mut self, rules: Vec<Arc<Domain>>) {
        self.callers.number(&rules);
        self.watches = rules.iter().any(|domain| !domain.sheds().is_empty());
        self.rules.clone_from(&rules);
        self.engine.install_rules(rules);
    }

    pub(crate) fn rules(&self) -> &[Arc<Domain>] {
        &self.rules
    }

    pub(crate) fn totals(&self) -> Totals {
        self.engine.totals()
    }

    pub(super) fn beyond_quota(&self) -> u64 {
        self.beyond_quota
    }

    pub(crate) fn callers(&self) -> &ReplayCallers {
        &self.callers
    }
}

impl From<ChargeError> for NotPlayed {
    fn from(wrong: ChargeError) -> NotPlayed {
        match wrong {
            ChargeError::Conflict(conflict) => NotPlayed::Repeated(conflict),
            ChargeError::NoRefundReference => NotPlayed::NotCharged(wrong),
        }
    }
}

/// The daemon's default, so that a replay evicts as the daemon would.
const MEMORY_BYTES: usize = 64 << 20;

/// A sweep may cost a thousand decisions; at most this many keys stay that the daemon would have swept.
const EVENTS_PER_SWEEP: u32 = 4_096;

/// Sweep at least this often: timestamps of states wrap, and must be swept long before.
const SWEEP_DUE: Duration = Duration::from_secs(86_400);

const NANOS_PER_MILLI: u64 = 1_000_000;
