//! One pool: how many slots it has and how many are busy, to the nanosecond, and what follows from it for those who ask.
//!
//! Decision threads read what was worked out at the last tick and count themselves in and out; only ticks and the begin and
//! end of work take the pool's lock.

mod law;
mod reserve;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;

use law::Law;
use reserve::Elsewhere;
pub use reserve::{Agreed, Reserve, ReserveView};

use super::gate::Watch;
use super::kept::KeptPool;
use super::signals::Signals;
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::clock::Timestamp;
use crate::shed::heavy::Heavy;

/// One pool.
#[derive(Debug)]
pub(super) struct Pool {
    name: Box<str>,
    /// What the rules in force say about it.
    watch: ArcSwapOption<Watch>,
    work: Mutex<Work>,
    law: Mutex<Law>,
    pub(super) signals: Mutex<Signals>,
    /// Slots that are busy, of [`Pool::slots`], as decisions see them.
    busy: AtomicU32,
    /// 0: unknown.
    slots: AtomicU32,
    /// Leases of the most important work, and of all other.
    critical: AtomicU32,
    others: AtomicU32,
    /// What the pool's processes on other hosts do.
    elsewhere: Mutex<Elsewhere>,
    /// Whether the reserve has refused other work since somebody last asked.
    is_refusing: AtomicBool,
    /// s, as the bits of an `f64`.
    severity: AtomicU64,
    is_braking: AtomicBool,
    has_room: AtomicBool,
    /// By place: who makes up a large part of the traffic. Nobody waits for it.
    heavy: parking_lot::Mutex<Vec<Heavy>>,
}

/// One pool, for whoever looks at it.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolView {
    /// Its name.
    pub pool: Box<str>,
    /// Whether the rules watch over it: only then its name is one of theirs, else it is what some client said.
    pub watched: bool,
    /// Its slots, if they are known.
    pub slots: Option<u32>,
    /// Slots that are busy.
    pub busy: u32,
    /// The share of its slot-time of the last 8 s that was busy.
    pub utilization: Option<f64>,
    /// Readings by name: the utilization that each stands for, if there is one, and whether it counts.
    pub signals: Vec<(Box<str>, Option<f64>, bool)>,
    /// s of the slow law: below zero nothing is refused.
    pub severity: f64,
    /// Whether the brake is on.
    pub braking: bool,
    /// With what chance each priority is refused by the slow law, the least important first.
    pub chances: Vec<(Box<str>, f64)>,
    /// Leases of the most important work.
    pub critical: u32,
    /// Leases of all other work.
    pub others: u32,
    /// How its reserve stands, where it has one that is not switched off.
    pub reserve: Option<ReserveView>,
}

impl Pool {
    pub(super) fn new(name: &str) -> Pool {
        Pool {
            name: name.into(),
            watch: ArcSwapOption::empty(),
            work: Mutex::default(),
            law: Mutex::new(Law::new()),
            signals: Mutex::default(),
            busy: AtomicU32::new(0),
            slots: AtomicU32::new(0),
            critical: AtomicU32::new(0),
            others: AtomicU32::new(0),
            elsewhere: Mutex::default(),
            is_refusing: AtomicBool::new(false),
            severity: AtomicU64::new((-1.0_f64).to_bits()),
            is_braking: AtomicBool::new(false),
            has_room: AtomicBool::new(false),
            heavy: parking_lot::Mutex::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Puts what the rules say in force. A law that is the same goes on where it stands.
    pub(super) fn watch_by(&self, watch: Option<Arc<Watch>>) {
        let slots = watch.as_ref().and_then(|watch| watch.shed.slots);
        self.watch.store(watch);
        let live = self.work.lock().slots;
        self.publish_slots(live, slots);
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watch.load().is_some()
    }

    /// Whether somebody is in it.
    pub(super) fn is_used(&self) -> bool {
        self.work.lock().sessions > 0
    }

    /// What the rules say about it.
    pub(super) fn watched(&self) -> Option<Arc<Watch>> {
        self.watch.load_full()
    }

    /// A process of the pool.
    pub(super) fn pid(&self) -> Option<u32> {
        self.work.lock().pid
    }

    /// A session begins.
    pub(super) fn join(&self, slots: u32, pid: Option<u32>, at: Timestamp) {
        let mut work = self.work.lock();
        work.sessions += 1;
        work.slots = work.slots.saturating_add(slots);
        work.slots_began += i128::from(slots) * nanos(at);
        work.pid = pid.or(work.pid);
        let live = work.slots;
        drop(work);
        self.publish_slots(live, self.configured_slots());
    }

    /// A session ends.
    pub(super) fn part(&self, slots: u32, pid: Option<u32>, at: Timestamp) {
        let mut work = self.work.lock();
        work.sessions = work.sessions.saturating_sub(1);
        work.slots = work.slots.saturating_sub(slots);
        work.slots_began -= i128::from(slots) * nanos(at);
        if work.pid == pid {
            work.pid = None;
        }
        let live = work.slots;
        drop(work);
        self.publish_slots(live, self.configured_slots());
    }

    /// One slot more is busy.
    pub(super) fn take_slot(&self, at: Timestamp) {
        let mut work = self.work.lock();
        work.busy += 1;
        work.busy_began += nanos(at);
        self.busy.store(work.busy, Ordering::Relaxed);
    }

    /// One slot less is busy.
    pub(super) fn free_slot(&self, at: Timestamp) {
        let mut work = self.work.lock();
        work.busy = work.busy.saturating_sub(1);
        work.busy_began -= nanos(at);
        self.busy.store(work.busy, Ordering::Relaxed);
    }

    /// Counts one more piece of work in, other work only as long as there is less than `most` of it. Returns whether it
    /// is in.
    pub(super) fn enter_work(&self, is_other: bool, most: Option<u32>) -> bool {
        if !is_other {
            self.critical.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let fits = |others: u32| most.is_none_or(|most| others < most).then_some(others.saturating_add(1));
        let entered = self.others.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if !entered {
            self.is_refusing.store(true, Ordering::Relaxed);
        }
        entered
    }

    /// Counts one piece of work out again.
    pub(super) fn leave_work(&self, is_other: bool) {
        let count = if is_other { &self.others } else { &self.critical };
        count.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn others(&self) -> u32 {
        self.others.load(Ordering::Relaxed)
    }

    pub(super) fn busy(&self) -> u32 {
        self.busy.load(Ordering::Relaxed)
    }

    /// How many slots it has, if that is known.
    pub(super) fn slots(&self) -> Option<u32> {
        Some(self.slots.load(Ordering::Relaxed)).filter(|slots| *slots > 0)
    }

    pub(super) fn severity(&self) -> f64 {
        f64::from_bits(self.severity.load(Ordering::Relaxed))
    }

    pub(super) fn is_braking(&self) -> bool {
        self.is_braking.load(Ordering::Relaxed)
    }

    /// Whether there is room for what is elastic.
    pub(super) fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
    }

    /// Says whether a caller of a priority's work makes up a large part of that, this request included, and notes him if
    /// it is to.
    pub(super) fn is_heavy(&self, place: usize, caller: u64, at: Timestamp, notes: bool) -> bool {
        let Some(mut heavy) = self.heavy.try_lock() else { return false };
        if !notes {
            let mut copy = heavy.get(place).cloned().unwrap_or_default();
            copy.age(at);
            return copy.note(caller);
        }
        if heavy.len() <= place {
            heavy.resize_with(place + 1, Heavy::new);
        }
        let Some(heavy) = heavy.get_mut(place) else { return false };
        heavy.age(at);
        heavy.note(caller)
    }

    /// What happens by itself, every quarter of a second.
    pub(super) fn tick(&self, at: Timestamp) {
        let watch = self.watched();
        let mut law = self.law.lock();
        if law.ticked.is_some_and(|ticked| at <= ticked) {
            return;
        }
        let (busy_nanos, live_nanos, live) = {
            let work = self.work.lock();
            (work.busy_nanos(at), work.live_nanos(at), work.slots)
        };
        let configured = watch.as_ref().and_then(|watch| watch.shed.slots);
        law.add_slot_time(at, live_nanos, live, configured);
        let slot_nanos = law.slot_nanos;
        law.window.push(at, busy_nanos, slot_nanos);
        law.ticked = Some(at);
        self.publish_slots(live, configured);
        let Some(watch) = watch else {
            self.has_room.store(false, Ordering::Relaxed);
            return;
        };
        law.begin(&watch);
        let slots = self.slots();
        let queue = self.signals.lock().queue(at);
        if let (Some(slots), Some(_)) = (slots, &watch.shed.brake) {
            let busy_now = law.window.over(BUSY_NOW);
            law.brake.tick(at, queue, busy_now, slots);
        } else {
            law.release_brake();
        }
        let is_braking = law.brake.is_on();
        self.is_braking.store(is_braking, Ordering::Relaxed);
        let workers = slots.and_then(|_| law.window.over(WINDOW));
        let counted = slots.and_then(|_| self.signals.lock().counted(&watch, at));
        let utilization = [workers, counted].into_iter().flatten().reduce(f64::max);
        // Else the brake would hide the load from the slow law.
        let seen = if is_braking && watch.brakes() { Some(1.0) } else { utilization };
        law.step(&watch, seen, at);
        self.severity.store(law.severity.value().to_bits(), Ordering::Relaxed);
        let good = watch.law.good;
        let has_room = !is_braking && law.severity.value() <= 0.0 && utilization.is_some_and(|u| u < good);
        self.has_room.store(has_room, Ordering::Relaxed);
    }

    /// Whether a tick changes nothing until something happens.
    pub(super) fn is_at_rest(&self) -> bool {
        let Some(watch) = self.watched() else { return true };
        let law = self.law.lock();
        self.busy() == 0
            && !self.is_braking()
            && law.began.is_some()
            && law.severity.is_at_rest(&watch.law)
            && law.window.over(WINDOW).is_none_or(|busy| busy == 0.0)
            && self.signals.lock().is_empty()
    }

    /// Where its slow law stands, for a restart.
    pub(super) fn kept(&self) -> Option<KeptPool> {
        self.law.lock().kept(&self.name)
    }

    /// Goes on where the law of before a restart stood, if it is the same.
    pub(super) fn inherit(&self, kept: &KeptPool, at: Timestamp) {
        self.law.lock().inherit(kept, at);
    }

    pub(super) fn view(&self, at: Timestamp) -> PoolView {
        let watch = self.watched();
        let slots = self.slots();
        let utilization = slots.and_then(|_| self.law.lock().window.over(WINDOW));
        let signals = watch.as_ref().map(|watch| self.signals.lock().view(watch, at)).unwrap_or_default();
        let severity = self.severity();
        let reserve = watch.as_ref().and_then(|watch| self.reserve_view(watch, at));
        PoolView {
            pool: self.name.clone(),
            watched: watch.is_some(),
            slots,
            busy: self.busy(),
            utilization,
            signals,
            severity,
            braking: self.is_braking(),
            chances: watch.map(|watch| watch.chances(severity)).unwrap_or_default(),
            critical: self.critical.load(Ordering::Relaxed),
            others: self.others(),
            reserve,
        }
    }

    fn configured_slots(&self) -> Option<u32> {
        self.watch.load().as_ref().and_then(|watch| watch.shed.slots)
    }

    fn publish_slots(&self, live: u32, configured: Option<u32>) {
        let slots = if live > 0 { live } else { configured.unwrap_or(0) };
        self.slots.store(slots, Ordering::Relaxed);
    }
}

/// What the slow law looks at.
const WINDOW: Duration = Duration::from_secs(8);

/// What the brake looks at where no queue can be read.
const BUSY_NOW: Duration = Duration::from_secs(1);

/// What sessions and leases say. A sum of `n · t` over all that began at t, less the same of all that ended, turns the
/// numbers of now into an integral over time, in whatever order they come.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) sessions: u32,
    /// Slots of live sessions.
    pub(super) slots: u32,
    pub(super) slots_began: i128,
    pub(super) busy: u32,
    pub(super) busy_began: i128,
    /// A process of the pool.
    pub(super) pid: Option<u32>,
}

impl Work {
    pub(super) fn busy_nanos(&self, at: Timestamp) -> u128 {
        integral(self.busy, self.busy_began, at)
    }

    pub(super) fn live_nanos(&self, at: Timestamp) -> u128 {
        integral(self.slots, self.slots_began, at)
    }
}

/// `n · t` of what began, less the same of what ended, turned into an integral.
fn integral(count: u32, began: i128, at: Timestamp) -> u128 {
    // Below zero only for a moment, while another thread is ahead of this reading of the clock.
    u128::try_from(i128::from(count) * nanos(at) - began).unwrap_or_default()
}

pub(super) fn nanos(at: Timestamp) -> i128 {
    i128::from(at.as_nanos())
}

/// All pools.
#[derive(Debug, Default)]
pub(super) struct Pools(Mutex<HashMap<Box<str>, Arc<Pool>>>);

impl Pools {
    /// The pool of this name.
    pub(super) fn of(&self, name: &str) -> Arc<Pool> {
        let mut pools = self.0.lock();
        if let Some(pool) = pools.get(name) {
            return Arc::clone(pool);
        }
        let pool = Arc::new(Pool::new(name));
        pools.insert(name.into(), Arc::clone(&pool));
        pool
    }

    /// The pool of this name, if it is there.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Pool>> {
        self.0.lock().get(name).cloned()
    }

    /// Puts in force what watches over pools, and over no other.
    pub(super) fn watch(&self, watches: &[(Arc<Pool>, Arc<Watch>)]) {
        for pool in self.all() {
            let watch = watches.iter().find(|(watched, _)| Arc::ptr_eq(watched, &pool));
            pool.watch_by(watch.map(|(_, watch)| Arc::clone(watch)));
        }
    }

    pub(super) fn tick(&self, at: Timestamp) {
        self.all().iter().for_each(|pool| pool.tick(at));
    }

    /// Forgets pools that nobody is in and nothing watches over, and readings that are too old.
    pub(super) fn sweep(&self, at: Timestamp) {
        let mut pools = self.0.lock();
        // Whoever holds it besides is about to join it.
        pools.retain(|_, pool| pool.is_watched() || pool.is_used() || Arc::strong_count(pool) > 1);
        pools.values().for_each(|pool| pool.signals.lock().forget_old(at));
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.all().iter().all(|pool| pool.is_at_rest())
    }

    /// Every pool, in the order of their names.
    pub(super) fn view(&self, at: Timestamp) -> Vec<PoolView> {
        let mut views: Vec<PoolView> = self.all().iter().map(|pool| pool.view(at)).collect();
        views.sort_unstable_by(|one, other| one.pool.cmp(&other.pool));
        views
    }

    pub(super) fn all(&self) -> Vec<Arc<Pool>> {
        self.0.lock().values().cloned().collect()
    }
}
