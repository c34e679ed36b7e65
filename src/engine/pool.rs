//! Pools: slots, busy slots to the nanosecond, and the shedding state derived from them.
//!
//! Decision threads read values published at the last tick and update atomic counters; only ticks and the
//! begin and end of leases lock the pool.

mod controller;
mod reserve;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};

use controller::PoolController;
pub use reserve::{OtherHostsSums, PoolReserve};

use super::gate::{Gate, PoolShedding};
use super::signals::SignalReadings;
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::clock::Timestamp;
use crate::rules::Mode;
use crate::rules::shed::ShedPart;
use crate::shed::brake::Brake;
use crate::shed::heavy::HeavyCallers;

#[derive(Debug, Default)]
pub(super) struct Pool {
    name: Box<str>,
    watch: ArcSwapOption<PoolShedding>,
    work: Mutex<WorkIntegral>,
    pub(super) controller: Mutex<PoolController>,
    pub(super) signals: Mutex<SignalReadings>,
    /// Busy slots, of [`Pool::slots`], as decisions read them.
    busy: AtomicU32,
    /// 0: unknown.
    slots: AtomicU32,
    /// Leases of the most important priority, and of all others.
    critical: AtomicU32,
    noncritical: AtomicU32,
    other_hosts: Mutex<Option<OtherHostsSums>>,
    /// Whether the reserve has refused a request since the flag was last taken.
    is_refusing: AtomicBool,
    /// The severity s, as the bits of an `f64`.
    severity: AtomicU64,
    is_braking: AtomicBool,
    /// Elastic quotas have room while fewer slots than this are busy. By the utilization of the last tick it is `u32::MAX` or 0;
    /// until one is measured, a part of the slots, since a pool that nothing shows to be full has room.
    room_below: AtomicU32,
    is_measured: AtomicBool,
    /// Heavy callers by priority. Decision threads only try this lock.
    heavy: parking_lot::Mutex<Vec<HeavyCallers>>,
}

/// The state of one pool, for display.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolView {
    /// Its name.
    pub pool: Box<str>,
    /// Whether rules configure it; if not, its name comes from a client.
    #[serde(rename = "watched")]
    pub configured: bool,
    /// Its slots, if known.
    pub slots: Option<u32>,
    /// Busy slots.
    pub busy: u32,
    /// The busy share of its slot time over the last 8 s.
    #[serde(rename = "u")]
    pub utilization: Option<f64>,
    /// Its signals.
    pub signals: Vec<SignalView>,
    /// The severity s of the shedding controller; below 0 it refuses no request.
    #[serde(rename = "s")]
    pub severity: f64,
    /// Whether the brake is on.
    pub braking: bool,
    /// The shed probability of each priority under the shedding controller, the least important first.
    #[serde(rename = "chances")]
    pub shed_probabilities: Vec<(Box<str>, f64)>,
    /// Leases of the most important priority.
    #[serde(skip)]
    pub critical: u32,
    /// Leases of all other priorities.
    #[serde(skip)]
    pub noncritical: u32,
    /// Its reserve, if it has one that is not disabled.
    pub reserve: Option<ReserveView>,
}

/// A signal of one pool, for display.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SignalView {
    /// Its name.
    pub name: Box<str>,
    /// The mapped utilization, if fresh.
    pub utilization: Option<f64>,
    /// Whether it has a fresh value.
    pub readable: bool,
    /// Whether the shedding controller uses it.
    pub counts: bool,
}

/// The reserve of one pool, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReserveView {
    /// Whether it counts all hosts; if not, this one alone.
    pub shared: bool,
    /// Maximum leases of lower priorities here; `None`: the slots are unknown, and none are reserved.
    #[serde(rename = "most")]
    pub noncritical_max: Option<u32>,
    /// Leases of lower priorities here.
    #[serde(rename = "others")]
    pub noncritical: u32,
    /// Leases of the most important priority here.
    pub critical: u32,
    /// The sums of its other hosts, if it counts them.
    pub elsewhere: Option<OtherHostsView>,
}

/// The sums of a pool's other hosts, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherHostsView {
    /// Their slots.
    pub slots: u64,
    /// Their leases of the most important priority.
    pub critical: u64,
    /// Their claims for lower priorities.
    #[serde(rename = "others")]
    pub noncritical: u64,
    /// The age of the sums, in seconds.
    pub stale_s: f64,
}

impl Pool {
    pub(super) fn new(name: &str) -> Pool {
        Pool { name: name.into(), severity: AtomicU64::new((-1.0_f64).to_bits()), ..Pool::default() }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Applies the pool's configuration. A controller with the same parameters keeps its state.
    pub(super) fn configure(&self, watch: Option<Arc<PoolShedding>>) {
        self.watch.store(watch);
        self.change_sessions(|_| ());
    }

    pub(super) fn shedding(&self) -> Option<Arc<PoolShedding>> {
        self.watch.load_full()
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.work.lock().pid
    }

    pub(super) fn add_session(&self, slots: u32, pid: Option<u32>, at: Timestamp) {
        self.change_sessions(|work| {
            work.sessions += 1;
            work.slots = work.slots.saturating_add(slots);
            work.slots_offset += i128::from(slots) * nanos(at);
            work.pid = pid.or(work.pid);
        });
    }

    pub(super) fn remove_session(&self, slots: u32, pid: Option<u32>, at: Timestamp) {
        self.change_sessions(|work| {
            work.sessions = work.sessions.saturating_sub(1);
            work.slots = work.slots.saturating_sub(slots);
            work.slots_offset -= i128::from(slots) * nanos(at);
            work.pid = work.pid.filter(|_| work.pid != pid);
        });
    }

    fn change_sessions(&self, change: impl FnOnce(&mut WorkIntegral)) {
        let mut work = self.work.lock();
        change(&mut work);
        self.busy.store(work.busy_slots(), Ordering::Relaxed);
        let live = work.slots;
        drop(work);
        let watch = self.watch.load();
        self.publish_slots(live, watch.as_ref().and_then(|watch| watch.shed.slots));
        if !self.is_measured.load(Ordering::Relaxed) {
            self.publish_room(watch.as_deref(), None);
        }
    }

    /// `has_slots`: whether the session has stated its slots.
    pub(super) fn take_slot(&self, has_slots: bool, at: Timestamp) {
        let mut work = self.work.lock();
        let busy = work.busy_of(has_slots);
        busy.count += 1;
        busy.offset += nanos(at);
        self.busy.store(work.busy_slots(), Ordering::Relaxed);
    }

    pub(super) fn free_slot(&self, has_slots: bool, at: Timestamp) {
        let mut work = self.work.lock();
        let busy = work.busy_of(has_slots);
        busy.count = busy.count.saturating_sub(1);
        busy.offset -= nanos(at);
        self.busy.store(work.busy_slots(), Ordering::Relaxed);
    }

    /// Counts a lease in, one of a lower priority only while fewer than `most` are in progress.
    pub(super) fn add_lease(&self, is_other: bool, most: Option<u32>) -> bool {
        if !is_other {
            self.critical.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let fits = |others: u32| most.is_none_or(|most| others < most).then_some(others.saturating_add(1));
        let entered = self.noncritical.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if !entered {
            self.is_refusing.store(true, Ordering::Relaxed);
        }
        entered
    }

    pub(super) fn remove_lease(&self, is_other: bool) {
        let count = if is_other { &self.noncritical } else { &self.critical };
        count.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn noncritical_leases(&self) -> u32 {
        self.noncritical.load(Ordering::Relaxed)
    }

    pub(super) fn busy(&self) -> u32 {
        self.busy.load(Ordering::Relaxed)
    }

    pub(super) fn slots(&self) -> Option<u32> {
        Some(self.slots.load(Ordering::Relaxed)).filter(|slots| *slots > 0)
    }

    pub(super) fn severity(&self) -> f64 {
        f64::from_bits(self.severity.load(Ordering::Relaxed))
    }

    pub(super) fn is_braking(&self) -> bool {
        self.is_braking.load(Ordering::Relaxed)
    }

    /// Whether elastic quotas have room. Each decision of a session reads it.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.busy() < self.room_below.load(Ordering::Relaxed)
    }

    /// Returns whether a caller makes up a large part of a priority's requests, including this one. `notes`:
    /// records the request, otherwise works on a copy.
    pub(super) fn is_heavy_caller(&self, rank: usize, caller: u64, at: Timestamp, notes: bool) -> bool {
        let Some(mut heavy) = self.heavy.try_lock() else { return false };
        if !notes {
            let mut copy = heavy.get(rank).cloned().unwrap_or_default();
            copy.halve_counts(at);
            return copy.count_request(caller);
        }
        if heavy.len() <= rank {
            heavy.resize_with(rank + 1, HeavyCallers::default);
        }
        let Some(heavy) = heavy.get_mut(rank) else { return false };
        heavy.halve_counts(at);
        heavy.count_request(caller)
    }

    /// Updates window, brake and severity, every 250 ms.
    pub(super) fn tick(&self, at: Timestamp) {
        let watch = self.shedding();
        let mut controller = self.controller.lock();
        if controller.ticked.is_some_and(|ticked| at <= ticked) {
            return;
        }
        let (busy_nanos, live_nanos, live) = {
            let work = self.work.lock();
            let live_nanos = integral(work.slots, work.slots_offset, at);
            let busy = [&work.busy, &work.busy_without_slots];
            (busy.map(|busy| integral(busy.count, busy.offset, at)), live_nanos, work.slots)
        };
        let configured = watch.as_ref().and_then(|watch| watch.shed.slots);
        controller.add_slot_time(at, (live_nanos, live), busy_nanos, configured);
        let (busy_nanos, slot_nanos) = (controller.busy_nanos, controller.slot_nanos);
        controller.window.push(at, busy_nanos, slot_nanos);
        controller.ticked = Some(at);
        self.publish_slots(live, configured);
        let Some(watch) = watch else { return self.publish_room(None, None) };
        controller.reset_if_changed(&watch);
        let slots = self.slots();
        let queue = self.signals.lock().queue(at);
        if let (Some(slots), Some(_)) = (slots, &watch.shed.brake) {
            let busy_now = controller.window.mean_over(BUSY_NOW);
            controller.brake.tick(at, queue, busy_now, slots);
        } else {
            controller.brake = Brake::default();
        }
        let is_braking = controller.brake.is_on();
        self.is_braking.store(is_braking, Ordering::Relaxed);
        let workers = slots.and_then(|_| controller.window.mean_over(WINDOW));
        let counted = slots.and_then(|_| self.signals.lock().counted(&watch, at));
        let utilization = [workers, counted].into_iter().flatten().reduce(f64::max);
        // Without this the brake would hide the load from the shedding controller.
        let is_enforced = watch.mode(ShedPart::Brake) == Some(Mode::Enforce);
        let seen = if is_braking && is_enforced { Some(1.0) } else { utilization };
        controller.step(&watch, seen, at);
        self.severity.store(controller.severity.value().to_bits(), Ordering::Relaxed);
        self.publish_room(Some(&watch), utilization);
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the slots")]
    fn publish_room(&self, watch: Option<&PoolShedding>, utilization: Option<f64>) {
        let watch = watch.filter(|_| !self.is_braking() && self.severity() <= 0.0);
        let good = watch.map_or(0.0, |watch| watch.controller.good);
        let below = match utilization {
            Some(utilization) if utilization < good => u32::MAX,
            Some(_) => 0,
            None => (good * f64::from(self.slots().unwrap_or_default())).ceil() as u32,
        };
        self.room_below.store(below, Ordering::Relaxed);
        self.is_measured.store(utilization.is_some(), Ordering::Relaxed);
    }

    /// Returns whether ticks change nothing until a request or a signal arrives.
    pub(super) fn is_at_rest(&self) -> bool {
        let Some(watch) = self.shedding() else { return true };
        let controller = self.controller.lock();
        self.busy() == 0
            && !self.is_braking()
            && controller.began.is_some()
            && controller.severity.is_at_rest(&watch.controller)
            && controller.window.mean_over(WINDOW).is_none_or(|busy| busy == 0.0)
            && self.signals.lock().is_empty()
    }

    pub(super) fn view(&self, at: Timestamp) -> PoolView {
        let watch = self.shedding();
        let slots = self.slots();
        let utilization = slots.and_then(|_| self.controller.lock().window.mean_over(WINDOW));
        let signals = watch.as_ref().map(|watch| self.signals.lock().view(watch, at)).unwrap_or_default();
        let severity = self.severity();
        let reserve = watch.as_ref().and_then(|watch| self.reserve_view(watch, at));
        PoolView {
            pool: self.name.clone(),
            configured: watch.is_some(),
            slots,
            busy: self.busy(),
            utilization,
            signals,
            severity,
            braking: self.is_braking(),
            shed_probabilities: watch.map(|watch| watch.shed_probabilities(severity)).unwrap_or_default(),
            critical: self.critical.load(Ordering::Relaxed),
            noncritical: self.noncritical_leases(),
            reserve,
        }
    }

    fn reserve_view(&self, watch: &PoolShedding, at: Timestamp) -> Option<ReserveView> {
        watch.mode(ShedPart::Fleet)?;
        let reserve = watch.shed.fleet.as_ref()?.reserve;
        let others = *self.other_hosts.lock();
        let elsewhere = others.and_then(|others| others.valid_sums(at)).map(|(sums, age)| OtherHostsView {
            slots: sums.slots,
            critical: sums.critical,
            noncritical: sums.noncritical,
            stale_s: age.as_secs_f64(),
        });
        Some(ReserveView {
            shared: elsewhere.is_some(),
            noncritical_max: self.slots().map(|slots| self.noncritical_max(slots, reserve, at)),
            noncritical: self.noncritical_leases(),
            critical: self.critical.load(Ordering::Relaxed),
            elsewhere,
        })
    }

    fn publish_slots(&self, live: u32, configured: Option<u32>) {
        let slots = if live > 0 { live } else { configured.unwrap_or(0) };
        self.slots.store(slots, Ordering::Relaxed);
    }
}

/// The averaging window of the shedding controller.
const WINDOW: Duration = Duration::from_secs(8);

/// The averaging window of the brake where no accept queue can be read.
const BUSY_NOW: Duration = Duration::from_secs(1);

/// Session and lease counts with their integrals over time. The sum of `n · t` over all begins at t, less
/// that over all ends, turns the current counts into integrals, in any order of arrival.
#[derive(Debug, Default)]
struct WorkIntegral {
    sessions: u32,
    slots: u32,
    slots_offset: i128,
    busy: BusyIntegral,
    /// Work of sessions that have not stated their slots.
    busy_without_slots: BusyIntegral,
    pid: Option<u32>,
}

#[derive(Debug, Default)]
struct BusyIntegral {
    count: u32,
    offset: i128,
}

impl WorkIntegral {
    fn busy_of(&mut self, has_slots: bool) -> &mut BusyIntegral {
        if has_slots { &mut self.busy } else { &mut self.busy_without_slots }
    }

    /// The busy ones of the slots: while sessions state theirs, work of others occupies none of them.
    fn busy_slots(&self) -> u32 {
        let without = if self.slots > 0 { 0 } else { self.busy_without_slots.count };
        self.busy.count.saturating_add(without)
    }
}

/// Computes n · now − `began`, the integral of a count over time.
fn integral(count: u32, began: i128, at: Timestamp) -> u128 {
    // Negative only for a moment, while another thread's clock reading is ahead of `at`.
    u128::try_from(i128::from(count) * nanos(at) - began).unwrap_or_default()
}

fn nanos(at: Timestamp) -> i128 {
    i128::from(at.as_nanos())
}

#[derive(Debug, Default)]
pub(super) struct PoolTable(Mutex<HashMap<Box<str>, Arc<Pool>>>);

impl PoolTable {
    /// Returns the pool of this name; creates it if there is none.
    pub(super) fn find_or_create(&self, name: &str) -> Arc<Pool> {
        let mut pools = self.0.lock();
        if let Some(pool) = pools.get(name) {
            return Arc::clone(pool);
        }
        let pool = Arc::new(Pool::new(name));
        pools.insert(name.into(), Arc::clone(&pool));
        pool
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<Pool>> {
        self.0.lock().get(name).cloned()
    }

    /// Applies the rules' configuration to all pools, and removes that of pools without a gate.
    pub(super) fn configure<'g>(&self, gate: impl Fn(&Arc<Pool>) -> Option<&'g Gate>) {
        for pool in self.all() {
            pool.configure(gate(&pool).map(|gate| Arc::clone(&gate.shedding)));
        }
    }

    /// Forgets unconfigured pools without sessions, and outdated signals.
    pub(super) fn sweep(&self, at: Timestamp) {
        let mut pools = self.0.lock();
        pools.retain(|_, pool| {
            let is_used = pool.watch.load().is_some() || pool.work.lock().sessions > 0;
            // Another owner of the handle is about to join the pool.
            is_used || Arc::strong_count(pool) > 1
        });
        pools.values().for_each(|pool| pool.signals.lock().forget_old(at));
    }

    pub(super) fn all(&self) -> Vec<Arc<Pool>> {
        self.0.lock().values().cloned().collect()
    }
}
