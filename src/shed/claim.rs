//! The claim of a host: the number of non-critical requests that it allows where several hosts share one reserve. Each
//! host publishes its claim and receives the sum of the other claims, so that all claims fit beside the reserve, in any
//! order of messages.
//!
//! ```text
//!   claims of all hosts ≤ ⌊(1 − reserve) · slots of all⌋
//!   a host's own part = ⌊(1 − reserve) · its own slots⌋: more is borrowed, and returned when its owner needs it
//! ```
//!
//! Promise: the sum of all claims never exceeds the bound, if each host publishes at least once a second and is received. A
//! host raises its limit only after a claim was published and found to fit, so stale sums cannot be used twice.
//!
//! Source of the reserve, slots that only critical requests may use: the fleet usage load shedder of Paul Tarjan, “Scaling
//! your API with rate limiters” (Stripe, 2017). Here both kinds of requests are counted, and the slots are those of live
//! processes; the published script counts non-critical requests against a constant.

use std::time::Duration;

use crate::clock::Timestamp;

/// The load of a pool on one host, or on several as of their last reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLoad {
    /// Requests that it can run concurrently.
    pub slots: u64,
    /// Critical requests in progress. They do not reduce the slots of the others.
    pub critical: u64,
    /// Non-critical requests in progress.
    pub noncritical: u64,
}

impl PoolLoad {
    /// The non-critical requests that may be in progress on this host beside this load of the others: the bound of all hosts together, `⌊(1 − reserve)
    /// · slots⌋`, less those of the other hosts. A reserve of more than 1000 thousandths is all slots.
    /// ```
    /// # use tidegate::shed::PoolLoad;
    /// let alone = PoolLoad::default();
    /// assert_eq!(alone.noncritical_max_here(100, 200), 80);
    /// assert_eq!(alone.noncritical_max_here(9, 200), 7); // 7.2
    /// let elsewhere = PoolLoad { slots: 100, critical: 9, noncritical: 90 };
    /// assert_eq!(elsewhere.noncritical_max_here(100, 200), 70);
    /// ```
    pub fn noncritical_max_here(self, slots_here: u32, reserve_permille: u16) -> u32 {
        let all = self.slots.saturating_add(u64::from(slots_here));
        let most = unreserved_slots(all, reserve_permille).saturating_sub(self.noncritical);
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

fn unreserved_slots(slots: u64, reserve_permille: u16) -> u64 {
    let thousandths = u128::from(slots) * u128::from(1_000_u16.saturating_sub(reserve_permille));
    // Not above `slots`, so it fits.
    u64::try_from(thousandths / 1_000).unwrap_or(slots)
}

/// The claim of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The number of non-critical requests that the host allows.
    most: u32,
    /// The host's own part at the last publication.
    own: u32,
    /// The published claim; never less than the host allows, nor than it has in progress.
    published: u32,
    /// The bound of all claims, and the sum of the other claims, as last received.
    bound: u64,
    others_claim: u64,
    /// The slots of all hosts, as last received.
    slots: u64,
    /// The number of consecutive sums in which the claims did not exceed the bound.
    calm_sums: u8,
    /// When the claims of other hosts last rose.
    others_rose_at: Option<Timestamp>,
}

/// The readings of this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostReadings {
    /// The slots of this host.
    pub slots: u32,
    /// The non-critical requests in progress.
    pub noncritical: u32,
    /// The reserve, in thousandths.
    pub reserve: u16,
    /// Whether non-critical requests were refused since the last publication.
    pub refused_since_publish: bool,
}

impl HostReadings {
    /// The non-critical requests that a single host may allow; a host can always claim as many.
    pub fn own_part(&self) -> u32 {
        PoolLoad::default().noncritical_max_here(self.slots, self.reserve)
    }
}

impl Claim {
    /// Makes the claim of a host that has just joined, or returns after a long absence.
    pub fn new(here: &HostReadings) -> Claim {
        let own = here.own_part();
        // No shortage is known.
        Claim { most: own, own, published: own, calm_sums: 1, ..Claim::default() }
    }

    /// The number of non-critical requests that the host allows.
    pub const fn allowed(&self) -> u32 {
        self.most
    }

    /// Whether the next publication is urgent: the host lent slots and refuses requests, or its claim holds slots that
    /// others may need back. Never without other hosts, nor while the host's slots are unknown.
    pub fn is_urgent(&self, here: &HostReadings) -> bool {
        let (borrows, lends) = (self.most > self.own, self.most < self.own);
        let has_others = here.slots > 0 && self.slots > u64::from(here.slots);
        has_others && (borrows || self.published > self.most || lends && here.refused_since_publish)
    }

    /// Updates and returns the claim to publish. Where claims exceed the bound, the unneeded part is returned at once.
    pub fn update_and_publish(&mut self, here: &HostReadings, now: Timestamp) -> u32 {
        let own = here.own_part();
        // Added or removed slots change the own part.
        let most = self.most.saturating_add(own).saturating_sub(self.own).min(here.slots);
        self.own = own;
        let published = if here.refused_since_publish || here.noncritical >= most {
            // At least one more, which shows the demand to hosts with spare claims. Where claims already
            // exceed the bound, a host that has its own part asks for nothing more.
            let is_contended = self.others_claim.saturating_add(u64::from(most)) > self.bound;
            // A host that takes back lent slots would not get the last one while others ask for it.
            let yields = self.others_rose_at.is_some_and(|rose_at| now.since(rose_at) < YIELDING);
            let least = u32::from(!yields);
            let more = if is_contended { 0 } else { self.part_of_free(here).min(most / 4 + 1).max(least) };
            most.saturating_add(more).max(own).min(here.slots)
        } else if self.calm_sums == 0 {
            most.min(needed_claim(here))
        } else if self.calm_sums >= CALM_SUMS_MIN {
            // Reclaims the lent part, as far as it is free.
            most.max(own.min(most.saturating_add(self.part_of_free(here))))
        } else {
            most
        };
        // The claim covers the requests in progress in any case.
        self.published = published.max(here.noncritical);
        self.most = most.min(self.published);
        self.published
    }

    /// Applies the latest sums of all other hosts, which include their reaction to this host's claim. Without
    /// `may_grow` the limit does not rise.
    pub fn apply_sums(&mut self, elsewhere: PoolLoad, here: &HostReadings, may_grow: bool, now: Timestamp) {
        let own = here.own_part();
        let room = elsewhere.noncritical_max_here(here.slots, here.reserve);
        let most = if may_grow { self.most.max(self.published.min(room)) } else { self.most };
        // A host above its own part yields to a host below its own.
        self.most = if most > own { most.min(room.max(own)) } else { most };
        let all = PoolLoad { noncritical: 0, ..elsewhere }.noncritical_max_here(here.slots, here.reserve);
        if elsewhere.noncritical > self.others_claim {
            self.others_rose_at = Some(now);
        }
        (self.bound, self.others_claim) = (u64::from(all), elsewhere.noncritical);
        self.slots = elsewhere.slots.saturating_add(u64::from(here.slots));
        let is_short = elsewhere.noncritical.saturating_add(u64::from(self.published)) > self.bound;
        self.calm_sums = if is_short { 0 } else { self.calm_sums.saturating_add(1) };
    }

    /// This host's portion, by slots, of the unclaimed slots, rounded up.
    fn part_of_free(&self, here: &HostReadings) -> u32 {
        let claimed = self.others_claim.saturating_add(u64::from(self.published));
        let free = u128::from(self.bound.saturating_sub(claimed));
        let part = (free * u128::from(here.slots)).div_ceil(u128::from(self.slots.max(1)));
        u32::try_from(part).unwrap_or(u32::MAX)
    }
}

/// The claim that a lending host keeps: its requests in progress, a quarter more, and a margin for arrivals before the
/// next publication.
fn needed_claim(here: &HostReadings) -> u32 {
    here.noncritical.saturating_add(here.noncritical / 4).saturating_add(here.slots / 16 + 1)
}

/// Long enough for a host in need to publish and to learn the sums several times.
const YIELDING: Duration = Duration::from_millis(200);

/// The number of consecutive sums without shortage after which a host reclaims the lent part.
const CALM_SUMS_MIN: u8 = 5;
