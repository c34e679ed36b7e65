//! Slots that a pool reserves for the most important priority, on one host or over all hosts.

use std::time::Duration;

use super::Pool;
use crate::clock::Timestamp;
use crate::engine::sync::Ordering;
use crate::shed::{HostReadings, PoolLoad};

/// This host's part of a fleet-wide reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReserve {
    /// The pool.
    pub pool: Box<str>,
    /// Its slots and its leases of lower priorities.
    pub here: HostReadings,
    /// Leases of the priority that the reserve is for.
    pub critical: u32,
}

impl Pool {
    pub(in crate::engine) fn set_other_hosts_sums(&self, agreed: OtherHostsSums) {
        *self.other_hosts.lock() = Some(agreed);
    }

    /// Returns the maximum of lower-priority leases here, given this host's slots.
    pub(in crate::engine) fn noncritical_max(&self, slots: u32, reserve_permille: u16, at: Timestamp) -> u32 {
        let alone = PoolLoad::default().noncritical_max_here(slots, reserve_permille);
        // A part of a single slot would be all of it, and refuse all other work.
        let alone_here = || alone.max(u32::from(slots == 1 && reserve_permille < 1_000));
        self.other_hosts.lock().map_or_else(alone_here, |others| others.noncritical_max(slots, alone, at))
    }

    /// Returns this host's part of a fleet-wide reserve, if there is one, and takes the flag of refusals.
    pub(in crate::engine) fn take_reserve(&self) -> Option<PoolReserve> {
        let watch = self.shedding()?;
        let reserve = watch.shed.fleet.as_ref()?.reserve;
        let here = HostReadings {
            slots: self.slots().unwrap_or(0),
            noncritical: self.noncritical_leases(),
            reserve,
            refused_since_publish: self.is_refusing.swap(false, Ordering::Relaxed),
        };
        Some(PoolReserve { pool: self.name.clone(), here, critical: self.critical.load(Ordering::Relaxed) })
    }
}

/// The last reply about a pool's reserve and its result for this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherHostsSums {
    /// The sums of all other hosts; its `noncritical` is the sum of their claims.
    pub sums: PoolLoad,
    /// Maximum leases of lower priorities here.
    pub noncritical_max: u32,
    /// The same maximum without other hosts.
    pub local_max: u32,
    /// When the report was made that the reply answers.
    pub reported_at: Timestamp,
}

impl OtherHostsSums {
    /// Returns the maximum of lower-priority leases here; `alone` is the maximum without other hosts.
    ///
    /// Without new replies this host gives up what it borrowed from others first ([`BORROWED_TTL`]), before they
    /// count it as theirs again, and reclaims what it lent last ([`SUMS_TTL`]).
    fn noncritical_max(&self, slots: u32, alone: u32, at: Timestamp) -> u32 {
        let silent = at.since(self.reported_at);
        // Slots that changed since change the host's own part.
        let most = self.noncritical_max.saturating_add(alone).saturating_sub(self.local_max);
        if silent < BORROWED_TTL {
            most.min(slots)
        } else if silent < SUMS_TTL {
            most.min(alone)
        } else {
            alone
        }
    }

    /// Returns the sums of the other hosts and their age while they are valid.
    pub(super) fn valid_sums(&self, at: Timestamp) -> Option<(PoolLoad, Duration)> {
        let age = at.since(self.reported_at);
        (age < SUMS_TTL).then_some((self.sums, age))
    }
}

/// Shorter than the 2 s for which Redis keeps a host's report.
const BORROWED_TTL: Duration = Duration::from_millis(1_900);

/// After this time without a reply, a host computes its reserve alone.
pub(super) const SUMS_TTL: Duration = Duration::from_secs(10);
