//! What is known of a pool on other hosts, and for how long it holds.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::shed::FleetSums;

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
