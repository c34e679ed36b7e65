//! The memory of a key, computed from the numbers of its limit without allocation or table access.

use super::check::SoftState;
use super::memory::{MemoryKind, SIDE_SHARE, SURE_SHARE, usable};
use super::table::bucket_bytes;
use super::tag::{BlockedUntil, TableState};
use crate::limit::Quota;
use crate::limit::concurrency::{LeaseCount, Permits};
use crate::limit::fixed_window::FixedWindowState;
use crate::limit::share::CompactShare;
use crate::limit::sliding_log::SlidingLogState;
use crate::limit::sliding_window::SlidingWindowState;
use crate::limit::token_bucket::GcraState;
use crate::rules::{Allowance, OverTreatment, Rule};

/// Resident bytes of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyFootprint {
    /// The least of a key among many, with the smallest heap block.
    pub least: u64,
    /// The most of a key among many, with the largest heap block.
    pub most: u64,
}

/// The bytes of a key under one quota: its table entry and its heap block, if any.
fn bytes_per_key(quota: &Quota) -> KeyFootprint {
    match quota {
        Quota::TokenBucket(_) | Quota::LeakyBucket(_) => entry::<GcraState>((0, 0)),
        Quota::FixedWindow(_) => entry::<FixedWindowState>((0, 0)),
        Quota::SlidingLog(quota) => entry::<SlidingLogState>(quota.heap_bytes()),
        Quota::SlidingWindow(quota) => entry::<SlidingWindowState>((quota.heap_bytes(), quota.heap_bytes())),
        Quota::FleetBudget(_) => entry::<CompactShare>((0, CompactShare::heap_bytes_max())),
        Quota::Concurrency(quota) if !quota.is_fleet() => entry::<LeaseCount>((0, 0)),
        // The local count and the fleet permits.
        Quota::Concurrency(_) => {
            let (count, fleet_permits) = (entry::<LeaseCount>((0, 0)), entry::<Permits>((0, 0)));
            KeyFootprint { least: count.least + fleet_permits.least, most: count.most + fleet_permits.most }
        }
    }
}

/// The bytes of a key of a rule under any override: at least its own state; at most also its soft, elastic
/// and block states. Zero if the rule keeps no state.
pub fn bytes_per_rule_key(Rule { limit, .. }: &Rule) -> KeyFootprint {
    let all = || limit.allowances.iter().flatten();
    let least = all().map(|allowance| bytes_per_key(&allowance.quota).least).min();
    let most = all().map(max_entries).max();
    let block = limit.block.map(|_| entry::<BlockedUntil>((0, 0)).most).filter(|_| most.is_some());
    KeyFootprint {
        least: least.unwrap_or_default(),
        most: most.unwrap_or_default() + block.unwrap_or_default(),
    }
}

/// The kinds of tables that some rules use. Each has a part of the memory that the others cannot fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindsInUse(u16);

impl KindsInUse {
    pub fn of<'r>(rules: impl IntoIterator<Item = &'r Rule>) -> KindsInUse {
        let kinds = rules.into_iter().flat_map(memory_kinds);
        KindsInUse(kinds.fold(0, |bits, kind| bits | 1 << kind as u16))
    }

    /// The bytes that only kinds besides those of a rule may fill.
    fn bytes_beside(self, rule: &Rule, bytes: u64) -> u64 {
        let KindsInUse(own) = KindsInUse::of([rule]);
        u64::from((self.0 & !own).count_ones()) * (bytes / SURE_SHARE as u64)
    }
}

/// Returns the kinds of tables of a rule, some of them more than once.
pub(super) fn memory_kinds(Rule { limit, .. }: &Rule) -> Vec<MemoryKind> {
    let allowances = || limit.allowances.iter().flatten();
    let mut kinds: Vec<MemoryKind> = allowances().map(|allowance| memory_kind(&allowance.quota)).collect();
    let has_permits = kinds.contains(&MemoryKind::Permits);
    kinds.extend(has_permits.then_some(MemoryKind::InProgress));
    kinds.extend(limit.block.map(|_| MemoryKind::Blocks));
    let is_soft = allowances().any(|allowance| matches!(allowance.over, OverTreatment::Soft(_)));
    kinds.extend(is_soft.then_some(MemoryKind::SoftStates));
    kinds
}

fn memory_kind(quota: &Quota) -> MemoryKind {
    match quota {
        Quota::TokenBucket(_) | Quota::LeakyBucket(_) => MemoryKind::Buckets,
        Quota::FixedWindow(_) => MemoryKind::Windows,
        Quota::SlidingLog(_) => MemoryKind::Logs,
        Quota::SlidingWindow(_) => MemoryKind::SlidingWindows,
        // A table separate from the lease counts, which are not evicted either.
        Quota::Concurrency(quota) if quota.is_fleet() => MemoryKind::Permits,
        Quota::Concurrency(_) => MemoryKind::InProgress,
        Quota::FleetBudget(_) => MemoryKind::Shares,
    }
}

/// The number of keys of a rule that fit a memory limit while the other rules, with tables of the kinds `in_use`, have no
/// keys; without the reserve for table rebuilds. `None` if the rule keeps no state.
pub fn keys_within(memory_bytes_max: usize, rule: &Rule, in_use: KindsInUse) -> Option<u64> {
    let all = u64::try_from(usable(memory_bytes_max)).unwrap_or(u64::MAX);
    let bytes = all - in_use.bytes_beside(rule, all);
    let fit = bytes.checked_div(bytes_per_rule_key(rule).most)?;
    // Blocks and soft times have a part of the memory.
    let beside = |entry: KeyFootprint| all / SIDE_SHARE as u64 / entry.most;
    let is_soft = |allowance: &Allowance| matches!(allowance.over, OverTreatment::Soft(_));
    let blocks = rule.limit.block.map(|_| beside(entry::<BlockedUntil>((0, 0))));
    let soft =
        rule.limit.allowances.iter().flatten().any(is_soft).then(|| beside(entry::<SoftState>((0, 0))));
    [blocks, soft].into_iter().flatten().chain([fit]).min()
}

fn max_entries(allowance: &Allowance) -> u64 {
    let own = bytes_per_key(&allowance.quota).most;
    match &allowance.over {
        OverTreatment::Refuse => own,
        // One state, which may grow to the size of the larger quota.
        OverTreatment::Soft(larger) => own.max(bytes_per_key(larger).most) + entry::<SoftState>((0, 0)).most,
        OverTreatment::Elastic(second) => own + bytes_per_key(second).most,
    }
}

/// The bytes of a table entry, with the least and the most heap bytes. Tables are 7/16 to 7/8 full; as the shards double one
/// after the other, many keys together have 1.6 to 1.72 buckets each.
fn entry<S: TableState>((heap_least, heap_most): (usize, usize)) -> KeyFootprint {
    let bucket = bucket_bytes::<S>();
    let bytes = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    KeyFootprint {
        least: bytes((bucket * 3).div_ceil(2) + heap_least),
        most: bytes((bucket * 7).div_ceil(4) + heap_most),
    }
}
