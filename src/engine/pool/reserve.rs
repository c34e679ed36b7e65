//! Slots that a pool reserves for the most important priority, on one host or over all hosts.

use std::time::Duration;

use super::Pool;
use crate::clock::Timestamp;
use crate::engine::gate::PoolShedding;
use crate::engine::sync::Ordering;
use crate::rules::shed::ShedPart;
use crate::shed::{FleetSums, Here};

/// The reserve of one pool, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveView {
    /// Maximum leases of lower priorities here; `None`: the slots are unknown, and none are reserved.
    pub most: Option<u32>,
    /// The sums of its other hosts and their age; `None`: the reserve is computed for this host alone.
    pub elsewhere: Option<(FleetSums, Duration)>,
}

/// This host's part of a fleet-wide reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReserve {
    /// The pool.
    pub pool: Box<str>,
    /// Its slots and its leases of lower priorities.
    pub here: Here,
    /// Leases of the priority that the reserve is for.
    pub critical: u32,
}

impl Pool {
    pub(in crate::engine) fn set_elsewhere(&self, agreed: Agreed) {
        self.elsewhere.lock().hear(agreed);
    }

    /// Returns the maximum of lower-priority leases here, given this host's slots.
    pub(in crate::engine) fn most_others(&self, slots: u32, reserve_permille: u16, at: Timestamp) -> u32 {
        let alone = FleetSums::default().most_others_here(slots, reserve_permille);
        self.elsewhere.lock().most_others(slots, alone, at)
    }

    /// Returns this host's part of a fleet-wide reserve, if there is one, and takes the flag of refusals.
    pub(in crate::engine) fn reserve(&self) -> Option<PoolReserve> {
        let watch = self.watched()?;
        let reserve = watch.shed.fleet.as_ref()?.reserve;
        let here = Here {
            slots: self.slots().unwrap_or(0),
            others: self.others(),
            reserve,
            is_refusing: self.is_refusing.swap(false, Ordering::Relaxed),
        };
        Some(PoolReserve { pool: self.name.clone(), here, critical: self.critical.load(Ordering::Relaxed) })
    }

    pub(in crate::engine) fn keeps_reserve(&self) -> bool {
        self.watch.load().as_ref().is_some_and(|watch| watch.shed.fleet.is_some())
    }

    /// Returns the reserve's state, unless it is disabled.
    pub(super) fn reserve_view(&self, watch: &PoolShedding, at: Timestamp) -> Option<ReserveView> {
        watch.mode(ShedPart::Fleet)?;
        let reserve = watch.shed.fleet.as_ref()?.reserve;
        let most = self.slots().map(|slots| self.most_others(slots, reserve, at));
        Some(ReserveView { most, elsewhere: self.elsewhere.lock().sums(at) })
    }
}

/// The last reply about a pool's reserve and its result for this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The sums of all other hosts; `others` is the sum of their claims.
    pub sums: FleetSums,
    /// Maximum leases of lower priorities here.
    pub most: u32,
    /// The same maximum without other hosts.
    pub alone: u32,
    /// When the report was made that the reply answers.
    pub heard: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Elsewhere(Option<Agreed>);

impl Elsewhere {
    pub(super) fn hear(&mut self, agreed: Agreed) {
        self.0 = Some(agreed);
    }

    /// Returns the maximum of lower-priority leases here; `alone`: the maximum without other hosts.
    ///
    /// Without new replies this host gives up what it borrowed from others first ([`BORROWED`]), before they
    /// count it as theirs again, and reclaims what it lent last ([`KNOWN`]).
    pub(super) fn most_others(&self, slots: u32, alone: u32, at: Timestamp) -> u32 {
        let Some(agreed) = &self.0 else { return alone };
        let silent = at.since(agreed.heard);
        // Slots that changed since change the host's own part.
        let most = agreed.most.saturating_add(alone).saturating_sub(agreed.alone);
        if silent < BORROWED {
            most.min(slots)
        } else if silent < KNOWN {
            most.min(alone)
        } else {
            alone
        }
    }

    /// Returns the sums of the other hosts and their age while they are valid.
    pub(super) fn sums(&self, at: Timestamp) -> Option<(FleetSums, Duration)> {
        let agreed = self.0.as_ref()?;
        let age = at.since(agreed.heard);
        (age < KNOWN).then_some((agreed.sums, age))
    }
}

/// Shorter than the 2 s for which Redis keeps a host's report.
const BORROWED: Duration = Duration::from_millis(1_900);

/// After this time without a reply, a host computes its reserve alone.
pub(super) const KNOWN: Duration = Duration::from_secs(10);
