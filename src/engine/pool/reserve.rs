//! What a pool keeps back for the most important work, by itself or together with its processes on other hosts.

use std::time::Duration;

use super::{Agreed, Pool};
use crate::clock::Timestamp;
use crate::engine::sync::Ordering;
use crate::engine::watch::Watch;
use crate::rules::shed::Part;
use crate::shed::{FleetSums, Here};

/// The reserve of one pool, for whoever looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveView {
    /// How much other work may be in progress here; `None`: its slots are not known, and nothing is kept back.
    pub most: Option<u32>,
    /// What its processes on other hosts have, and how old that is; `None`: this host counts alone.
    pub elsewhere: Option<(FleetSums, Duration)>,
}

/// What there is here of a pool whose reserve hosts keep together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The pool.
    pub pool: Box<str>,
    /// Its slots and its other work.
    pub here: Here,
    /// Leases of the work that the reserve is kept for.
    pub critical: u32,
}

impl Pool {
    /// What is known of other hosts, from now on.
    pub(in crate::engine) fn set_elsewhere(&self, agreed: Agreed) {
        self.elsewhere.lock().hear(agreed);
    }

    /// How many pieces of other work may be in progress here, with so many slots of this host.
    pub(in crate::engine) fn most_others(&self, slots: u32, reserve_permille: u16, at: Timestamp) -> u32 {
        let alone = FleetSums::default().most_others_here(slots, reserve_permille);
        self.elsewhere.lock().most_others(slots, alone, at)
    }

    /// What there is here, where a reserve is kept for hosts together.
    pub(in crate::engine) fn reserve(&self) -> Option<Reserve> {
        let watch = self.watched()?;
        let reserve = watch.shed.fleet.as_ref()?.reserve;
        let here = Here {
            slots: self.slots().unwrap_or(0),
            others: self.others(),
            reserve,
            is_refusing: self.is_refusing.swap(false, Ordering::Relaxed),
        };
        Some(Reserve { pool: self.name.clone(), here, critical: self.critical.load(Ordering::Relaxed) })
    }

    /// Whether a reserve is kept for hosts together.
    pub(in crate::engine) fn keeps_reserve(&self) -> bool {
        self.watch.load().as_ref().is_some_and(|watch| watch.shed.fleet.is_some())
    }

    /// How it stands, unless it is switched off.
    pub(super) fn reserve_view(&self, watch: &Watch, at: Timestamp) -> Option<ReserveView> {
        watch.mode(Part::Fleet)?;
        let reserve = watch.shed.fleet.as_ref()?.reserve;
        let most = self.slots().map(|slots| self.most_others(slots, reserve, at));
        Some(ReserveView { most, elsewhere: self.elsewhere.lock().sums(at) })
    }
}
