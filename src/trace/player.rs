//! Runs an engine in virtual time: its own timers run at their time, before the next event of the trace.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;

use super::course::StepCounts;
use super::event::{Action, IdDigest, LeaseOwner};
use super::rule_records::RuleRecords;
use crate::clock::{Now, Timestamp};
use crate::engine::{
    self, Conflict, ConnectionParams, Decider, Decision, Engine, EngineAnswer, HashKey, Op, RefundBy,
    RefundReference, Request, Session, SessionError, TICK_MILLIS, Totals, WrongPool,
};
use crate::rules::{Domain, Mode};

/// One rule set that plays a trace, and the records of its rules.
pub(crate) struct Player {
    engine: Arc<Engine>,
    decider: Decider,
    now: Now,
    next_tick: Option<Timestamp>,
    last_sweep: Option<Timestamp>,
    /// Events since the last sweep.
    played: u32,
    /// Sessions by the names that the trace gives them.
    named: HashMap<Box<str>, Session>,
    /// Sessions without a name, by pool.
    unnamed: HashMap<Box<str>, Session>,
    leases: ReplayLeases,
    pub(crate) records: RuleRecords,
    /// Counts over time, for a report.
    pub(super) course: Option<StepCounts>,
    /// Requests without a decision because their session held too many leases.
    pub(super) beyond_quota: u64,
    pub(crate) rules: Vec<Arc<Domain>>,
    /// Whether the rules have pools with shedding.
    watches: bool,
}

/// Leases that were granted and not released, by the ids of the trace.
#[derive(Default)]
struct ReplayLeases {
    by_id: HashMap<IdDigest, (Session, u64), FixedState>,
    /// The number of leases above which expired ones are removed.
    until: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotPlayed {
    #[error("{0}: repeats of one `idem` ask the same")]
    Repeated(#[from] Conflict),
    #[error("{0}: `bye` ends one")]
    NotOpened(#[from] SessionError),
    #[error("{0}: name a session of that pool, or none")]
    NotItsPool(#[from] WrongPool),
}

impl Player {
    /// Makes an engine with these rules and no state; `detailed` also collects the data of a report.
    pub(crate) fn new(rules: Vec<Arc<Domain>>, seed: u64, detailed: bool) -> Player {
        let mut key = [0; 16];
        key.iter_mut().zip(seed.to_le_bytes()).for_each(|(to, from)| *to = from);
        let hash_key = HashKey::from_bytes(key);
        let options = engine::EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: MEMORY_BYTES };
        let engine = Arc::new(Engine::new(options));
        let decider = engine.decider();
        let mut player = Player {
            engine,
            decider,
            now: Now::default(),
            next_tick: None,
            last_sweep: None,
            played: 0,
            named: HashMap::new(),
            unnamed: HashMap::new(),
            leases: ReplayLeases::default(),
            records: RuleRecords::new(detailed),
            course: detailed.then(StepCounts::default),
            beyond_quota: 0,
            rules: Vec::new(),
            watches: false,
        };
        player.reload(rules);
        player
    }

    /// Advances virtual time and runs the ticks and expiries that are due.
    pub(crate) fn advance(&mut self, at: Timestamp) {
        if let Some(course) = &mut self.course {
            course.reach(at, || self.engine.totals());
        }
        self.now = Now { at, utc_offset_nanos: 0 };
        if self.watches || !self.named.is_empty() || !self.unnamed.is_empty() {
            self.run_ticks(at);
            self.engine.end_expired_leases(self.now);
        } else {
            self.pass_ticks(at);
        }
        self.sweep(at);
    }

    /// Runs all ticks up to and including `at`; the first one is at the first event.
    fn run_ticks(&mut self, at: Timestamp) {
        let engine = &self.engine;
        let mut next = *self.next_tick.get_or_insert(at);
        let mut run: u32 = 0;
        while next <= at {
            engine.tick(Now { at: next, utc_offset_nanos: 0 });
            let tick = next;
            next = tick.after(TICK);
            if next == tick {
                // The end of representable time.
                break;
            }
            run = run.wrapping_add(1);
            let left = at.since(next);
            if left <= GAP_MIN {
                continue;
            }
            if engine.is_at_rest() {
                next = after(next, ticks_in(left.saturating_sub(TAIL)));
            } else if run.is_multiple_of(SWEPT_EVERY) {
                // An expired signal keeps a pool from being calm until it is swept.
                engine.sweep(Now { at: next, utc_offset_nanos: 0 });
            }
        }
        self.next_tick = Some(next);
    }

    /// Skips all ticks up to `at`, for rules without pools.
    fn pass_ticks(&mut self, at: Timestamp) {
        let next = *self.next_tick.get_or_insert(at);
        if next <= at {
            self.next_tick = Some(after(next, ticks_in(at.since(next)).saturating_add(1)));
        }
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
    /// and clients continue. Fails if a retry differs from the request with the same `idem`, or for too many sessions.
    pub(crate) fn judge(
        &mut self,
        request: &Request<'_>,
        by: &LeaseOwner<'_>,
    ) -> Result<Option<Decision<'_>>, NotPlayed> {
        // Only acquires, and requests with shedding pools, need a session.
        let needs_session = request.op == Op::Acquire || self.watches;
        let session = needs_session.then(|| self.session(by.session, UNKNOWN.pool)).transpose()?;
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
            self.records.note(&self.rules, &request, &decision, self.now.at);
        }
        if let (Some(id), Some(lease), Some(session)) = (by.id, decision.lease, session) {
            self.leases.insert(&self.engine, id, (session, lease), self.now);
        }
        Ok(Some(decision))
    }

    /// Applies an action that decides nothing. Returns whether it found its rule, lease or session. Fails if a retry differs
    /// from the charge with the same `idem`, a session exists with another pool or other slots, a signal is for another pool
    /// than that of its session, or for too many sessions.
    pub(crate) fn apply(&mut self, action: &Action<'_>) -> Result<bool, NotPlayed> {
        let now = self.now;
        Ok(match action {
            Action::Charge(charge, of) => {
                let mut charge = *charge;
                if let Some(id) = of {
                    // No lease has the number 0.
                    let lease = self.leases.by_id.get(id).map_or(0, |(_, lease)| *lease);
                    charge.refund_of =
                        Some(RefundBy { user: USER, reference: RefundReference::Lease(lease) });
                }
                // A trusted charge needs no reference.
                self.decider.charge(&charge, now).map_err(|_| Conflict)?
            }
            Action::Release(id, outcome) => {
                let held = self.leases.by_id.remove(id);
                held.is_some_and(|(session, lease)| self.engine.release_lease(&session, lease, *outcome, now))
            }
            Action::Renew(id) => {
                let held = self.leases.by_id.get(id);
                held.is_some_and(|(session, lease)| self.engine.renew_lease(session, *lease, now))
            }
            Action::Signal { session, pool, name, permille } => {
                let session = self.session(*session, pool)?;
                self.engine.record_pushed_signal(&session, pool, name, *permille, now)?;
                true
            }
            Action::Hello { session, pool, slots } => {
                self.open(Some(session), pool, *slots)?;
                true
            }
            Action::Bye(session) => {
                let session = self.named.remove(*session);
                session.inspect(|session| self.engine.end_session(session, now)).is_some()
            }
            Action::Judge(..) | Action::Reload(_) => unreachable!("`judge` and `reload` play it"),
        })
    }

    fn open(&mut self, name: Option<&str>, pool: &str, slots: u32) -> Result<Session, SessionError> {
        let digest = name.map(|name| IdDigest::of(name).to_bytes());
        let params = ConnectionParams { name: digest, pool, slots, ..UNKNOWN };
        let opened = self.engine.open_session(&params, self.now)?;
        let known = if name.is_some() { &mut self.named } else { &mut self.unnamed };
        known.insert(name.unwrap_or(pool).into(), opened.clone());
        Ok(opened)
    }

    /// Returns a session. A named one without `hello` is in the default pool, the unnamed one in this pool.
    fn session(&mut self, name: Option<&str>, pool: &str) -> Result<Session, SessionError> {
        let (known, pool) = match name {
            Some(name) => (self.named.get(name), UNKNOWN.pool),
            None => (self.unnamed.get(pool), pool),
        };
        known.cloned().map_or_else(|| self.open(name, pool, UNKNOWN.slots), Ok)
    }

    pub(crate) fn reload(&mut self, rules: Vec<Arc<Domain>>) {
        self.records.number(&rules);
        self.watches = rules.iter().any(|domain| !domain.sheds().is_empty());
        self.rules.clone_from(&rules);
        self.engine.install_rules_at(rules, self.now.at);
    }

    pub(crate) fn totals(&self) -> Totals {
        self.engine.totals()
    }
}

impl ReplayLeases {
    fn insert(&mut self, engine: &Engine, id: IdDigest, held: (Session, u64), now: Now) {
        if self.by_id.len() >= self.until.max(LEASES_UNTIL_MIN) {
            self.by_id.retain(|_, (session, lease)| engine.holds_lease(session, *lease, now));
            self.until = self.by_id.len().saturating_mul(2);
        }
        self.by_id.insert(id, held);
    }
}

/// The defaults of sessions without `hello`.
const UNKNOWN: ConnectionParams<'_> =
    ConnectionParams { name: None, user: USER, pool: "default", slots: 0, connection: 1, pid: None };

/// A trace has no users: all requests are of one.
const USER: u32 = 0;

/// Below this number no leases are searched for expired ones.
const LEASES_UNTIL_MIN: usize = 4_096;

/// The daemon's default, so that a replay evicts as the daemon would.
const MEMORY_BYTES: usize = 64 << 20;

/// A sweep may cost a thousand decisions; at most this many keys stay that the daemon would have swept.
const EVENTS_PER_SWEEP: u32 = 4_096;

/// Sweep at least this often: timestamps of states wrap, and must be swept long before.
const SWEEP_DUE: Duration = Duration::from_secs(86_400);

const NANOS_PER_MILLI: u64 = 1_000_000;

fn ticks_in(span: Duration) -> u64 {
    u64::try_from(span.as_millis() / u128::from(TICK_MILLIS)).unwrap_or(u64::MAX)
}

fn after(from: Timestamp, ticks: u64) -> Timestamp {
    from.after(Duration::from_millis(ticks.saturating_mul(TICK_MILLIS)))
}

const TICK: Duration = Duration::from_millis(TICK_MILLIS);

/// The end of a gap that is always run: longer than a pool remembers, so that samples have exact times.
const TAIL: Duration = Duration::from_secs(12);

/// Shorter gaps are run in full.
const GAP_MIN: Duration = Duration::from_secs(16);

/// Ticks between sweeps: a sweep takes as long as this many ticks, and a signal expires after 3 s.
const SWEPT_EVERY: u32 = 64;
