//! How callers are spread: how much each asked for in each window of a rule, so that a limit can be chosen. Only what is
//! asked is looked at, not what comes of it.
//!
//! Callers are told apart by fingerprints, of which a bounded number is kept. Past that the rule with the most keeps one in
//! two of its callers, then one in four and so on, drawn by the fingerprint (Flajolet, “On Adaptive Sampling”, 1990): who
//! is kept was kept from his first request on, so of those that are kept everything is known, and their shares are those of
//! all.

use hashbrown::HashTable;
use hdrhistogram::Histogram;

use super::places::Places;
use crate::clock::Timestamp;
use crate::engine::Decision;
use crate::rules::{Domain, Rule};
use std::sync::Arc;

/// The callers of all rules in force.
#[derive(Debug, Default)]
pub(super) struct Spread {
    rules: Vec<Callers>,
    kept: usize,
}

/// The callers of one rule.
#[derive(Debug)]
pub(crate) struct Callers {
    /// Zero: the rule has no windows, or it is one of those that are not looked at.
    window_nanos: u64,
    by_key: HashTable<Caller>,
    /// One in 2 to this power is kept.
    halvings: u32,
    /// What was asked for in each window of each caller that has ended.
    windows: Histogram<u64>,
}

/// What one caller asked for.
#[derive(Debug)]
struct Caller {
    key: u64,
    /// The window he last came in, and what he asked for in it so far.
    window: u64,
    now: u64,
    /// The most he asked for in any window before.
    busiest: u64,
}

/// What is known of the callers of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// How long a window is.
    pub(crate) window_nanos: u64,
    /// One caller in so many was looked at.
    pub(crate) one_in: u64,
    /// Of each caller the most that he asked for in one window, the least first.
    pub(crate) busiest: Vec<u64>,
    /// What was asked for in a window in which a caller came, at each of [`QUANTILES`].
    pub(crate) windows: [u64; QUANTILES.len()],
}

impl Shape {
    /// The busiest window of callers, at each of [`QUANTILES`].
    pub(super) fn quantiles(&self) -> [u64; QUANTILES.len()] {
        QUANTILES.map(|(_, share)| quantile(&self.busiest, share))
    }

    /// How many callers asked for more than this in one window.
    pub(super) fn above(&self, limit: u64) -> usize {
        self.busiest.len() - self.busiest.partition_point(|most| *most <= limit)
    }
}

/// The smallest of some values, which stand in order, that at least this share of them is not above.
pub(crate) fn quantile(values: &[u64], share: f64) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length that is at hand"
    )]
    let rank = (values.len() as f64 * share - SLACK).ceil().max(1.0) as usize;
    values.get(rank.min(values.len()).saturating_sub(1)).copied().unwrap_or_default()
}

impl Spread {
    /// Learns which rules are in force. One whose window is another begins anew: what was asked for in windows of other
    /// lengths cannot be compared.
    pub(super) fn number(&mut self, rules: &[Arc<Domain>], places: &Places) {
        self.rules.resize_with(places.len().min(super::side::RULES_MAX), Callers::default);
        for domain in rules {
            for (rule, place) in domain.rules().iter().zip(places.of(domain.name())) {
                let Some(callers) = self.rules.get_mut(*place) else { continue };
                let window_nanos = window_nanos(rule);
                if callers.window_nanos != window_nanos {
                    self.kept -= callers.by_key.len();
                    *callers = Callers::new(window_nanos);
                }
            }
        }
    }

    /// Notes what a request asked of each rule.
    pub(super) fn note(&mut self, places: &[usize], decision: &Decision<'_>, at: Timestamp) {
        for check in decision.checks() {
            let place = places.get(check.rule as usize);
            if let Some(callers) = place.and_then(|place| self.rules.get_mut(*place)) {
                self.kept += usize::from(callers.note(check.key, check.cost, at));
            }
        }
        if self.kept > KEPT_MAX {
            self.halve();
        }
    }

    #[cold]
    fn halve(&mut self) {
        if let Some(most) = self.rules.iter_mut().max_by_key(|callers| callers.by_key.len()) {
            self.kept -= most.halve();
        }
    }

    /// What is known of a rule's callers, once all is played. None of a rule without windows, or to which nobody came.
    pub(super) fn shape(&self, place: usize) -> Option<Shape> {
        self.rules.get(place)?.shape()
    }
}

impl Default for Callers {
    fn default() -> Callers {
        Callers { window_nanos: 0, by_key: HashTable::new(), halvings: 0, windows: histogram() }
    }
}

impl Callers {
    /// None yet, to be looked at in windows of this length.
    pub(crate) fn new(window_nanos: u64) -> Callers {
        Callers { window_nanos, ..Callers::default() }
    }

    /// Notes what the one with this fingerprint asked for; whether he is a new one that is kept.
    pub(crate) fn note(&mut self, key: u64, cost: u32, at: Timestamp) -> bool {
        // What costs nothing asks for nothing.
        if self.window_nanos == 0 || cost == 0 || !self.keeps(key) {
            return false;
        }
        let (window, cost) = (at.as_nanos() / self.window_nanos, u64::from(cost));
        // A fingerprint is a hash already.
        let Some(caller) = self.by_key.find_mut(key, |known| known.key == key) else {
            let caller = Caller { key, window, now: cost, busiest: 0 };
            self.by_key.insert_unique(key, caller, |known| known.key);
            return true;
        };
        if caller.window == window {
            caller.now = caller.now.saturating_add(cost);
        } else {
            self.windows.saturating_record(caller.now);
            caller.busiest = caller.busiest.max(caller.now);
            (caller.window, caller.now) = (window, cost);
        }
        false
    }

    fn keeps(&self, key: u64) -> bool {
        is_drawn(key, self.halvings)
    }

    /// How many are kept.
    pub(crate) fn kept(&self) -> usize {
        self.by_key.len()
    }

    /// Keeps one in two; how many went.
    pub(crate) fn halve(&mut self) -> usize {
        let before = self.by_key.len();
        self.halvings += 1;
        let halvings = self.halvings;
        self.by_key.retain(|caller| is_drawn(caller.key, halvings));
        before - self.by_key.len()
    }

    /// What is known of them, once all is played; none if nobody came.
    pub(crate) fn shape(&self) -> Option<Shape> {
        let mut windows = self.windows.clone();
        let mut busiest = Vec::with_capacity(self.by_key.len());
        for caller in &self.by_key {
            windows.saturating_record(caller.now);
            busiest.push(caller.busiest.max(caller.now));
        }
        busiest.sort_unstable();
        let most = *busiest.last()?;
        Some(Shape {
            window_nanos: self.window_nanos,
            one_in: 1 << self.halvings,
            busiest,
            windows: QUANTILES.map(|(_, share)| windows.value_at_quantile(share).min(most)),
        })
    }
}

/// Whether a fingerprint is among one in 2 to this power. By bits that a table does not look at: those that are kept spread
/// over it as all did.
pub(crate) fn is_drawn(key: u64, halvings: u32) -> bool {
    (key >> 24).trailing_zeros() >= halvings
}

/// The time over which a rule gives its limit out, in which callers are looked at. Zero where there is none.
fn window_nanos(rule: &Rule) -> u64 {
    rule.limit.quota().map_or(0, |quota| quota.window().0.saturating_mul(NANOS_PER_MICRO))
}

/// Within one in a hundred, and exact up to 255; it grows with what it holds, to some 30 KB.
fn histogram() -> Histogram<u64> {
    #[allow(
        clippy::expect_used,
        reason = "the number of digits is a constant, and within what the crate allows"
    )]
    Histogram::new(2).expect("constant digits")
}

/// The shares that are told of.
pub(crate) const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Callers that are kept at once, of all rules together: 33 bytes each, the tables half empty at worst.
pub(crate) const KEPT_MAX: usize = 500_000;

/// A share of a number is seldom exact: 99.9 % of 1 000 is 999 and not 1 000.
const SLACK: f64 = 1e-6;

const NANOS_PER_MICRO: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::{Callers, quantile};
    use crate::clock::Timestamp;

    #[test]
    fn quantiles_are_values_that_were_there() {
        let thousand: Vec<u64> = (1..=1_000).collect();
        let found = [0.5, 0.9, 0.99, 0.999, 1.0].map(|share| quantile(&thousand, share));
        assert_eq!(found, [500, 900, 990, 999, 1_000]);
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&[3, 7], share)), [3, 7, 7]);
        assert_eq!((quantile(&[], 0.5), quantile(&[9], 0.001)), (0, 9));
    }

    #[test]
    fn half_of_the_callers_stand_for_all_and_nothing_of_theirs_is_lost() {
        let mut callers = Callers::new(10);
        // Keys as a hash gives them; each caller comes as often as the number of his group says, in one window.
        let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        for number in 0..20_000 {
            for _ in 0..=number % 10 {
                callers.note(key(number), 2, Timestamp::from_nanos(7));
            }
            if number == 10_000 {
                callers.halve();
            }
        }
        let kept = callers.by_key.len();
        assert!((9_000..11_000).contains(&kept), "{kept}");
        let exact = callers.by_key.iter().all(|caller| {
            (0..20_000).any(|number| key(number) == caller.key && caller.now == 2 * (number % 10 + 1))
        });
        assert!(exact, "who came before it was halved and who came after");
        let one_group = callers.by_key.iter().filter(|caller| caller.now == 20).count();
        assert!((800..1_200).contains(&one_group), "{one_group}");
    }
}
