//! WHO IS ADMITTED: judge every rule, then commit every state.
//!
//! Shards are locked here and decisions counted; nothing awaits, does I/O or knows of the socket.

mod admission;
mod algorithm;
mod asking;
mod callers;
mod control;
mod counters;
mod decider;
mod decision;
mod digest;
mod fleet;
mod footprint;
mod gate;
mod in_force;
#[cfg(test)]
#[cfg(feature = "interleavings")]
mod interleavings;
mod judgement;
pub mod kept;
mod leases;
mod ledger;
mod memory;
mod part;
mod places;
mod pool;
mod repeats;
mod request;
mod ruling;
mod shards;
mod signals;
mod siphash;
mod sketch;
mod slots;
mod spent;
mod sync;
mod table;
mod tag;
mod totals;
mod work;
mod workspace;

use std::sync::Arc;

use arc_swap::ArcSwap;

pub use asking::{Ask, Asker, Brought, CallResult, NEEDS_MAX, Need, OnBrought, Ticket};
pub use callers::{Caller, TopCallers};
pub use control::{
    Alarm, Blocked, By, Event, FleetChange, FleetOverrides, KeyError, NotNamed, NotSwitched, Orders,
    RuleName, Switch, SwitchView, Target,
};
pub use decider::Decider;
pub use decision::{
    Answer, Conflict, Decision, LimitView, NotCharged, NoteKind, RuleCheck, Unmatched, Verdict,
};
pub use digest::HashKey;
pub use fleet::{Budget, More, Reported, Seen, Settled, ShareHere, SharedKey, Standing, WindowTurns};
pub use footprint::{KeyBytes, bytes_per_key, bytes_per_key_of, keys_within};
pub use in_force::{InForce, RuleInForce, RuleKind};
pub use leases::{
    LeaseTotals, NotHeldTotals, NotItsPool, NotOpened, OpenSession, Opening, Parting, Session, WorkOutcome,
};
pub use ledger::{Account, HeldBytes, Use};
pub use places::{ClaimedPlace, PlacesBudget, PlacesHere, PlacesReported, PlacesSettled, PlacesSum};
pub use pool::{Agreed, PoolView, Reserve, ReserveView};
pub use request::{
    Amount, Charge, Cost, Descriptors, Of, Op, RefundBy, Repeat, Request, UNIT_REQUESTS, UnitAmounts,
    UnitCosts,
};
pub use totals::{RuleTotals, SpanTotals, Totals, VerdictTotals};
pub use work::Wanted;

/// Whether refusals are carried out, as whoever asks the engine is to know it: by the engine, not by its rules.
pub use crate::rules::Mode;

/// What a signal reads and where an application listens, as the machine is to be asked for it.
pub use crate::rules::shed::{Listen, Source};

/// How hosts keep one reserve together.
pub use crate::shed::{Claim, FleetSums, Here};

use crate::clock::Now;
use callers::Callers;
use control::Control;
use counters::Counters;
use digest::KeyHash;
use fleet::Fleet;
use leases::Leases;
use memory::Memory;
use pool::Pools;
use repeats::Repeats;
use ruling::Ruling;
use shards::{Shards, Sweeper};
use slots::Slots;
use spent::SpentByName;
use sync::{AtomicBool, Mutex, Ordering};

/// What an engine is made with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The secret of its digests.
    pub hash_key: HashKey,
    /// No rule is stricter than this.
    pub mode: Mode,
    /// Bytes that its tables may allocate.
    pub memory_bytes_max: usize,
}

/// Everything that is decided on this host: the rules in force and the state of every key.
///
/// Shared by the decision threads, each of which asks through its own [`Decider`].
#[derive(Debug)]
pub struct Engine {
    options: Options,
    /// Taken before every other lock.
    control: Mutex<Control>,
    ruling: Arc<ArcSwap<Ruling>>,
    shards: Shards,
    repeats: Repeats,
    spent: SpentByName,
    callers: Callers,
    leases: Leases,
    pools: Pools,
    /// What it shares with other hosts.
    fleet: Fleet,
    /// What was put back of the rules that were in force before a restart.
    heritage: Mutex<kept::Heritage>,
    /// Tells rules and quotas from others, over restarts.
    fingerprints: KeyHash,
    /// Hashes who is shed as one.
    caller_hash: KeyHash,
    /// Whether there is room for what is elastic where no pool says.
    room: AtomicBool,
    sweeper: Mutex<Sweeper>,
    slots: Mutex<Slots>,
    threads: Mutex<Vec<Arc<Counters>>>,
}

impl Engine {
    /// An engine without a rule: it allows everything.
    #[must_use]
    pub fn new(options: Options) -> Engine {
        Engine {
            options,
            control: Mutex::default(),
            ruling: Arc::new(ArcSwap::from_pointee(Ruling::empty(options.mode))),
            shards: Shards::new(Memory::new(options.memory_bytes_max)),
            repeats: Repeats::new(&options.hash_key),
            spent: SpentByName::new(&options.hash_key),
            callers: Callers::new(),
            leases: Leases::new(&options.hash_key),
            pools: Pools::default(),
            fleet: Fleet::default(),
            heritage: Mutex::default(),
            fingerprints: options.hash_key.of_purpose("rules"),
            caller_hash: options.hash_key.of_purpose("callers"),
            room: AtomicBool::new(false),
            sweeper: Mutex::default(),
            slots: Mutex::default(),
            threads: Mutex::default(),
        }
    }

    /// Whether the rules in force have this domain.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.ruling.load().find(domain).is_some()
    }

    /// Says whether there is room for what is elastic, for those who ask without a session. There is none until somebody
    /// says so.
    pub fn set_room(&self, room: bool) {
        self.room.store(room, Ordering::Relaxed);
    }

    /// A way to ask, for one decision thread.
    #[must_use]
    pub fn decider(self: &Arc<Engine>) -> Decider {
        let counters = Arc::new(Counters::new());
        let mut threads = self.threads.lock();
        threads.push(Arc::clone(&counters));
        Decider::new(Arc::clone(self), counters, threads.len() as u64)
    }

    /// Does what happens by itself and must happen in order with everything else: ends what has ended, switches among it,
    /// looks how full each pool is. Called every [`TICK_MILLIS`].
    pub fn tick(&self, now: Now) {
        self.tend(now);
        self.end_due(now);
        self.pools.tick(now.at);
    }

    /// Whether every pool is at rest, whoever is in it, and nothing is switched for a time: until work begins or a reading comes, a tick does no more than
    /// [`Engine::end_due`].
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.pools.is_at_rest() && self.is_untended()
    }

    /// Every pool that somebody is in, or that the rules watch over, in the order of their names.
    #[must_use]
    pub fn pools(&self, now: Now) -> Vec<PoolView> {
        self.pools.view(now.at)
    }

    /// Leases and sessions, as far as they are counted.
    #[must_use]
    pub fn leases(&self) -> LeaseTotals {
        self.leases.totals()
    }

    /// Sums what the concurrency rules count: each lease once for each rule that it counts under.
    #[must_use]
    pub fn in_progress(&self) -> u64 {
        self.shards.in_progress()
    }

    /// Lets go of what is as good as new, whatever time has passed since it was last called. It changes no decision, so
    /// it stands in no order with anything else. Called as often as [`Engine::tick`].
    pub fn sweep(&self, now: Now) {
        let window_min = self.ruling.load().window_min;
        let mut sweeper = self.sweeper.lock();
        if sweeper.advance(&self.shards, now, window_min) {
            self.repeats.sweep(&self.shards, now);
            self.spent.sweep(&self.shards, now);
        }
        self.callers.age(now);
        self.pools.sweep(now.at);
        self.leases.sweep(now);
    }

    /// The mode that no rule is stricter than: what it was made with, unless it was switched to a milder one.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.ruling.load().mode
    }

    /// The account of a user: what is held for it beside the tables.
    #[must_use]
    pub fn account(&self, user: u32) -> Arc<Account> {
        self.leases.ledger().account(user)
    }

    /// What is held for all users beside the tables.
    #[must_use]
    pub fn held_bytes(&self) -> HeldBytes {
        self.leases.ledger().held()
    }

    /// The most that callers can make the engine and its server hold: the tables, everything that is charged to users, and
    /// what is bounded by its number. `connections`: how many there may be.
    #[must_use]
    pub fn held_bytes_max(&self, connections: usize) -> usize {
        self.memory_bytes_max()
            + ledger::BYTES_MAX
            + leases::BYTES_MAX
            + connections * ledger::CONNECTION_BYTES
    }

    /// Keys whose state differs from a fresh one, or did when they were last looked at.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shards.keys()
    }

    /// Bytes that the tables have allocated, which keep to the budget, and what is noted of callers, at most 3 MiB; for
    /// some minutes after a change at most 5 MiB more.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.shards.memory_bytes() + self.callers.heap_bytes() + self.control.lock().guards.heap_bytes()
    }

    /// Bytes that the tables may allocate.
    #[must_use]
    pub fn memory_bytes_max(&self) -> usize {
        self.options.memory_bytes_max
    }

    /// The busiest, the most refused and the most would-be-refused callers of a rule, as far as a bounded sketch can
    /// tell. Rules past the first 512 share one.
    #[must_use]
    pub fn top_callers(&self, domain: &str, rule: &str) -> TopCallers {
        let slot = self.slots.lock().find(domain, rule);
        slot.map_or_else(TopCallers::default, |slot| self.callers.top(slot))
    }

    /// What has been counted since the start, over all decision threads.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let control = self.control.lock();
        let slots = self.slots.lock();
        Totals::sum(&self.threads.lock(), &slots, self.shards.evictions(), control.guards.told())
    }
}

/// A rule set that was in force, with all that was made for it.
#[derive(Debug)]
pub struct Replaced(Arc<Ruling>);

impl Replaced {
    /// Whether a decision thread still looks at it. The last one to let go frees it; kept here until then, that is
    /// never a thread that decides.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// How often [`Engine::tick`] is called.
pub const TICK_MILLIS: u64 = 250;

/// The target of log lines of this module, and the prefix of those of its submodules.
pub const LOG_TARGET: &str = module_path!();
