//! The largest excess of a fleet over the budget of a rule, as long as Redis answers and keeps its data.
//!
//! In any span W all hosts together admit at most `B + R·W + extra`. A host without tokens may pass a part of
//! `max_over` on credit, at least one token; its next sync reports the credit, which is then charged. A host
//! on which a key stays below the host's part of the rate never reports: these requests are `quiet`, a share
//! of R·W.
//!
//! In a window all hosts together admit at most `N + extra`, which includes unreported requests.

use super::fleet::{is_tiny, is_window};
use super::{FleetSettings, OnMiss};
use crate::limit::Quota;

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
            // Each host has at least one permit.
            OnMiss::Refuse if matches!(quota, Quota::Concurrency(_)) => (hosts.saturating_sub(limit), 0),
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
        if matches!(quota, Quota::Concurrency(_)) {
            let part = (self.limit / self.hosts.max(1)).max(1);
            let is_small = self.on_miss == OnMiss::Refuse
                && self.limit < PERMITS_PER_HOST_MIN.saturating_mul(self.hosts);
            return is_small.then(|| {
                format!(
                    "`max` {} over {} hosts with `on_miss: refuse` is {part} for each: a host refuses more while others have room; \
                     `on_miss: ask` costs a call of Redis for each lease",
                    self.limit, self.hosts
                )
            });
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

/// A host's part of a concurrency limit below which its share of the work varies by more than the part.
const PERMITS_PER_HOST_MIN: u32 = 4;
