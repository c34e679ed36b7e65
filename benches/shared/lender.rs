//! The rest of the fleet, as one host sees it in a benchmark without Redis: it grants what it is asked for.

#![allow(dead_code, reason = "shared by several benchmarks, each of which uses a part")]

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{Engine, HashKey, Settled};

/// Answers the calls of an engine.
pub(crate) struct Lender {
    engine: Arc<Engine>,
}

impl Lender {
    /// One of two hosts, which is heard. The rules are installed after this.
    pub(crate) fn join(engine: &Arc<Engine>) -> Lender {
        let standing = engine.join_fleet(HashKey::from_bytes([9; 16]));
        standing.set_hosts(2);
        standing.set_linked(true);
        Lender { engine: Arc::clone(engine) }
    }

    /// Grants so many tokens to every key that has called, and takes what it owed as paid. Returns how many there were.
    pub(crate) fn lend(&self, tokens: u32, now: Now) -> usize {
        let mut keys = Vec::new();
        self.engine.take_calls(&mut keys);
        let budgets = self.engine.budgets();
        for key in &keys {
            let Some(budget) = budgets.get(&key.budget()) else { continue };
            let Some((reported, _)) = self.engine.report(key, budget, 0, now) else { continue };
            let level = i64::from(budget.quota.bucket().burst()) * 500_000;
            let settled = Settled {
                paid: reported.owed,
                granted: tokens,
                level,
                demand: 1_000,
                sent: now.at,
                low: 1,
                more: None,
            };
            self.engine.settle(key, budget, &settled, now);
        }
        keys.len()
    }

    /// How many requests were refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.engine.totals().limited
    }
}

/// What a rule says whose host holds all that it lets through.
pub(crate) const IN_HAND: &str = "fleet: {on_miss: refuse}";

/// What a rule says whose host lets pass on credit: half of the burst for each of two hosts.
pub(crate) const ON_CREDIT: &str = "max_over: 100%, fleet: {on_miss: admit}";
