//! An engine in virtual time: what it does by itself is done, each at its moment, before what the trace says next.

use std::sync::Arc;
use std::time::Duration;

use super::callers::Callers;
use super::event::{By, Hello, Signal};
use super::ids::Id;
use super::ticks::Ticks;
use super::work::{USER, Work};
use crate::clock::{Now, Timestamp};
use crate::engine::{
    self, Answer, Charge, Conflict, Decider, Decision, Engine, HashKey, NotCharged, NotItsPool, NotOpened,
    Of, Op, RefundBy, Request, TICK_MILLIS, Totals, WorkOutcome,
};
use crate::rules::{Domain, Mode, RuleSet};

/// An engine in virtual time.
pub(crate) struct Player {
    engine: Arc<Engine>,
    decider: Decider,
    now: Now,
    ticks: Ticks,
    last_sweep: Option<Timestamp>,
    /// Events since then.
    played: u32,
    work: Work,
    callers: Callers,
    /// Requests that were not judged, for their session held too many leases.
    beyond_quota: u64,
    /// In force.
    rules: Vec<Arc<Domain>>,
    /// Whether they watch over a pool.
    watches: bool,
}

/// Why an event cannot be played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotPlayed {
    #[error("{0}: repeats of one `idem` ask the same")]
    Repeated(#[from] Conflict),
    #[error("{0}")]
    NotCharged(NotCharged),
    #[error("{0}: `bye` ends one")]
    NotOpened(#[from] NotOpened),
    #[error("{0}: name a session of that pool, or none")]
    NotItsPool(#[from] NotItsPool),
}

impl Player {
    /// A daemon's engine with these rules in force and nothing remembered.
    pub(crate) fn new(rules: Vec<Arc<Domain>>, seed: u64) -> Player {
        let mut key = [0; 16];
        key.iter_mut().zip(seed.to_le_bytes()).for_each(|(to, from)| *to = from);
        let hash_key = HashKey::from_bytes(key);
        let options = engine::Options { hash_key, mode: Mode::Enforce, memory_bytes_max: MEMORY_BYTES };
        let engine = Arc::new(Engine::new(options));
        let callers = Callers::default();
        let decider = engine.decider();
        let mut player = Player {
            engine,
            decider,
            now: Now::default(),
            ticks: Ticks::default(),
            last_sweep: None,
            played: 0,
            work: Work::default(),
            callers,
            beyond_quota: 0,
            rules: Vec::new(),
            watches: false,
        };
        player.reload(rules);
        player
    }

    /// Moves time on, and lets the engine do what it does by itself on the way.
    pub(crate) fn advance(&mut self, at: Timestamp) {
        self.now = Now { at, utc: 0 };
        if self.watches || self.work.has_begun() {
            self.ticks.run(&self.engine, at);
            self.engine.end_due(self.now);
        } else {
            self.ticks.pass(at);
        }
        self.sweep(at);
    }

    fn sweep(&mut self, at: Timestamp) {
        let last = *self.last_sweep.get_or_insert(at);
        self.played = self.played.saturating_add(1);
        // Of the sweeps that fall into a gap the last does the work of all; and an hour goes by in a second here, so they
        // also stand some events apart.
        let passed = at.since(last);
        let due = passed.as_millis() / u128::from(TICK_MILLIS);
        if due > 0 && (self.played >= EVENTS_PER_SWEEP || passed >= SWEEP_DUE) {
            self.played = 0;
            let nanos = u64::try_from(due).unwrap_or(u64::MAX).saturating_mul(TICK_MILLIS * NANOS_PER_MILLI);
            let tick = last.after(Duration::from_nanos(nanos));
            self.engine.sweep(Now { at: tick, utc: 0 });
            self.last_sweep = Some(tick);
        }
    }

    /// Judges a piece of work. `None`: it was not judged, for its session holds too many leases; the daemon answers with
    /// an error then, and clients let the work go on.
    ///
    /// # Errors
    /// It is no repeat of what it says; there are too many sessions.
    pub(crate) fn judge(
        &mut self,
        request: &Request<'_>,
        by: &By<'_>,
    ) -> Result<Option<Decision<'_>>, NotPlayed> {
        // What is no work and comes before no pool needs no session.
        let session = if request.op == Op::Acquire || self.watches {
            Some(self.work.session(&self.engine, by, self.now)?)
        } else {
            None
        };
        let request = Request { session: session.as_ref(), ..*request };
        let decision = match self.decider.decide(&request, self.now) {
            Answer::Decided(decision) => decision,
            Answer::Conflict => return Err(Conflict.into()),
            // Nobody may wait here, so nobody is told to ask.
            Answer::Ask(_) => return Ok(None),
            Answer::Quota => {
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

    /// Charges after the fact, or refunds this work; whether there was something to charge or to refund.
    pub(crate) fn charge(&mut self, charge: &Charge<'_>, of: Option<Id>) -> Result<bool, NotPlayed> {
        let mut charge = *charge;
        if let Some(id) = of {
            // No lease has the number 0.
            let lease = self.work.lease(id).unwrap_or_default();
            charge.of = Some(RefundBy { user: USER, of: Of::Lease(lease) });
        }
        Ok(self.decider.charge(&charge, self.now)?)
    }

    /// Ends a piece of work; whether it was there.
    pub(crate) fn release(&mut self, id: Id, outcome: WorkOutcome) -> bool {
        self.work.release(&self.engine, id, outcome, self.now)
    }

    /// Starts the time of a piece of work again; whether it was there.
    pub(crate) fn renew(&mut self, id: Id) -> bool {
        self.work.renew(&self.engine, id, self.now)
    }

    /// A process begins.
    ///
    /// # Errors
    /// It is there already with another pool or other slots; there are too many.
    pub(crate) fn hello(&mut self, hello: &Hello<'_>) -> Result<(), NotPlayed> {
        Ok(self.work.hello(&self.engine, hello, self.now)?)
    }

    /// A process ends, and all its work with it.
    pub(crate) fn bye(&mut self, session: &str) {
        self.work.bye(&self.engine, session, self.now);
    }

    /// Takes a reading of an application.
    pub(super) fn signal(&mut self, signal: &Signal<'_>) -> Result<(), NotPlayed> {
        let Signal { pool, name, permille, .. } = *signal;
        let session = match signal.session {
            None => self.work.session_in(&self.engine, pool, self.now)?,
            session => self.work.session(&self.engine, &By { session, id: None }, self.now)?,
        };
        Ok(self.engine.signal(&session, pool, name, permille, self.now)?)
    }

    /// Puts other rules in force.
    pub(crate) fn reload(&mut self, rules: Vec<Arc<Domain>>) {
        self.callers.number(&rules);
        self.watches = rules.iter().any(|domain| !domain.sheds().is_empty());
        self.rules.clone_from(&rules);
        self.engine.install(RuleSet::new(rules));
    }

    /// The rules in force.
    pub(crate) fn rules(&self) -> &[Arc<Domain>] {
        &self.rules
    }

    /// What has been counted.
    pub(crate) fn totals(&self) -> Totals {
        self.engine.totals()
    }

    /// Requests that were not judged, for their session held too many leases.
    pub(super) fn beyond_quota(&self) -> u64 {
        self.beyond_quota
    }

    /// How many callers each rule has seen.
    pub(crate) fn callers(&self) -> &Callers {
        &self.callers
    }
}

impl From<NotCharged> for NotPlayed {
    fn from(wrong: NotCharged) -> NotPlayed {
        match wrong {
            NotCharged::Conflict(conflict) => NotPlayed::Repeated(conflict),
            NotCharged::RefundsNothing => NotPlayed::NotCharged(wrong),
        }
    }
}

/// As the daemon has by default, so that a replay forgets what it would forget.
const MEMORY_BYTES: usize = 64 << 20;

/// A sweep looks through much of a table, which may take as long as a thousand decisions. Until the next one at most so
/// many keys are kept that the daemon would have swept away: nothing beside its budget.
const EVENTS_PER_SWEEP: u32 = 4_096;

/// However few events there are: states read time as a circle, which is to be far from going round between two sweeps.
const SWEEP_DUE: Duration = Duration::from_secs(86_400);

const NANOS_PER_MILLI: u64 = 1_000_000;
