//! The reserve: slots that only the most important work may use. Exact, in integers; it counts nothing itself.
//!
//! Source: the fleet usage load shedder of Paul Tarjan, “Scaling your API with rate limiters” (Stripe, 2017). Both kinds
//! are counted here, and the slots are those of live processes, where the published script counts the others against a
//! constant.

/// What the other hosts of a pool said last, added up; all zero for a host that stands alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetSums {
    /// How many pieces of work they can do at once.
    pub slots: u64,
    /// Pieces of work in progress for which the reserve is kept. It takes nothing from the others.
    pub critical: u64,
    /// All others in progress.
    pub others: u64,
}

impl FleetSums {
    /// How many pieces of other work may be in progress on this host: what all hosts together may have,
    /// `⌊(1 − reserve) · slots⌋`, less what the other hosts have. A reserve of more than 1000 thousandths is all slots.
    ///
    /// ```
    /// # use tidegate::shed::FleetSums;
    /// let alone = FleetSums::default();
    /// assert_eq!(alone.most_others_here(100, 200), 80);
    /// assert_eq!(alone.most_others_here(9, 200), 7); // 7.2
    /// let elsewhere = FleetSums { slots: 100, critical: 9, others: 90 };
    /// assert_eq!(elsewhere.most_others_here(100, 200), 70);
    /// ```
    #[must_use]
    pub fn most_others_here(self, slots_here: u32, reserve_permille: u16) -> u32 {
        let all = self.slots.saturating_add(u64::from(slots_here));
        let most = share(all, reserve_permille).saturating_sub(self.others);
        u32::try_from(most).unwrap_or(u32::MAX)
    }
}

fn share(slots: u64, reserve_permille: u16) -> u64 {
    let thousandths = u128::from(slots) * u128::from(1_000_u16.saturating_sub(reserve_permille));
    // Not above `slots`, so it fits.
    u64::try_from(thousandths / 1_000).unwrap_or(slots)
}
