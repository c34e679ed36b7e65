//! The rest of the fleet in a benchmark without Redis: grants every request for tokens.

#![allow(dead_code, reason = "shared by several benchmarks, each of which uses a part")]

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{Engine, HashKey, ShareReply};

pub(crate) struct Lender {
    engine: Arc<Engine>,
}

impl Lender {
    /// Joins as one of two linked hosts. Install rules after this.
    pub(crate) fn join(engine: &Arc<Engine>) -> Lender {
        let standing = engine.join_fleet(HashKey::from_bytes([9; 16]));
        standing.set_hosts(2);
        standing.set_redis_reachable(true);
        Lender { engine: Arc::clone(engine) }
    }

    /// Grants `tokens` to every key that has called, and clears its debt. Returns the number of keys.
    pub(crate) fn lend(&self, tokens: u32, now: Now) -> usize {
        let mut keys = Vec::new();
        self.engine.take_due_share_keys(&mut keys);
        let budgets = self.engine.fleet_budgets();
        for key in &keys {
            let Some(budget) = budgets.get(&key.budget()) else { continue };
            let Some((reported, _)) = self.engine.report_share(key, budget, 0, now) else { continue };
            let level = i64::from(budget.quota.bucket().burst()) * 500_000;
            let settled = ShareReply {
                paid: reported.debt,
                granted: tokens,
                level,
                demand: 1_000,
                sent_at: now.at,
                low_mark: 1,
                next_increase: None,
            };
            self.engine.apply_share_reply(key, budget, &settled, now);
        }
        keys.len()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.engine.totals().verdicts.limit
    }
}

/// Fields of a rule that admits requests only with borrowed tokens.
pub(crate) const IN_HAND: &str = "fleet: {on_miss: refuse}";

/// Fields of a rule that admits requests on credit: half of the burst for each of two hosts.
pub(crate) const ON_CREDIT: &str = "max_over: 100%, fleet: {on_miss: admit}";
