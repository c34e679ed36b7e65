//! What a pool keeps back for the most important work, by itself or together with its processes on other hosts.

use std::time::Duration;

use super::Pool;
use crate::clock::Timestamp;
use crate::engine::gate::Watch;
use crate::engine::sync::Ordering;
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

/// What was last heard of a pool, and what it means for this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// What all other hosts together have; `others` is what they claim.
    pub sums: FleetSums,
    /// How much other work may be in progress here.
    pub most: u32,
    /// How much could be if there were no other host.
    pub alone: u32,
    /// When it held: when that was said which was answered so.
    pub heard: Timestamp,
}

/// What is known.
#[derive(Debug, Default)]
pub(super) struct Elsewhere(Option<Agreed>);

impl Elsewhere {
    pub(super) fn hear(&mut self, agreed: Agreed) {
        self.0 = Some(agreed);
    }

    /// How much other work may be in progress here; `alone`: as if there were no other host.
    ///
    /// What others have lent to this host they count as theirs again soon after they hear of it no more: it is let go
    /// before. What this host has lent to others it takes back last.
    pub(super) fn most_others(&self, slots: u32, alone: u32, at: Timestamp) -> u32 {
        let Some(agreed) = &self.0 else { return alone };
        let silent = at.since(agreed.heard);
        // Slots that came or went since bring or take their own part with them.
        let most = agreed.most.saturating_add(alone).saturating_sub(agreed.alone);
        if silent < BORROWED {
            most.min(slots)
        } else if silent < KNOWN {
            most.min(alone)
        } else {
            alone
        }
    }

    /// What the others have and how old that is, as long as it holds.
    pub(super) fn sums(&self, at: Timestamp) -> Option<(FleetSums, Duration)> {
        let agreed = self.0.as_ref()?;
        let age = at.since(agreed.heard);
        (age < KNOWN).then_some((agreed.sums, age))
    }
}

/// Less than what a host has said is known for in Redis: two seconds.
const BORROWED: Duration = Duration::from_millis(1_900);

/// After this a host counts alone.
pub(super) const KNOWN: Duration = Duration::from_secs(10);
