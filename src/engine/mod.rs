//! The engine: evaluates every rule of a request, then commits every state.
//!
//! It locks shards and counts decisions; it never awaits, does no I/O and knows no socket.

mod admission;
mod algorithm;
mod callers;
mod check;
mod control;
mod counters;
mod decider;
mod decision;
mod digest;
mod fleet;
mod footprint;
mod gate;
mod idempotency;
mod judgement;
mod known_selection;
mod leases;
mod ledger;
mod memory;
mod permits;
mod pool;
mod refundable_costs;
mod remote_check;
mod request;
mod rule_set;
mod shards;
mod signals;
mod siphash;
mod sketch;
mod slots;
pub mod snapshot;
mod sync;
mod table;
mod tag;
mod work;
mod workspace;

use std::sync::Arc;

use arc_swap::ArcSwap;

pub use callers::{Caller, TopCallers};
pub use control::{
    Alarm, BlockedKey, ControlEvent, FleetChange, FleetOverrides, HostOverrides, KeyError, NamedKey,
    RuleName, RuleNameError, Switch, SwitchError, SwitchOrigin, SwitchView, Target,
};
pub use counters::{RuleTotals, SpanTotals, Totals, VerdictTotals};
pub use decider::Decider;
pub use decision::{
    ChargeError, Conflict, Decision, EngineAnswer, InspectedCheck, LimitView, MatchingLimit, RuleCheck,
    Unmatched,
};
pub use digest::{Digest, DigestError, HashKey, ShownDigest};
pub use fleet::{
    FleetBudget, FleetConcurrencyLimit, FleetStatus, HOLD, HostShare, KeyCheckReply, NextIncrease,
    RedisLevel, ShareReply, ShareReport, SharedKey, WindowTurns,
};
pub use footprint::{KeyFootprint, KindsInUse, bytes_per_rule_key, keys_within};
pub use known_selection::KnownSelection;
pub use leases::{
    ConnectionEnd, ConnectionParams, LeaseTotals, NotHeldTotals, OpenSession, Session, SessionError,
    WrongPool,
};
pub use ledger::{Account, AccountUse, HeldBytes};
pub use permits::{ClaimedPermit, HostPermits, PermitReply, PermitTotals};
pub use pool::{OtherHostsSums, OtherHostsView, PoolReserve, PoolView, ReserveView, SignalView};
pub use remote_check::{
    CheckReply, OnCheckReply, RemoteCheckResult, RemoteChecker, SharedRemoteChecker, Shortfall, Shortfalls,
};
pub use request::{
    Amount, ByUnit, Charge, Cost, Descriptors, IdempotencyKey, Op, RefundBy, Request, UNIT_REQUESTS,
    UnitNumbers,
};
pub use rule_set::InForce;
pub use work::HostSignals;

/// The size from which memory is counted as mapped, re-exported for users of the engine.
pub use crate::limit::MAPPED_BYTES_MIN;

/// Terms that the engine shares, re-exported for its users.
pub use crate::terms::{Mode, NoteKind, RefundReference, Verdict, WorkOutcome};

/// Sources of signals and of accept queues, re-exported for users of the engine.
pub use crate::rules::shed::{Listen, SignalSource};

/// The shared reserve of a pool over hosts.
pub use crate::shed::{Claim, HostReadings, PoolLoad};

use crate::clock::Now;
use callers::CallerSketch;
use control::OperatorControl;
use counters::ThreadCounters;
use digest::KeyHash;
use fleet::FleetMembership;
use idempotency::IdempotencyTable;
use leases::Leases;
use memory::Memory;
use pool::PoolTable;
use refundable_costs::RefundableCosts;
use rule_set::CompiledRuleSet;
use shards::{SHARDS, Shards, Sweeper};
use slots::Slots;
use sync::{Mutex, Ordering};

/// Parameters of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// The secret of its digests.
    pub hash_key: HashKey,
    /// The strictest mode of any rule.
    pub mode: Mode,
    /// Maximum bytes of its tables.
    pub memory_bytes_max: usize,
}

/// All decision state of this host: rules and keys. Each decision thread uses it through a [`Decider`].
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    /// Locked before every other lock.
    control: Mutex<OperatorControl>,
    rule_set: Arc<ArcSwap<CompiledRuleSet>>,
    shards: Shards,
    idempotency: IdempotencyTable,
    refundable_costs: RefundableCosts,
    callers: CallerSketch,
    leases: Leases,
    pools: PoolTable,
    fleet: FleetMembership,
    /// Restored facts of the rules that were in force before a restart.
    previous_quotas: Mutex<snapshot::PreviousQuotas>,
    /// Hashes the identities of rules and quotas, stable over restarts.
    fingerprints: KeyHash,
    /// Hashes callers, so that all requests of one caller are shed alike.
    caller_hash: KeyHash,
    sweeper: Mutex<Sweeper>,
    slots: Mutex<Slots>,
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
}

impl Engine {
    /// Makes an engine without rules: it allows every request.
    #[must_use]
    pub fn new(options: EngineOptions) -> Engine {
        Engine {
            options,
            control: Mutex::new(OperatorControl::new(options.mode)),
            rule_set: Arc::new(ArcSwap::from_pointee(CompiledRuleSet::empty(options.mode))),
            shards: Shards::new(Memory::new(options.memory_bytes_max)),
            idempotency: IdempotencyTable::new(&options.hash_key),
            refundable_costs: RefundableCosts::new(&options.hash_key),
            callers: CallerSketch::new(),
            leases: Leases::new(&options.hash_key),
            pools: PoolTable::default(),
            fleet: FleetMembership::default(),
            previous_quotas: Mutex::default(),
            fingerprints: options.hash_key.for_purpose("rules"),
            caller_hash: options.hash_key.for_purpose("callers"),
            sweeper: Mutex::default(),
            slots: Mutex::default(),
            threads: Mutex::default(),
        }
    }

    /// Returns whether the rules in force have this domain.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.rule_set.load().find_domain(domain).is_some()
    }

    /// Makes the handle of one decision thread.
    #[must_use]
    pub fn decider(self: &Arc<Engine>) -> Decider {
        let counters = Arc::new(ThreadCounters::new());
        let mut threads = self.threads.lock();
        threads.push(Arc::clone(&counters));
        Decider::new(Arc::clone(self), counters, threads.len() as u64)
    }

    /// Ends expired switches, leases and sessions, then updates every pool. Call it every [`TICK_MILLIS`];
    /// its order relative to other calls matters.
    pub fn tick(&self, now: Now) {
        self.end_expired_overrides(now);
        self.end_expired_leases(now);
        self.pools.all().iter().for_each(|pool| pool.tick(now.at));
    }

    /// Returns whether every pool is at rest and no timed switch is pending: then a tick does no more than
    /// [`Engine::end_expired_leases`] until a request begins or a signal arrives.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.pools.all().iter().all(|pool| pool.is_at_rest()) && self.control.lock().is_at_rest()
    }

    /// Returns whether the engine [is at rest](Engine::is_at_rest) and has neither leases nor sessions: then ticks change
    /// nothing until a session opens, a signal arrives or a switch is set.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let LeaseTotals { live, sessions, .. } = self.leases.totals();
        live == 0 && sessions == 0 && self.is_at_rest()
    }

    /// Returns every pool that has a session or is watched by rules, by name.
    #[must_use]
    pub fn pools(&self, now: Now) -> Vec<PoolView> {
        let mut views: Vec<PoolView> = self.pools.all().iter().map(|pool| pool.view(now.at)).collect();
        views.sort_unstable_by(|one, other| one.pool.cmp(&other.pool));
        views
    }

    /// Returns the counts of leases and sessions.
    #[must_use]
    pub fn leases(&self) -> LeaseTotals {
        self.leases.totals()
    }

    /// Sums the concurrency rules' counts: each lease counts once for each of its rules.
    #[must_use]
    pub fn in_progress(&self) -> u64 {
        let mut sum = 0;
        for shard in 0..SHARDS {
            self.shards.lock(shard).in_progress.each(|_, leases| sum += u64::from(leases.count()));
        }
        sum
    }

    /// Removes states that equal fresh ones, at most one round of shards per call. It changes no decision, so its
    /// order relative to other calls is free. Call it every [`TICK_MILLIS`].
    pub fn sweep(&self, now: Now) {
        let window_min = self.rule_set.load().window_min;
        let mut sweeper = self.sweeper.lock();
        if sweeper.advance(&self.shards, now, window_min) {
            self.idempotency.grants.sweep(&self.shards, now);
            self.refundable_costs.costs.sweep(&self.shards, now);
        }
        self.callers.age(now);
        self.pools.sweep(now.at);
        self.leases.sweep(now);
    }

    /// The strictest mode of any rule: that of the options, unless switched to a milder one.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.rule_set.load().mode
    }

    /// Returns the account of a user: its bytes outside the tables.
    #[must_use]
    pub fn account(&self, user: u32) -> Arc<Account> {
        self.leases.ledger.account(user)
    }

    /// Returns the bytes held for all users outside the tables.
    #[must_use]
    pub fn held_bytes(&self) -> HeldBytes {
        self.leases.ledger.held()
    }

    /// The maximum bytes that clients can make the engine and its server hold: tables, user accounts, leases,
    /// sessions and up to `connections` connections.
    #[must_use]
    pub fn held_bytes_max(&self, connections: usize) -> usize {
        self.memory_bytes_max()
            + ledger::BYTES_MAX
            + leases::BYTES_MAX
            + connections * ledger::CONNECTION_BYTES
    }

    /// Counts the keys whose state differed from a fresh one when last examined.
    #[must_use]
    pub fn keys(&self) -> usize {
        (0..SHARDS).map(|shard| self.shards.lock(shard).keys()).sum()
    }

    /// Bytes allocated by the tables, which keep to the budget, plus at most 3 MiB for callers, and at most 5
    /// MiB more for some minutes after a change.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.shards.memory().bytes() + self.callers.heap_bytes() + self.control.lock().guards.heap_bytes()
    }

    /// Maximum bytes of the tables.
    #[must_use]
    pub fn memory_bytes_max(&self) -> usize {
        self.options.memory_bytes_max
    }

    /// Returns the callers of a rule with the most requests, refusals and would-be refusals, estimated by a
    /// bounded sketch. Rules past the first 512 share one sketch.
    #[must_use]
    pub fn top_callers(&self, domain: &str, rule: &str) -> TopCallers {
        let slot = self.slots.lock().find(domain, rule);
        slot.map_or_else(TopCallers::default, |slot| self.callers.top(slot, domain, rule))
    }

    /// Sums the counters of all decision threads since the start.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let control = self.control.lock();
        let slots = self.slots.lock();
        let evictions = self.shards.evictions.load(Ordering::Relaxed);
        Totals::sum(&self.threads.lock(), &slots, evictions, &control.guards.alarms_by_rule)
    }
}

/// A replaced rule set, with everything derived from it.
#[derive(Debug)]
pub struct ReplacedRuleSet(Arc<CompiledRuleSet>);

impl ReplacedRuleSet {
    /// Returns whether a decision thread still uses it. Keep it while true, so that no such thread frees it.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// The interval of [`Engine::tick`], in milliseconds.
pub const TICK_MILLIS: u64 = 250;

/// The target of log lines of this module, and the prefix of those of its submodules.
pub const LOG_TARGET: &str = module_path!();
