//! A host's share of one fleet budget: tokens borrowed ahead of demand, a small credit, and the fallback during an
//! outage.
//!
//! ```text
//!   Redis: one bucket of B tokens that refills at R        level + held by all hosts ≤ B
//!      ▲ charged, returned          │ granted
//!   this host: borrowed tokens ─────┴──▶ spent first
//!              credit, at most θB/N ────▶ spent next, and charged later
//! ```
//!
//! Promise, for N hosts that reach Redis: in any span W at most `B + ⌊W · R⌋` units pass without credit. With credit,
//! θB more pass, or N where θB/N is less than one, and θ·W·R from hosts on which a key stays below θR/N and is
//! untracked. A host that cannot reach Redis for longer than a hold has no borrowed tokens.

// Public for tests alone.
#![doc(hidden)]

mod compact;
mod credit;
mod fallback;
mod level;
mod remote_check;
mod state;
mod sync;
mod window;

pub use compact::CompactShare;
pub use remote_check::{KeyCheckReply, REMOTE_CHECK_WAIT_DEFAULT, RemoteCheckWait};
pub use state::{HOLD, RedisLevel, ShareState};
pub use sync::{ShareReply, ShareReport};
pub use window::{BudgetWindow, NextIncrease, SharedWindowError, WindowSchedule};

use super::token_bucket;
use crate::clock::Micros;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use strum::{Display, IntoStaticStr};

/// The configured numbers of one budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareQuota {
    bucket: token_bucket::TokenBucketQuota,
    credit: u16,
    /// The most units that requests charge after the fact.
    debt_max: u32,
    derived: Derived,
    terms: FleetTerms,
    window: Option<Arc<BudgetWindow>>,
}

/// How hosts share a budget or a concurrency limit.
#[derive(Clone, Debug)]
pub struct FleetTerms {
    pub(super) when_down: Fallback,
    pub(super) asks: RemoteCheckWait,
    /// The longest wait of a request for a remote check.
    pub(super) wait_max: Duration,
    pub(super) joined: Arc<OnceLock<FleetMember>>,
}

/// Values derived once from the numbers, to avoid divisions per request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Derived {
    /// The rate in millionths of a unit per second.
    micro_per_second: u64,
    /// The burst in millionths of a unit.
    full: i64,
    /// The time in which the budget earns one unit.
    one_unit: Micros,
    /// Units that all hosts together may admit before they are charged.
    credit: u32,
    /// Ticks in which one unit of credit is forgiven on a single host, and the remainder of that division.
    credit_ticks: u64,
    credit_rest: u64,
}

/// The fleet that a budget or a concurrency limit has joined.
#[derive(Debug)]
pub(super) struct FleetMember {
    pub(super) fleet_status: Arc<FleetStatus>,
    pub(super) budget: u64,
}

/// The fallback while Redis is unreachable, once the borrowed tokens are spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, IntoStaticStr, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
#[schemars(inline)]
pub enum Fallback {
    /// The N-th part of the budget on each host, for the last known host count N.
    #[default]
    Share,
    /// The whole budget on each host.
    Local,
    /// Allows every request.
    Allow,
    /// Refuses every request.
    Refuse,
}

/// The fleet status of this host, shared by all keys of all budgets.
#[derive(Debug)]
pub struct FleetStatus {
    hosts: AtomicU32,
    /// The hosts that were live, without `hosts_at_least`.
    counted: AtomicU32,
    /// The least number of hosts to share with, however few are live.
    hosts_at_least: AtomicU32,
    outages: AtomicU32,
    /// As `outages`, for budgets whose requests always wait for a remote check: a Redis that replies too late counts as
    /// unreachable for them.
    remote_check_outages: AtomicU32,
    /// Remote checks that wait for at most this time are paused, in microseconds: Redis replies too late for them.
    late_wait_us: AtomicU32,
    /// The smoothed round trip of the sync, in microseconds.
    round_trip_us: AtomicU32,
}

impl Default for FleetStatus {
    /// One host, in an outage: nothing has been received from Redis.
    fn default() -> FleetStatus {
        let outages = || AtomicU32::new(OUTAGES_AT_START);
        FleetStatus {
            hosts: AtomicU32::new(1),
            counted: AtomicU32::new(1),
            hosts_at_least: AtomicU32::new(1),
            outages: outages(),
            remote_check_outages: outages(),
            late_wait_us: AtomicU32::new(u32::MAX),
            round_trip_us: AtomicU32::new(0),
        }
    }
}

impl FleetStatus {
    /// More hosts than one Redis was planned for; a larger count is an error.
    pub const HOSTS_MAX: u32 = 100_000;

    /// The number of hosts that share the budgets: those that are live, this one included, or the least number set.
    pub fn hosts(&self) -> u32 {
        self.hosts.load(Ordering::Relaxed)
    }

    pub fn counted(&self) -> u32 {
        self.counted.load(Ordering::Relaxed)
    }

    pub fn set_hosts(&self, hosts: u32) {
        self.counted.store(hosts.clamp(1, FleetStatus::HOSTS_MAX), Ordering::Relaxed);
        let least = self.hosts_at_least.load(Ordering::Relaxed);
        self.hosts.store(hosts.clamp(least, FleetStatus::HOSTS_MAX), Ordering::Relaxed);
    }

    /// Sets the least number of hosts, for a host that cannot count the others: it starts while Redis is unreachable.
    pub fn set_hosts_at_least(&self, hosts: u32) {
        self.hosts_at_least.store(hosts.clamp(1, FleetStatus::HOSTS_MAX), Ordering::Relaxed);
        self.set_hosts(self.counted());
    }

    pub fn is_redis_reachable(&self) -> bool {
        is_linked(self.outages())
    }

    /// Sets whether Redis is reachable. Returns whether that is a change.
    pub fn set_redis_reachable(&self, linked: bool) -> bool {
        self.set_late_wait(if linked { Duration::ZERO } else { Duration::MAX });
        let change = |outages: u32| (is_linked(outages) != linked).then(|| outages.wrapping_add(1));
        self.outages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    /// A counter incremented at the start and at the end of each outage.
    fn outages(&self) -> u32 {
        self.outages.load(Ordering::Relaxed)
    }

    pub fn set_round_trip(&self, round_trip: Duration) {
        let micros = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX);
        self.round_trip_us.store(micros, Ordering::Relaxed);
    }

    /// The smoothed round trip to Redis; zero before the first reply.
    pub fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us.load(Ordering::Relaxed).into())
    }

    /// Sets the longest wait of the remote checks for which Redis, while reachable, replies too late; zero: it replies in time
    /// for all.
    pub fn set_late_wait(&self, wait: Duration) {
        let micros = u32::try_from(wait.as_micros()).unwrap_or(u32::MAX);
        self.late_wait_us.store(micros, Ordering::Relaxed);
        let answering = micros == 0;
        let change = |outages: u32| (is_linked(outages) != answering).then(|| outages.wrapping_add(1));
        let _ = self.remote_check_outages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    pub fn answers_in_time(&self) -> bool {
        is_linked(self.remote_check_outages.load(Ordering::Relaxed))
    }

    /// Whether requests may wait this long for remote checks.
    pub(super) fn answers_within(&self, wait: Duration) -> bool {
        wait > Duration::from_micros(self.late_wait_us.load(Ordering::Relaxed).into())
    }
}

/// Whether Redis is reachable at this value of the outage counter.
const fn is_linked(outages: u32) -> bool {
    outages.is_multiple_of(2)
}

impl ShareQuota {
    /// Makes a budget as large as this bucket. `credit`, in thousandths of the burst, is the amount that all hosts
    /// together may admit before it is charged; zero is none.
    pub fn new(bucket: token_bucket::TokenBucketQuota, credit: u16, when_down: Fallback) -> ShareQuota {
        let quota = ShareQuota {
            bucket,
            credit: credit.min(CREDIT_MAX),
            debt_max: bucket.burst(),
            derived: Derived::default(),
            terms: FleetTerms::new(when_down, RemoteCheckWait::Never, REMOTE_CHECK_WAIT_DEFAULT),
            window: None,
        };
        ShareQuota { derived: Derived::new(&quota), ..quota }
    }

    pub fn with_debt_max(self, debt_max: u32) -> ShareQuota {
        ShareQuota { debt_max, ..self }
    }

    /// The longest time until a request of at most the burst may pass: for a bucket, until the largest debt is earned and the
    /// bucket is full.
    pub(super) fn longest_wait(&self) -> Micros {
        if self.window.is_some() {
            return self.window_length();
        }
        let burst = u64::from(self.bucket.burst());
        let micros = u128::from(self.bucket.window().0) * u128::from(burst + u64::from(self.debt_max));
        Micros(u64::try_from(micros.div_ceil(u128::from(burst.max(1)))).unwrap_or(u64::MAX))
    }

    /// The budget as one bucket. For windows: the limit of one window, earned at the mean rate.
    pub const fn bucket(&self) -> &token_bucket::TokenBucketQuota {
        &self.bucket
    }

    /// The same limit on a single host: the bucket, or the window.
    pub fn local_quota(&self) -> super::Quota {
        match &self.window {
            Some(window) => window.local_quota().clone(),
            None => super::Quota::TokenBucket(self.bucket),
        }
    }

    /// Describes its numbers and windows: equal for two quotas that admit the same.
    pub fn describe_numbers(&self) -> String {
        let rate = self.bucket.rate();
        let windows = self.window().map(BudgetWindow::describe).unwrap_or_default();
        format!("{}/{} {} {windows}", rate.count(), rate.period_nanos(), self.bucket.burst())
    }

    /// The credit of all hosts together, in thousandths of the burst.
    pub const fn credit(&self) -> u16 {
        self.credit
    }

    pub const fn fallback(&self) -> Fallback {
        self.terms.when_down
    }

    /// Joins the fleet under its own budget number. Before that the budget is judged as if there were no other host.
    /// Joining again has no effect.
    pub fn join(&self, fleet_status: &Arc<FleetStatus>, budget: u64) {
        self.terms.join(fleet_status, budget);
    }

    /// The budget number under which it has joined the fleet.
    pub fn budget(&self) -> Option<u64> {
        self.terms.joined.get().map(|joined| joined.budget)
    }

    pub fn fleet_status(&self) -> Option<&FleetStatus> {
        self.terms.joined.get().map(|joined| &*joined.fleet_status)
    }

    /// The credit that is the whole burst at once. Credit is forgiven within a window: half of it at once and half in the
    /// course of the window are all of it.
    fn credit_whole(&self) -> u64 {
        if self.window.is_some() { 2 * CREDIT_WHOLE } else { CREDIT_WHOLE }
    }

    /// Units that one of `hosts` hosts may admit before they are charged; zero means less than one.
    #[inline]
    fn credit_units(&self, hosts: u32) -> u32 {
        self.derived.credit / hosts.max(1)
    }

    /// Whether each of `hosts` hosts has less than a unit of credit: each may then borrow one unit at a time, while
    /// Redis has enough.
    pub fn credit_below_one_unit(&self, hosts: u32) -> bool {
        self.credit > 0 && self.credit_units(hosts) == 0
    }

    /// The level, in millionths of a unit, above which Redis lends a host one unit: the credit of all hosts, plus their
    /// demand until they learn of each other's, at most the credit again. `demand` is in thousandths of a unit per
    /// second.
    pub fn lending_level_min(&self, demand: u64) -> i64 {
        let burst = u64::from(self.bucket.burst()) * MICRO_UNITS;
        let credit = burst / self.credit_whole() * u64::from(self.credit);
        let others = demand.saturating_mul(MICRO_UNITS / 1_000) / SYNCS_PER_SECOND;
        i64::try_from(credit + others.min(credit)).unwrap_or(i64::MAX)
    }

    /// Ticks in which one unit of credit is forgiven on one of `hosts` hosts, for an untracked key; at least one.
    #[inline]
    fn credit_ticks(&self, hosts: u32) -> u64 {
        let whole = self.derived.credit_ticks.saturating_mul(u64::from(hosts)).max(1);
        match self.derived.credit_rest {
            0 => whole,
            rest => whole.saturating_add(rest * u64::from(hosts) / u64::from(self.credit.max(1))),
        }
    }

    /// The rate in millionths of a unit per second.
    pub const fn micro_units_per_second(&self) -> u64 {
        self.derived.micro_per_second
    }
}

impl Derived {
    fn new(quota: &ShareQuota) -> Derived {
        let (bucket, credit) = (&quota.bucket, quota.credit);
        let rate = bucket.rate();
        let micro = u128::from(rate.count()) * u128::from(MICRO_UNITS) * NANOS_PER_SECOND;
        let one_unit = Micros::from_nanos(rate.period_nanos().div_ceil(u64::from(rate.count())));
        let part = u64::from(bucket.burst()) * u64::from(credit) / quota.credit_whole();
        // ⌊interval · whole credit · hosts ÷ credit⌋ is quotient · hosts + ⌊rest · hosts ÷ credit⌋.
        let whole = u128::from(bucket.ticks_of(1)) * u128::from(quota.credit_whole());
        let divisor = u128::from(credit.max(1));
        let at_most = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        Derived {
            micro_per_second: at_most(micro / u128::from(rate.period_nanos())),
            full: i64::from(bucket.burst()) * MICRO_UNITS.cast_signed(),
            one_unit,
            // The credit is at most the whole burst.
            credit: u32::try_from(part).unwrap_or(u32::MAX),
            credit_ticks: at_most(whole / divisor),
            credit_rest: at_most(whole % divisor),
        }
    }
}

impl FleetTerms {
    pub fn new(when_down: Fallback, asks: RemoteCheckWait, wait_max: Duration) -> FleetTerms {
        FleetTerms { when_down, asks, wait_max, joined: Arc::default() }
    }

    pub(super) fn join(&self, fleet_status: &Arc<FleetStatus>, budget: u64) {
        self.joined.get_or_init(|| FleetMember { fleet_status: Arc::clone(fleet_status), budget });
    }

    /// Whether requests may wait for a remote check.
    pub(super) fn may_wait(&self) -> bool {
        self.asks != RemoteCheckWait::Never
    }
}

/// Fleet membership is not part of the numbers of a limit.
impl PartialEq for FleetTerms {
    fn eq(&self, other: &FleetTerms) -> bool {
        (self.when_down, self.asks, self.wait_max) == (other.when_down, other.asks, other.wait_max)
    }
}

impl Eq for FleetTerms {}

/// The initial outage counter: an outage until Redis is reached.
const OUTAGES_AT_START: u32 = 1;

/// The whole burst, in thousandths.
const CREDIT_MAX: u16 = 1_000;

const CREDIT_WHOLE: u64 = 1_000;

/// Syncs per second of a key in demand.
const SYNCS_PER_SECOND: u64 = 10;

const MICRO_UNITS: u64 = 1_000_000;

const NANOS_PER_SECOND: u128 = 1_000_000_000;
