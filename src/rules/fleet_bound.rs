//! The largest excess of a fleet over the budget of a rule, as long as Redis answers and keeps its data.
//!
//! In any span W all hosts together admit at most `B + R·W + extra`. A host without tokens may pass a part of
//! `max_over` on credit, at least one token; its next sync reports the credit, which is then charged. A host
//! on which a key stays below the host's part of the rate never reports: these requests are `quiet`, a share
//! of R·W.
//!
//! In a window all hosts together admit at most `N + extra`, which includes unreported requests.

use super::fleet::{are_few, is_tiny, is_window};
use super::{FleetSettings, OnMiss};
use crate::limit::{Quota, places};

/// The largest excess over the budget of one key at a given host count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetBound {
    /// The host count.
    pub hosts: u32,
    /// The result for a request if its host has no token.
    pub on_miss: OnMiss,
    /// The excess in tokens, once in any span.
    pub extra: u32,
    /// The share of the rate that hosts with little use of the key may never report, in thousandths.
    pub quiet: u16,
    /// Whether `extra` applies once per window.
    pub windows: bool,
    /// The unit that hosts borrow: `token`, or `place` for permits.
    pub unit: &'static str,
    /// The fleet budget.
    limit: u32,
}

impl FleetBound {
    /// Computes the bound for a host count; `None` if the algorithm does not support a fleet.
    #[must_use]
    pub fn of(terms: &FleetSettings, quota: &Quota, hosts: u32) -> Option<FleetBound> {
        let unit = match quota {
            Quota::TokenBucket(_) | Quota::FleetBudget(_) => "token",
            Quota::FixedWindow(_) | Quota::SlidingWindow(_) => "token",
            Quota::Concurrency(quota) if quota.is_fleet() => "place",
            _ => return None,
        };
        let (on_miss, limit) = (terms.on_miss(quota, hosts), quota.limit());
        let (extra, quiet) = match on_miss {
            OnMiss::Refuse | OnMiss::Ask => (0, 0),
            OnMiss::Admit if terms.has_whole_part(quota, hosts) => {
                (super::percent::of(terms.over(), limit), terms.over())
            }
            // One token for each cold host.
            OnMiss::Admit => (hosts, terms.over()),
        };
        let quiet = if is_window(quota) { 0 } else { quiet };
        Some(FleetBound { hosts, on_miss, extra, quiet, windows: is_window(quota), unit, limit })
    }

    /// Returns a warning if the budget is small for this host count.
    #[must_use]
    pub fn doubt(&self, quota: &Quota) -> Option<String> {
        if are_few(quota, self.hosts) && self.on_miss == OnMiss::Refuse {
            let needed = u64::from(places::PERMITS_PER_HOST_MIN) * u64::from(self.hosts);
            return Some(format!(
                "`max` {} over {} hosts is less than {} for each, {needed}: work is refused on hosts that have no place \
                 while others have idle ones; `on_miss: ask` costs a call of Redis for each piece of work",
                self.limit,
                self.hosts,
                places::PERMITS_PER_HOST_MIN
            ));
        }
        if self.on_miss != OnMiss::Admit || !is_tiny(quota, self.hosts) {
            return None;
        }
        let most = u64::from(self.limit) + u64::from(self.extra);
        let other = "`on_miss: ask` costs one call of Redis for each request";
        let rate = quota.format_rate();
        Some(format!("{rate} over {} hosts: `on_miss: admit` may pass {most} at once; {other}", self.hosts))
    }
}
