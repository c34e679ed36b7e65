//! The reserve: slots that only the most important work may use. Exact, in integers; it counts nothing itself.
//!
//! Source: the fleet usage load shedder of Paul Tarjan, “Scaling your API with rate limiters” (Stripe, 2017). Both kinds
//! are counted here, and the slots are those of live processes, where the published script counts the others against a
//! constant.

/// How many pieces of other work may be in progress at once: `⌊(1 − reserve) · slots⌋`. A reserve of more than 1000
/// thousandths is all slots.
///
/// ```
/// # use tidegate::shed::most_others;
/// assert_eq!(most_others(100, 200), 80);
/// assert_eq!(most_others(9, 200), 7); // 7.2
/// ```
#[must_use]
pub fn most_others(slots: u32, reserve_permille: u16) -> u32 {
    // Not above `slots`, so it fits.
    u32::try_from(share(u64::from(slots), reserve_permille)).unwrap_or(slots)
}

/// What is in progress over all hosts of a pool, or on one host that stands alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetSums {
    /// How many pieces of work the hosts can do at once.
    pub slots: u64,
    /// Pieces of work in progress for which the reserve is kept.
    pub critical: u64,
    /// All others in progress.
    pub others: u64,
}

impl FleetSums {
    /// Whether one more of the others may start. Critical work in progress takes nothing from them.
    #[must_use]
    pub fn has_room_for_other(&self, reserve_permille: u16) -> bool {
        self.others < share(self.slots, reserve_permille)
    }
}

fn share(slots: u64, reserve_permille: u16) -> u64 {
    let thousandths = u128::from(slots) * u128::from(1_000_u16.saturating_sub(reserve_permille));
    // Not above `slots`, so it fits.
    u64::try_from(thousandths / 1_000).unwrap_or(slots)
}
