//! A host's share of one budget that many hosts have together: tokens borrowed ahead of need, a little credit, and what
//! holds while the others cannot be heard.
//!
//! ```text
//!   Redis: one bucket of B tokens that refills at R        level + all that hosts hold ≤ B
//!      ▲ charged, given back        │ granted
//!   this host: tokens in hand ──────┴──▶ spent first
//!              credit, at most θB/N ────▶ spent next, and charged later
//! ```
//!
//! Promise, for N hosts that Redis hears: in any span W at most `B + ⌊W · R⌋` units pass without credit; with it θB more,
//! or N where θB/N is less than one, and θ·W·R from hosts on which a key stays below θR/N, which nobody is told of. Who
//! cannot hear Redis for longer than a hold lasts has no tokens in hand.

mod alone;
mod asking;
mod credit;
mod folded;
mod level;
mod state;
mod sync;
mod window;

pub use asking::{Asks, Brought, PATIENCE};
pub use folded::Folded;
pub(super) use state::HOLD;
pub use state::{Seen, Share};
pub use sync::{Reported, Settled};
pub use window::{More, Turns, Window, WindowFault};

use super::token_bucket;
use crate::clock::Micros;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The numbers of one budget.
#[derive(Clone, Debug)]
pub struct Quota {
    bucket: token_bucket::Quota,
    credit: u16,
    /// Nothing is admitted on credit where a host's part of it is less than a unit.
    in_whole_units: bool,
    when_down: WhenDown,
    derived: Derived,
    asks: Asks,
    /// How long a request waits for a call at most.
    patience: Duration,
    joined: Arc<OnceLock<Joined>>,
    /// Where it is none of a bucket, but of windows.
    window: Option<Arc<Window>>,
}

/// What follows from the numbers, worked out once: no request divides by what it need not.
#[derive(Clone, Copy, Debug)]
struct Derived {
    /// The rate in millionths of a unit a second.
    micro_per_second: u64,
    /// The burst in millionths of a unit.
    full: i64,
    /// The time in which the budget earns one unit.
    one_unit: Micros,
    /// Units that all hosts together may admit before they are charged.
    credit: u32,
    /// Ticks until one unit of credit is forgiven where there is one host, and what is left over of that division.
    credit_ticks: u64,
    credit_rest: u64,
}

/// What a budget is part of.
#[derive(Debug)]
struct Joined {
    standing: Arc<Standing>,
    budget: u64,
}

/// What holds while Redis is not heard, once the tokens in hand are spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenDown {
    /// The N-th part of the budget, N being the hosts that were last known.
    #[default]
    Share,
    /// The whole budget on each host.
    Local,
    /// Everything passes.
    Allow,
    /// Nothing passes.
    Refuse,
}

/// How this host stands with the others, for all keys of all budgets.
#[derive(Debug)]
pub struct Standing {
    hosts: AtomicU32,
    outages: AtomicU32,
    /// The same for budgets whose requests always wait for a call: a Redis that answers too late is not heard either.
    outages_of_asking: AtomicU32,
}

impl Default for Standing {
    /// Alone, and nothing heard yet.
    fn default() -> Standing {
        let outages = || AtomicU32::new(CUT_OFF);
        Standing { hosts: AtomicU32::new(1), outages: outages(), outages_of_asking: outages() }
    }
}

impl Standing {
    /// Hosts that live, this one included; at least one.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts.load(Ordering::Relaxed)
    }

    /// Says how many hosts live.
    pub fn set_hosts(&self, hosts: u32) {
        self.hosts.store(hosts.clamp(1, HOSTS_MAX), Ordering::Relaxed);
    }

    /// Whether Redis is heard.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        is_linked(self.outages())
    }

    /// Says whether Redis is heard. Returns whether that is a change.
    pub fn set_linked(&self, linked: bool) -> bool {
        self.set_answering(linked);
        let change = |outages: u32| (is_linked(outages) != linked).then(|| outages.wrapping_add(1));
        self.outages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    /// A number that goes up by one when Redis is not heard any more, and when it is heard again.
    fn outages(&self) -> u32 {
        self.outages.load(Ordering::Relaxed)
    }

    /// Says whether Redis, which is heard, answers in time the calls that requests wait for.
    pub fn set_answering(&self, answering: bool) {
        let change = |outages: u32| (is_linked(outages) != answering).then(|| outages.wrapping_add(1));
        let _ = self.outages_of_asking.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Whether requests may wait for calls.
    #[must_use]
    pub fn is_answering(&self) -> bool {
        is_linked(self.outages_of_asking.load(Ordering::Relaxed))
    }
}

/// Whether Redis is heard when the number of outages is this.
const fn is_linked(outages: u32) -> bool {
    outages.is_multiple_of(2)
}

impl Quota {
    /// A budget as large as this bucket. `credit`, in thousandths of the burst, is what all hosts together may admit
    /// before it is charged; zero: nothing.
    #[must_use]
    pub fn new(bucket: token_bucket::Quota, credit: u16, when_down: WhenDown) -> Quota {
        let credit = credit.min(CREDIT_MAX);
        let derived = Derived::of(&bucket, credit);
        let (asks, joined) = (Asks::Never, Arc::default());
        let (in_whole_units, patience, window) = (false, PATIENCE, None);
        Quota { bucket, credit, in_whole_units, when_down, derived, asks, patience, joined, window }
    }

    /// The same, with no credit at all for hosts that are so many that the part of each is less than a unit: else each may
    /// use one.
    #[must_use]
    pub fn in_whole_units(self) -> Quota {
        Quota { in_whole_units: true, ..self }
    }

    /// The budget as one bucket; of windows, what one of them admits, earned at the mean rate.
    #[must_use]
    pub const fn bucket(&self) -> &token_bucket::Quota {
        &self.bucket
    }

    /// What all hosts together may admit before it is charged, in thousandths of the burst.
    #[must_use]
    pub const fn credit(&self) -> u16 {
        self.credit
    }

    /// What holds while Redis is not heard.
    #[must_use]
    pub const fn when_down(&self) -> WhenDown {
        self.when_down
    }

    /// Joins the fleet under a number of its own: from now on this is how the host stands. Until then it is judged as if
    /// there were no other host. Whoever joins twice stays where it is.
    pub fn join(&self, standing: &Arc<Standing>, budget: u64) {
        self.joined.get_or_init(|| Joined { standing: Arc::clone(standing), budget });
    }

    /// The number under which it has joined, if it has.
    #[must_use]
    pub fn budget(&self) -> Option<u64> {
        self.joined.get().map(|joined| joined.budget)
    }

    fn standing(&self) -> Option<&Standing> {
        self.joined.get().map(|joined| &*joined.standing)
    }

    /// Units that one of so many hosts may admit before they are charged. Zero: less than one.
    #[inline]
    fn credit_units(&self, hosts: u32) -> u32 {
        self.derived.credit / hosts.max(1)
    }

    /// Whether the credit is less than a unit for each of so many hosts: then each may borrow one at a time, as long as
    /// Redis has enough.
    #[must_use]
    pub fn lends_one(&self, hosts: u32) -> bool {
        self.credit > 0 && self.credit_units(hosts) == 0
    }

    /// What Redis is to have, in millionths of a unit, for a host to borrow one: as much as all may be lent, and once more,
    /// or what all ask for until they hear of each other. `demand`: theirs, in thousandths of a unit a second.
    #[must_use]
    pub fn lends_above(&self, demand: u64) -> i64 {
        let burst = u64::from(self.bucket.burst()) * MICRO_UNITS;
        let credit = burst / CREDIT_WHOLE * u64::from(self.credit);
        let others = demand.saturating_mul(MICRO_UNITS / 1_000) / SYNCS_PER_SECOND;
        i64::try_from(credit + others.min(credit)).unwrap_or(i64::MAX)
    }

    /// Ticks until one unit of credit is forgiven on one of so many hosts, where nobody was told of it; at least one.
    #[inline]
    fn credit_ticks(&self, hosts: u32) -> u64 {
        let whole = self.derived.credit_ticks.saturating_mul(u64::from(hosts)).max(1);
        match self.derived.credit_rest {
            0 => whole,
            rest => whole.saturating_add(rest * u64::from(hosts) / u64::from(self.credit.max(1))),
        }
    }

    /// The rate in millionths of a unit a second.
    #[must_use]
    pub const fn micro_units_per_second(&self) -> u64 {
        self.derived.micro_per_second
    }
}

impl Derived {
    fn of(bucket: &token_bucket::Quota, credit: u16) -> Derived {
        let rate = bucket.rate();
        let micro = u128::from(rate.count()) * u128::from(MICRO_UNITS) * NANOS_PER_SECOND;
        let one_unit = rate.period_nanos().div_ceil(u64::from(rate.count())).div_ceil(NANOS_PER_MICRO);
        let part = u64::from(bucket.burst()) * u64::from(credit) / CREDIT_WHOLE;
        // ⌊interval · 1000 · hosts ÷ credit⌋ is quotient · hosts + ⌊rest · hosts ÷ credit⌋.
        let whole = u128::from(bucket.ticks_of(1)) * u128::from(CREDIT_WHOLE);
        let divisor = u128::from(credit.max(1));
        let at_most = |number: u128| u64::try_from(number).unwrap_or(u64::MAX);
        Derived {
            micro_per_second: at_most(micro / u128::from(rate.period_nanos())),
            full: i64::from(bucket.burst()) * MICRO_UNITS.cast_signed(),
            one_unit: Micros(one_unit),
            // Credit is at most all of the burst.
            credit: u32::try_from(part).unwrap_or(u32::MAX),
            credit_ticks: at_most(whole / divisor),
            credit_rest: at_most(whole % divisor),
        }
    }
}

/// Who a budget is shared with is no part of its numbers.
impl PartialEq for Quota {
    fn eq(&self, other: &Quota) -> bool {
        let numbers = |quota: &Quota| {
            (quota.bucket, quota.credit, quota.in_whole_units, quota.when_down, quota.asks, quota.patience)
        };
        numbers(self) == numbers(other) && self.window == other.window
    }
}

impl Eq for Quota {}

/// Before anything is heard there is an outage.
const CUT_OFF: u32 = 1;

/// More hosts than one Redis was ever planned for: what says more is mistaken.
const HOSTS_MAX: u32 = 100_000;

/// All of the burst.
const CREDIT_MAX: u16 = 1_000;

const CREDIT_WHOLE: u64 = 1_000;

/// How often a second Redis is asked about a key that is in demand.
const SYNCS_PER_SECOND: u64 = 10;

const MICRO_UNITS: u64 = 1_000_000;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

const NANOS_PER_MICRO: u64 = 1_000;
