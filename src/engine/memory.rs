//! One memory budget for all tables.

use strum::EnumCount;

use super::sync::{AtomicUsize, Mutex, Ordering};

/// Counts the bytes that tables have allocated, including those of a table being grown. Each kind that the
/// rules use has a guaranteed share, also where other kinds filled the budget before.
#[derive(Debug)]
pub(super) struct Memory {
    bytes_max: usize,
    /// `bytes_max` plus the reserve for rebuilds.
    budget: usize,
    by_kind: [KindUsage; MemoryKind::COUNT],
    /// Serializes claims: two of different kinds could otherwise both take the last bytes.
    claiming: Mutex<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumCount)]
pub(super) enum MemoryKind {
    Buckets,
    Windows,
    SlidingWindows,
    Logs,
    InProgress,
    Shares,
    Permits,
    Blocks,
    SoftStates,
    IdempotencyKeys,
}

#[derive(Debug, Default)]
struct KindUsage {
    bytes: AtomicUsize,
    share: AtomicUsize,
}

impl Memory {
    pub(super) fn new(bytes_max: usize) -> Memory {
        // The reserve pays for rebuilds of tables at their size, one on each decision thread.
        Memory {
            bytes_max: usable(bytes_max),
            budget: bytes_max,
            by_kind: Default::default(),
            claiming: Mutex::default(),
        }
    }

    /// Guarantees a share to each of these kinds, and none to others.
    pub(super) fn share_out(&self, kinds: &[MemoryKind]) {
        for (number, usage) in self.by_kind.iter().enumerate() {
            let is_used = kinds.iter().any(|kind| *kind as usize == number);
            let share = if is_used { self.bytes_max / SURE_SHARE } else { 0 };
            usage.share.store(share, Ordering::Relaxed);
        }
    }

    /// Claims `bytes` for tables of a kind; false: they do not fit.
    pub(super) fn claim(&self, kind: MemoryKind, bytes: usize) -> bool {
        let _claiming = self.claiming.lock();
        let used = self.usage(kind);
        let others = self.by_kind.iter().filter(|other| !std::ptr::eq(*other, used));
        let left = self.bytes_max.saturating_sub(others.map(KindUsage::claimed_bytes).sum());
        // Guaranteed even if other kinds took more than was left: the reserve pays until they shrink.
        let most = left.max(used.share.load(Ordering::Relaxed)).min(self.max_bytes(kind));
        if bytes > self.budget.saturating_sub(self.bytes()) {
            return false;
        }
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        used.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Corrects the count of a kind from `before` bytes, claims included, to `after`.
    pub(super) fn settle(&self, kind: MemoryKind, before: usize, after: usize) {
        let bytes = &self.usage(kind).bytes;
        if after >= before {
            bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.by_kind.iter().map(|used| used.bytes.load(Ordering::Relaxed)).sum()
    }

    /// The maximum of a kind. Side tables must not displace the states of keys.
    fn max_bytes(&self, kind: MemoryKind) -> usize {
        let is_side =
            matches!(kind, MemoryKind::Blocks | MemoryKind::SoftStates | MemoryKind::IdempotencyKeys);
        if is_side { self.bytes_max / SIDE_SHARE } else { self.bytes_max }
    }

    fn usage(&self, kind: MemoryKind) -> &KindUsage {
        #[allow(clippy::indexing_slicing, reason = "there is one for each kind")]
        &self.by_kind[kind as usize]
    }
}

impl KindUsage {
    fn claimed_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed).max(self.share.load(Ordering::Relaxed))
    }
}

/// The bytes of a budget that tables may fill.
pub(super) const fn usable(bytes_max: usize) -> usize {
    bytes_max - bytes_max / REBUILD_SHARE
}

/// 1/16 of the budget is reserved for rebuilds.
const REBUILD_SHARE: usize = 16;

/// Blocks, retries ([`MemoryKind::IdempotencyKeys`]) and soft times get at most 1/4 each.
pub(super) const SIDE_SHARE: usize = 4;

/// Each kind in use is guaranteed 1/16.
pub(super) const SURE_SHARE: usize = 16;
