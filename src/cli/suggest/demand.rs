//! The highest demand of each caller in any window, and the rates that follow from it.

use super::census::CallerAttributes;
use super::window::WholeSecondsWindow;
use super::{EventConsumer, TraceEvent, TraceFailure, asked, quantile, round};
use crate::trace::spread::{DemandByCaller, KEPT_MAX};

/// The callers of each key in each window.
pub(super) struct Demand<'k> {
    domain: &'k str,
    keys: &'k [CallerAttributes],
    windows: &'k [WholeSecondsWindow],
    /// By key, then by window.
    callers: Vec<Vec<DemandByCaller>>,
    kept: usize,
}

/// A share of callers: its name and its number.
pub(super) type CallerShare = (&'static str, f64);

/// A rate of `count` per window that suffices for a share of a key's callers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SufficientRate {
    /// Index of the key.
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
                    count: round::up(quantile(&shape.busiest, share.1)),
                    one_in: shape.one_in,
                }));
            }
        }
        rates
    }
}

impl EventConsumer for Demand<'_> {
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure> {
        let Some((request, cost)) = asked(event, self.domain) else { return Ok(()) };
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
