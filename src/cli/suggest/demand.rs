//! The highest demand of each caller in any window, and the rates and bursts that follow from it.

use std::time::Duration;

use super::census::{CallerAttributes, caller_of};
use super::proposal::{CallerShare, Proposal};
use super::{EventConsumer, TraceEvent, TraceFailure, charged_request, quantile};
use crate::clock::Timestamp;
use crate::terms::count;
use crate::trace::spread::{DemandByCaller, KEPT_MAX, SampledCallers};

/// The callers of each key in each window.
pub(super) struct Demand<'k> {
    domain: &'k str,
    by_key: Vec<(&'k CallerAttributes, Vec<(Duration, DemandByCaller)>)>,
    kept: usize,
}

impl<'k> Demand<'k> {
    pub(super) fn new(domain: &'k str, keys: &'k [CallerAttributes], windows: &[Duration]) -> Demand<'k> {
        let of_window = |window: &Duration| (*window, DemandByCaller::new(nanos(*window)));
        let by_key = keys.iter().map(|key| (key, windows.iter().map(of_window).collect())).collect();
        Demand { domain, by_key, kept: 0 }
    }

    /// Returns, for each key, window and share, a rate that this share of the callers never exceeds.
    pub(super) fn rates(&self, shares: &[CallerShare]) -> Vec<BurstsAtRate<'k>> {
        let mut rates = Vec::new();
        for (key, windows) in &self.by_key {
            for (window, callers) in windows {
                let Some(shape) = callers.shape() else { continue };
                rates.extend(shares.iter().map(|share| BurstsAtRate {
                    proposal: Proposal::new(
                        key,
                        *window,
                        *share,
                        round_up(quantile(&shape.busiest, share.1)),
                    ),
                    callers: SampledCallers::one_in(shape.one_in),
                }));
            }
        }
        rates
    }
}

impl EventConsumer for Demand<'_> {
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure> {
        let Some((request, cost)) = charged_request(event, self.domain) else { return Ok(()) };
        for (key, windows) in &mut self.by_key {
            let Some(caller) = caller_of(key, &request.descriptors) else { continue };
            for (_, callers) in windows {
                self.kept += usize::from(callers.note(caller, cost, event.at));
            }
        }
        if self.kept > KEPT_MAX {
            let all = self.by_key.iter_mut().flat_map(|(_, windows)| windows);
            let most = all.map(|(_, demand)| &mut demand.callers).max_by_key(|callers| callers.len());
            self.kept -= most.map_or(0, SampledCallers::halve);
        }
        Ok(())
    }
}

/// The bursts that the callers of each key need at each rate.
pub(super) struct BurstNeeds<'k> {
    domain: &'k str,
    at_rates: Vec<BurstsAtRate<'k>>,
    kept: usize,
}

/// A proposal without its burst, and the callers that need one.
pub(super) struct BurstsAtRate<'k> {
    proposal: Proposal<'k>,
    callers: SampledCallers<CallerBucket>,
}

/// One caller's bucket, without rounding: a request adds a window in ns, each elapsed ns removes `count`.
struct CallerBucket {
    at: Timestamp,
    level: u128,
    highest: u128,
}

impl<'k> BurstNeeds<'k> {
    pub(super) fn new(domain: &'k str, at_rates: Vec<BurstsAtRate<'k>>) -> BurstNeeds<'k> {
        BurstNeeds { domain, at_rates, kept: 0 }
    }

    /// Returns the burst for each rate. Of equal proposals, the one for the largest share of callers stays.
    pub(super) fn proposals(self) -> Vec<Proposal<'k>> {
        let mut proposals: Vec<Proposal<'k>> = Vec::new();
        for BurstsAtRate { mut proposal, callers } in self.at_rates {
            let window = u128::from(nanos(proposal.window));
            let need =
                |caller: &CallerBucket| u64::try_from(caller.highest.div_ceil(window)).unwrap_or(u64::MAX);
            let mut needs: Vec<u64> = callers.iter().map(need).collect();
            needs.sort_unstable();
            proposal.burst = round_up(quantile(&needs, proposal.share.1));
            match proposals.iter_mut().find(|known| known.is_equal(&proposal)) {
                Some(known) => *known = proposal,
                None => proposals.push(proposal),
            }
        }
        proposals
    }

    /// Returns a remark if only a sample of the callers fitted.
    pub(super) fn remark(&self) -> Option<String> {
        let one_in = self.at_rates.iter().map(|at_rate| at_rate.callers.share()).max().unwrap_or(1);
        (one_in > 1).then(|| {
            let one_in = count(one_in);
            format!(
                "too many callers to look at each: of some keys one in {one_in} was; the refusals are of all"
            )
        })
    }
}

impl EventConsumer for BurstNeeds<'_> {
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure> {
        let Some((request, cost)) = charged_request(event, self.domain) else { return Ok(()) };
        // The rates of one key follow each other.
        for of_key in
            self.at_rates.chunk_by_mut(|one, next| std::ptr::eq(one.proposal.key, next.proposal.key))
        {
            let key = of_key.first().map(|at_rate| at_rate.proposal.key);
            let Some(caller) = key.and_then(|key| caller_of(key, &request.descriptors)) else { continue };
            for at_rate in of_key {
                self.kept += usize::from(at_rate.note(caller, cost, event.at));
            }
        }
        if self.kept > BUCKETS_MAX {
            let most = self.at_rates.iter_mut().max_by_key(|at_rate| at_rate.callers.len());
            self.kept -= most.map_or(0, |most| most.callers.halve());
        }
        Ok(())
    }
}

impl BurstsAtRate<'_> {
    /// Counts a request. Returns whether its caller was stored as a new one.
    fn note(&mut self, key: u64, cost: u32, at: Timestamp) -> bool {
        let more = u128::from(cost) * u128::from(nanos(self.proposal.window));
        let first = || CallerBucket { at, level: more, highest: more };
        self.callers.note(key, first, |caller| {
            let run_out = at.since(caller.at).as_nanos().saturating_mul(u128::from(self.proposal.count));
            caller.level = caller.level.saturating_sub(run_out).saturating_add(more);
            caller.highest = caller.highest.max(caller.level);
            caller.at = at;
        })
    }
}

fn nanos(window: Duration) -> u64 {
    u64::try_from(window.as_nanos()).unwrap_or(u64::MAX)
}

/// Buckets of all rates together: 49 bytes each, in tables that are half empty at worst.
const BUCKETS_MAX: usize = 1_000_000;

/// Rounds up to the next of 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40 and so on.
fn round_up(number: u64) -> u64 {
    let mut ten = 1_u64;
    loop {
        let round = TENTHS.iter().map(|tenths| tenths.saturating_mul(ten));
        // Below ten, skip numbers with a fraction.
        let mut round = round.filter(|times_ten| times_ten % 10 == 0).map(|times_ten| times_ten / 10);
        if let Some(found) = round.find(|round| *round >= number) {
            return found;
        }
        match ten.checked_mul(10) {
            Some(next) if next <= u64::MAX / 100 => ten = next,
            _ => return number,
        }
    }
}

const TENTHS: [u64; 10] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80];
