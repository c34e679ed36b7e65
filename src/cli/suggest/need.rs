//! The smallest burst at a rate with which each caller is never refused.
//!
//! A caller's requests fill an unbounded bucket that drains at the rate; its highest level is the smallest
//! burst of a token bucket of this rate that never refuses the caller. (Cruz, “A Calculus for Network Delay,
//! Part I”, 1991, calls such traffic (σ, ρ)-constrained, with burst σ and rate ρ.)

use hashbrown::HashTable;

use super::census::CallerAttributes;
use super::demand::SufficientRate;
use super::proposal::Proposal;
use super::{EventConsumer, TraceEvent, TraceFailure, asked, quantile, round};
use crate::clock::Timestamp;
use crate::trace::spread::is_drawn;
use crate::trace::table::count;

/// The bursts that the callers of each key need at each rate.
pub(super) struct BurstNeeds<'k> {
    domain: &'k str,
    keys: &'k [CallerAttributes],
    at_rates: Vec<BurstsAtRate>,
    kept: usize,
}

struct BurstsAtRate {
    rate: SufficientRate,
    by_key: HashTable<CallerBucket>,
    /// One caller in 2 to this power is stored.
    halvings: u32,
}

/// One caller's bucket, without rounding: a request adds a window in ns, each elapsed ns removes `count`.
struct CallerBucket {
    key: u64,
    at: Timestamp,
    level: u128,
    highest: u128,
}

impl<'k> BurstNeeds<'k> {
    pub(super) fn new(
        domain: &'k str,
        keys: &'k [CallerAttributes],
        rates: Vec<SufficientRate>,
    ) -> BurstNeeds<'k> {
        let mut at_rates: Vec<BurstsAtRate> = Vec::new();
        for rate in rates {
            let halvings = rate.one_in.ilog2();
            at_rates.push(BurstsAtRate { rate, by_key: HashTable::new(), halvings });
        }
        BurstNeeds { domain, keys, at_rates, kept: 0 }
    }

    /// Returns the burst for each rate. Of equal proposals, the one for the largest share of callers stays.
    pub(super) fn proposals(&self) -> Vec<Proposal> {
        let mut proposals: Vec<Proposal> = Vec::new();
        for at_rate in &self.at_rates {
            let BurstsAtRate { rate, by_key, .. } = at_rate;
            let window = u128::from(rate.window.nanos());
            let needs = by_key
                .iter()
                .map(|caller| u64::try_from(caller.highest.div_ceil(window)).unwrap_or(u64::MAX));
            let mut needs: Vec<u64> = needs.collect();
            needs.sort_unstable();
            let burst = round::up(quantile(&needs, rate.share.1));
            let Some(key) = self.keys.get(rate.key) else { continue };
            let proposal = Proposal::new(key, rate, burst);
            match proposals.iter_mut().find(|known| known.is_equal(&proposal)) {
                Some(known) => *known = proposal,
                None => proposals.push(proposal),
            }
        }
        proposals
    }

    /// Returns a remark if only a sample of the callers fitted.
    pub(super) fn remarks(&self) -> Option<String> {
        let most = self.at_rates.iter().map(|at_rate| at_rate.halvings).max().unwrap_or_default();
        let one_in = count(1_u64 << most.min(63));
        (most > 0).then(|| {
            format!("too many callers to look at each: of some keys one in {one_in} was; what is refused is of all")
        })
    }
}

impl EventConsumer for BurstNeeds<'_> {
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure> {
        let Some((request, cost)) = asked(event, self.domain) else { return Ok(()) };
        for (place, key) in self.keys.iter().enumerate() {
            let Some(caller) = key.of(&request.descriptors) else { continue };
            for at_rate in self.at_rates.iter_mut().filter(|at_rate| at_rate.rate.key == place) {
                self.kept += usize::from(at_rate.note(caller, cost, event.at));
            }
        }
        if self.kept > KEPT_MAX
            && let Some(most) = self.at_rates.iter_mut().max_by_key(|at_rate| at_rate.by_key.len())
        {
            self.kept -= most.halve();
        }
        Ok(())
    }
}

impl BurstsAtRate {
    /// Counts a request. Returns whether its caller was stored as a new one.
    fn note(&mut self, key: u64, cost: u32, at: Timestamp) -> bool {
        if !is_drawn(key, self.halvings) {
            return false;
        }
        let more = u128::from(cost) * u128::from(self.rate.window.nanos());
        let Some(caller) = self.by_key.find_mut(key, |known| known.key == key) else {
            self.by_key
                .insert_unique(key, CallerBucket { key, at, level: more, highest: more }, |known| known.key);
            return true;
        };
        let run_out = at.since(caller.at).as_nanos().saturating_mul(u128::from(self.rate.count));
        caller.level = caller.level.saturating_sub(run_out).saturating_add(more);
        caller.highest = caller.highest.max(caller.level);
        caller.at = at;
        false
    }

    /// Keeps one caller in two. Returns the number removed.
    fn halve(&mut self) -> usize {
        let before = self.by_key.len();
        self.halvings += 1;
        let halvings = self.halvings;
        self.by_key.retain(|caller| is_drawn(caller.key, halvings));
        before - self.by_key.len()
    }
}

/// Buckets of all rates together: 49 bytes each, in tables that are half empty at worst.
const KEPT_MAX: usize = 1_000_000;
