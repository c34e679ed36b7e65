//! The reserve: slots that only critical requests may use. Exact, in integers; the counts are arguments.
//!
//! Source: the fleet usage load shedder of Paul Tarjan, “Scaling your API with rate limiters” (Stripe, 2017). Here both
//! kinds of requests are counted, and the slots are those of live processes; the published script counts non-critical
//! requests against a constant.

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
    #[must_use]
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
