//! The highest demand of each caller in any window, and the rates that follow from it.

use super::census::CallerAttributes;
use super::proposal::Proposal;
use super::{EventConsumer, TraceEvent, TraceFailure, WholeSecondsWindow, charged_request, quantile};
use crate::clock::Timestamp;
use crate::terms::count;
use crate::trace::spread::{DemandByCaller, KEPT_MAX, SampledCallers};

/// The callers of each key in each window.
pub(super) struct Demand<'k> {
    domain: &'k str,
    keys: &'k [CallerAttributes],
    windows: &'k [WholeSecondsWindow],
    /// By key, then by window.
    callers: Vec<Vec<DemandByCaller>>,
    kept: usize,
}

pub(super) type CallerShare = (&'static str, f64);

/// A rate of `count` per window that suffices for a share of a key's callers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SufficientRate {
    pub(super) key: usize,
    pub(super) window: WholeSecondsWindow,
    pub(super) share: CallerShare,
    pub(super) count: u64,
    /// One caller in this number was sampled.
    pub(super) one_in: u64,
}

impl<'k> Demand<'k> {
    pub(super) fn new(
        domain: &'k str,
        keys: &'k [CallerAttributes],
        windows: &'k [WholeSecondsWindow],
    ) -> Demand<'k> {
        let of_windows = || windows.iter().map(|window| DemandByCaller::new(window.nanos())).collect();
        let callers = keys.iter().map(|_| of_windows()).collect();
        Demand { domain, keys, windows, callers, kept: 0 }
    }

    /// Returns, for each key, window and share, a rate that this share of the callers never exceeds.
    pub(super) fn rates(&self, shares: &[CallerShare]) -> Vec<SufficientRate> {
        let mut rates = Vec::new();
        for (key, callers) in self.callers.iter().enumerate() {
            for (window, callers) in self.windows.iter().zip(callers) {
                let Some(shape) = callers.shape() else { continue };
                rates.extend(shares.iter().map(|share| SufficientRate {
                    key,
                    window: *window,
                    share: *share,
                    count: round_up(quantile(&shape.busiest, share.1)),
                    one_in: shape.one_in,
                }));
            }
        }
        rates
    }
}

impl EventConsumer for Demand<'_> {
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure> {
        let Some((request, cost)) = charged_request(event, self.domain) else { return Ok(()) };
        for (key, callers) in self.keys.iter().zip(&mut self.callers) {
            let Some(caller) = key.of(&request.descriptors) else { continue };
            for callers in callers {
                self.kept += usize::from(callers.note(caller, cost, event.at));
            }
        }
        if self.kept > KEPT_MAX {
            let most = self.callers.iter_mut().flatten().max_by_key(|callers| callers.len());
            self.kept -= most.map_or(0, DemandByCaller::halve);
        }
        Ok(())
    }
}

/// The bursts that the callers of each key need at each rate.
pub(super) struct BurstNeeds<'k> {
    domain: &'k str,
    keys: &'k [CallerAttributes],
    at_rates: Vec<BurstsAtRate>,
    kept: usize,
}

struct BurstsAtRate {
    rate: SufficientRate,
    callers: SampledCallers<CallerBucket>,
}

/// One caller's bucket, without rounding: a request adds a window in ns, each elapsed ns removes `count`.
struct CallerBucket {
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
        let at_rates = rates.into_iter().map(|rate| {
            let callers = SampledCallers::one_in(rate.one_in);
            BurstsAtRate { rate, callers }
        });
        BurstNeeds { domain, keys, at_rates: at_rates.collect(), kept: 0 }
    }

    /// Returns the burst for each rate. Of equal proposals, the one for the largest share of callers stays.
    pub(super) fn proposals(&self) -> Vec<Proposal> {
        let mut proposals: Vec<Proposal> = Vec::new();
        for at_rate in &self.at_rates {
            let BurstsAtRate { rate, callers } = at_rate;
            let window = u128::from(rate.window.nanos());
            let needs = callers
                .iter()
                .map(|caller| u64::try_from(caller.highest.div_ceil(window)).unwrap_or(u64::MAX));
            let mut needs: Vec<u64> = needs.collect();
            needs.sort_unstable();
            let burst = round_up(quantile(&needs, rate.share.1));
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
        for (index, key) in self.keys.iter().enumerate() {
            let Some(caller) = key.of(&request.descriptors) else { continue };
            for at_rate in self.at_rates.iter_mut().filter(|at_rate| at_rate.rate.key == index) {
                self.kept += usize::from(at_rate.note(caller, cost, event.at));
            }
        }
        if self.kept > BUCKETS_MAX
            && let Some(most) = self.at_rates.iter_mut().max_by_key(|at_rate| at_rate.callers.len())
        {
            self.kept -= most.callers.halve();
        }
        Ok(())
    }
}

impl BurstsAtRate {
    /// Counts a request. Returns whether its caller was stored as a new one.
    fn note(&mut self, key: u64, cost: u32, at: Timestamp) -> bool {
        let more = u128::from(cost) * u128::from(self.rate.window.nanos());
        let first = || CallerBucket { at, level: more, highest: more };
        self.callers.note(key, first, |caller| {
            let run_out = at.since(caller.at).as_nanos().saturating_mul(u128::from(self.rate.count));
            caller.level = caller.level.saturating_sub(run_out).saturating_add(more);
            caller.highest = caller.highest.max(caller.level);
            caller.at = at;
        })
    }
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

#[cfg(test)]
mod tests {
    use super::round_up;

    #[test]
    fn rounds_up_to_numbers_that_people_write() {
        let table = [
            (0, 1),
            (1, 1),
            (3, 3),
            (7, 8),
            (9, 10),
            (11, 12),
            (13, 15),
            (21, 25),
            (26, 30),
            (61, 80),
            (81, 100),
            (101, 120),
            (99_999, 100_000),
            (1_200_001, 1_500_000),
        ];
        for (number, expected) in table {
            assert_eq!(round_up(number), expected, "{number}");
        }
        for number in 1..20_000 {
            let round = round_up(number);
            assert!(round >= number && round <= number + number / 3 + 1, "{number}: {round}");
            assert_eq!(round_up(round), round);
        }
        assert!(round_up(u64::MAX) == u64::MAX);
    }
}
