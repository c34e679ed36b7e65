//! An engine in virtual time: its own ticks run before what the trace says next.

use std::sync::Arc;
use std::time::Duration;

use super::callers::Callers;
use crate::clock::{Now, Timestamp};
use crate::engine::{
    self, Answer, Charge, Conflict, Decider, Decision, Engine, HashKey, Op, Request, TICK_MILLIS, Totals,
};
use crate::rules::{Domain, Mode, RuleSet};

/// An engine in virtual time.
pub(in crate::cli) struct Player {
    engine: Arc<Engine>,
    decider: Decider,
    now: Now,
    last_tick: Option<Timestamp>,
    /// Events since then.
    played: u32,
    callers: Callers,
    /// In force.
    rules: Vec<Arc<Domain>>,
}

impl Player {
    /// A daemon's engine with these rules in force and nothing remembered.
    pub(in crate::cli) fn new(rules: Vec<Arc<Domain>>, seed: u64) -> Player {
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
            last_tick: None,
            played: 0,
            callers,
            rules: Vec::new(),
        };
        player.reload(rules);
        player
    }

    /// Moves time on, and lets the engine do what it does by itself on the way.
    pub(in crate::cli) fn advance(&mut self, at: Timestamp) {
        self.now = Now { at, utc: 0 };
        let last = *self.last_tick.get_or_insert(at);
        self.played = self.played.saturating_add(1);
        // Ticks stand a fixed time apart from the first event on. Of those that fall into a gap the last does the work
        // of all; and an hour goes by in a second here, so they also stand some events apart.
        let passed = at.since(last);
        let due = passed.as_millis() / u128::from(TICK_MILLIS);
        if due > 0 && (self.played >= EVENTS_PER_TICK || passed >= TICK_DUE) {
            self.played = 0;
            let nanos = u64::try_from(due).unwrap_or(u64::MAX).saturating_mul(TICK_MILLIS * NANOS_PER_MILLI);
            let tick = last.after(Duration::from_nanos(nanos));
            self.engine.sweep(Now { at: tick, utc: 0 });
            self.last_tick = Some(tick);
        }
    }

    /// Judges a piece of work.
    pub(in crate::cli) fn judge(&mut self, request: &Request<'_>) -> Result<Decision<'_>, Conflict> {
        let Answer::Decided(decision) = self.decider.decide(request, self.now) else { return Err(Conflict) };
        if request.op != Op::Peek {
            self.callers.note(request.domain, decision.keys());
        }
        Ok(decision)
    }

    /// Charges after the fact; whether a rule was there to charge.
    pub(super) fn charge(&mut self, charge: &Charge<'_>) -> Result<bool, Conflict> {
        self.decider.charge(charge, self.now)
    }

    /// Puts other rules in force.
    pub(super) fn reload(&mut self, rules: Vec<Arc<Domain>>) {
        self.callers.number(&rules);
        self.rules.clone_from(&rules);
        self.engine.install(RuleSet::new(rules));
    }

    /// The rules in force.
    pub(super) fn rules(&self) -> &[Arc<Domain>] {
        &self.rules
    }

    /// What has been counted.
    pub(super) fn totals(&self) -> Totals {
        self.engine.totals()
    }

    /// How many callers each rule has seen.
    pub(super) fn callers(&self) -> &Callers {
        &self.callers
    }
}

/// As the daemon has by default, so that a replay forgets what it would forget.
const MEMORY_BYTES: usize = 64 << 20;

/// A tick looks through much of a table, which may take as long as a thousand decisions. Until the next one at most so
/// many keys are kept that the daemon would have swept away: nothing beside its budget.
const EVENTS_PER_TICK: u32 = 4_096;

/// However few events there are: states read time as a circle, which is to be far from going round between two sweeps.
const TICK_DUE: Duration = Duration::from_secs(86_400);

const NANOS_PER_MILLI: u64 = 1_000_000;
