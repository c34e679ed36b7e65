//! The distribution of callers: how much each asked for in each window of a rule, so that a limit can be
//! chosen. It depends on the requests alone, not on the verdicts.
//!
//! Callers are identified by fingerprints, of which a bounded number is kept. Past the bound the rule with
//! the most keeps one in two of its callers, then one in four and so on, drawn by the fingerprint (Flajolet,
//! “On Adaptive Sampling”, 1990). A caller that is kept was kept from its first request on, so its counts are
//! complete and the sample is uniform.

use hashbrown::HashTable;
use hdrhistogram::Histogram;

use crate::clock::Timestamp;
use crate::rules::Rule;

/// Callers by fingerprint. Halved, it keeps one in two of them.
#[derive(Debug)]
pub struct SampledCallers<T> {
    by_key: HashTable<(u64, T)>,
    /// One caller in 2 to this power is kept.
    halvings: u32,
}

impl<T> SampledCallers<T> {
    /// Makes a sample of one caller in this number, a power of two.
    pub(crate) fn one_in(share: u64) -> SampledCallers<T> {
        SampledCallers { by_key: HashTable::new(), halvings: share.ilog2() }
    }

    /// Returns the number of callers of which one is kept.
    pub(crate) fn share(&self) -> u64 {
        1 << self.halvings.min(63)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.by_key.iter().map(|(_, caller)| caller)
    }

    /// Adds a caller, or updates a known one, if it is in the sample. Returns whether it was added.
    pub(crate) fn note(&mut self, key: u64, first: impl FnOnce() -> T, again: impl FnOnce(&mut T)) -> bool {
        if !is_drawn(key, self.halvings) {
            return false;
        }
        // A fingerprint is a hash already.
        if let Some((_, caller)) = self.by_key.find_mut(key, |(known, _)| *known == key) {
            again(caller);
            return false;
        }
        self.by_key.insert_unique(key, (key, first()), |(known, _)| *known);
        true
    }

    /// Keeps one in two; returns the number removed.
    pub fn halve(&mut self) -> usize {
        let before = self.by_key.len();
        self.halvings += 1;
        let halvings = self.halvings;
        self.by_key.retain(|(key, _)| is_drawn(*key, halvings));
        before - self.by_key.len()
    }
}

#[derive(Debug)]
pub struct DemandByCaller {
    /// Zero: the rule has no windows.
    pub(super) window_nanos: u64,
    pub callers: SampledCallers<CallerDemand>,
    /// Units asked for in each closed window of each caller.
    windows: Histogram<u64>,
}

#[derive(Debug)]
pub struct CallerDemand {
    /// The number of its latest window, and the units asked for in it so far.
    window: u64,
    now: u64,
    /// The most units of any earlier window.
    busiest: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallerDistribution {
    pub(crate) window_nanos: u64,
    /// One caller in this many was sampled.
    pub one_in: u64,
    /// The most units of one window of each caller, ascending.
    pub busiest: Vec<u64>,
    /// Units per non-empty window of a caller, at each of [`QUANTILES`].
    pub(crate) windows: [u64; QUANTILES.len()],
}

impl CallerDistribution {
    /// The busiest windows of callers, at each of [`QUANTILES`].
    pub(super) fn quantiles(&self) -> [u64; QUANTILES.len()] {
        QUANTILES.map(|(_, share)| quantile(&self.busiest, share))
    }

    /// The number of callers with more units than this in one window.
    pub(super) fn above(&self, limit: u64) -> usize {
        self.busiest.len() - self.busiest.partition_point(|most| *most <= limit)
    }
}

/// The smallest of some ascending values such that at least this share of them is not above it.
pub fn quantile(values: &[u64], share: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length that is at hand"
    )]
    let rank = (values.len() as f64 * share - SLACK).ceil().max(1.0) as usize;
    values.get(rank.min(values.len()).saturating_sub(1)).copied().unwrap_or_default()
}

impl DemandByCaller {
    /// No callers yet, with windows of this length.
    pub fn new(window_nanos: u64) -> DemandByCaller {
        DemandByCaller { window_nanos, callers: SampledCallers::one_in(1), windows: histogram() }
    }

    /// Records the cost of a request of this fingerprint; returns whether a caller was added.
    pub fn note(&mut self, key: u64, cost: u32, at: Timestamp) -> bool {
        // Requests of cost 0 do not count.
        if self.window_nanos == 0 || cost == 0 {
            return false;
        }
        let (window, cost) = (at.as_nanos() / self.window_nanos, u64::from(cost));
        let first = || CallerDemand { window, now: cost, busiest: 0 };
        self.callers.note(key, first, |caller| {
            if caller.window == window {
                caller.now = caller.now.saturating_add(cost);
            } else {
                self.windows.saturating_record(caller.now);
                caller.busiest = caller.busiest.max(caller.now);
                (caller.window, caller.now) = (window, cost);
            }
        })
    }

    pub fn shape(&self) -> Option<CallerDistribution> {
        let mut windows = self.windows.clone();
        let mut busiest = Vec::with_capacity(self.callers.len());
        for caller in self.callers.iter() {
            windows.saturating_record(caller.now);
            busiest.push(caller.busiest.max(caller.now));
        }
        busiest.sort_unstable();
        let most = *busiest.last()?;
        Some(CallerDistribution {
            window_nanos: self.window_nanos,
            one_in: self.callers.share(),
            busiest,
            windows: QUANTILES.map(|(_, share)| windows.value_at_quantile(share).min(most)),
        })
    }
}

/// Whether a fingerprint is in the sample of one in 2 to this power. It uses bits that the table does not, so
/// the sample spreads evenly over the table.
fn is_drawn(key: u64, halvings: u32) -> bool {
    (key >> 24).trailing_zeros() >= halvings
}

/// The time in which a rule grants its limit once; zero if it has none.
pub(super) fn window_nanos(rule: &Rule) -> u64 {
    rule.limit.quota().map_or(0, |quota| quota.window().as_nanos())
}

/// Precise to 1 %, and exact up to 255; grows to about 30 KB.
fn histogram() -> Histogram<u64> {
    #[allow(clippy::expect_used, reason = "the digits are a constant, and within what the crate allows")]
    Histogram::new(2).expect("constant digits")
}

pub(crate) const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Callers kept over all rules: 33 bytes each in tables that may be half empty.
pub(crate) const KEPT_MAX: usize = 500_000;

/// A share is seldom an exact float: 99.9 % of 1 000 is 999, not 1 000.
const SLACK: f64 = 1e-6;
