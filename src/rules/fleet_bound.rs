//! What a fleet admits at most past the budget of a rule, as long as Redis answers and keeps what it was told.
//!
//! In any span W all hosts together admit at most `B + R·W + extra`. A host that holds no token may pass up to a part of
//! `max_over` on credit, a whole token at least; it says so with its next sync, and the credit is charged. A host on which
//! a key stays below its part of the rate for good never says so: that is `quiet`, a share of R·W.
//!
//! Of a window all hosts together admit at most `N + extra`: what is never told of is within `extra`.

use super::fleet::{are_few, is_tiny, is_window};
use super::{FleetTerms, OnMiss};
use crate::limit::{Quota, places};

/// What so many hosts admit at most past the budget of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetBound {
    /// Hosts that are alive.
    pub hosts: u32,
    /// What becomes of a request for which its host holds no token.
    pub on_miss: OnMiss,
    /// Tokens, once in any span.
    pub extra: u32,
    /// The share of the rate that hosts may pass for good which hardly use the key, in thousandths.
    pub quiet: u16,
    /// Whether that is once in each window.
    pub windows: bool,
    /// What is borrowed: a `token`, or a `place`.
    pub unit: &'static str,
    /// The whole budget of the fleet.
    limit: u32,
}

impl FleetBound {
    /// What so many hosts admit at most; `None`: it is counted neither in tokens nor in places.
    #[must_use]
    pub fn of(terms: &FleetTerms, quota: &Quota, hosts: u32) -> Option<FleetBound> {
        let unit = match quota {
            Quota::TokenBucket(_) | Quota::Share(_) => "token",
            Quota::FixedWindow(_) | Quota::SlidingWindow(_) => "token",
            Quota::Places(_) => "place",
            _ => return None,
        };
        let (on_miss, limit) = (terms.on_miss(quota, hosts), quota.limit());
        let (extra, quiet) = match on_miss {
            OnMiss::Refuse | OnMiss::Ask => (0, 0),
            OnMiss::Admit if terms.has_whole_part(quota, hosts) => {
                (super::percent::of(terms.over(), limit), terms.over())
            }
            // One token for each host that has heard nothing.
            OnMiss::Admit => (hosts, terms.over()),
        };
        let quiet = if is_window(quota) { 0 } else { quiet };
        Some(FleetBound { hosts, on_miss, extra, quiet, windows: is_window(quota), unit, limit })
    }

    /// What to tell whoever has so many hosts and so small a budget.
    #[must_use]
    pub fn doubt(&self, quota: &Quota) -> Option<String> {
        if are_few(quota, self.hosts) && self.on_miss == OnMiss::Refuse {
            let needed = u64::from(places::A_HOST) * u64::from(self.hosts);
            return Some(format!(
                "`max` {} over {} hosts is less than {} for each, {needed}: work is refused on hosts that have no place \
                 while others have idle ones; `on_miss: ask` costs a call of Redis for each piece of work",
                self.limit,
                self.hosts,
                places::A_HOST
            ));
        }
        if self.on_miss != OnMiss::Admit || !is_tiny(quota, self.hosts) {
            return None;
        }
        let most = u64::from(self.limit) + u64::from(self.extra);
        let other = "`on_miss: ask` costs one call of Redis for each request";
        let rate = quota.rate_text();
        Some(format!("{rate} over {} hosts: `on_miss: admit` may pass {most} at once; {other}", self.hosts))
    }
}
