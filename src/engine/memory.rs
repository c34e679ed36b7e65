//! One budget of bytes for all tables.

use super::sync::{AtomicUsize, Mutex, Ordering};

/// Counts what the tables have allocated, also while one grows. Each kind of table that the rules use is sure of a
/// share: what the others took before it came does not leave it without any.
#[derive(Debug)]
pub(super) struct Memory {
    bytes_max: usize,
    /// The same with what is kept back.
    budget: usize,
    by_kind: [Used; KINDS],
    /// Held for a claim: two of different kinds could otherwise both take the last bytes.
    claiming: Mutex<()>,
}

/// The kinds of table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Buckets,
    Windows,
    SlidingWindows,
    Logs,
    InProgress,
    Shares,
    Places,
    Blocks,
    Softs,
    Repeats,
}

#[derive(Debug, Default)]
struct Used {
    bytes: AtomicUsize,
    /// What it is sure of.
    share: AtomicUsize,
}

impl Memory {
    pub(super) fn new(bytes_max: usize) -> Memory {
        // What is kept back is for tables being rebuilt at their size, one on each decision thread.
        Memory {
            bytes_max: usable(bytes_max),
            budget: bytes_max,
            by_kind: Default::default(),
            claiming: Mutex::default(),
        }
    }

    /// Makes these kinds sure of a share, and no other.
    pub(super) fn share_out(&self, kinds: &[Kind]) {
        for kind in ALL {
            let share = if kinds.contains(&kind) { self.bytes_max / SURE_SHARE } else { 0 };
            self.of(kind).share.store(share, Ordering::Relaxed);
        }
    }

    /// Takes so many bytes for tables of a kind, if they are there.
    pub(super) fn claim(&self, kind: Kind, bytes: usize) -> bool {
        let _claiming = self.claiming.lock();
        let others = ALL.iter().filter(|other| **other != kind).map(|other| self.of(*other).spoken_for());
        let left = self.bytes_max.saturating_sub(others.sum());
        let used = self.of(kind);
        // What it is sure of it may have, also where the others took more than was left: out of what is kept back, until
        // they have shrunk.
        let most = left.max(used.share.load(Ordering::Relaxed)).min(self.most_of(kind));
        if bytes > self.budget.saturating_sub(self.bytes()) {
            return false;
        }
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        used.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Tables of a kind that had `before` bytes, claims included, now have `after`.
    pub(super) fn settle(&self, kind: Kind, before: usize, after: usize) {
        let bytes = &self.of(kind).bytes;
        if after >= before {
            bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.by_kind.iter().map(|used| used.bytes.load(Ordering::Relaxed)).sum()
    }

    /// What a kind may have at most. What callers make beside the states of their keys does not drive those out.
    fn most_of(&self, kind: Kind) -> usize {
        let is_side = matches!(kind, Kind::Blocks | Kind::Softs | Kind::Repeats);
        if is_side { self.bytes_max / SIDE_SHARE } else { self.bytes_max }
    }

    fn of(&self, kind: Kind) -> &Used {
        #[allow(clippy::indexing_slicing, reason = "there is one for each kind")]
        &self.by_kind[kind as usize]
    }
}

impl Used {
    fn spoken_for(&self) -> usize {
        self.bytes.load(Ordering::Relaxed).max(self.share.load(Ordering::Relaxed))
    }
}

/// What of a budget the tables may fill.
pub(super) const fn usable(bytes_max: usize) -> usize {
    bytes_max - bytes_max / REBUILD_SHARE
}

const KINDS: usize = 10;

const ALL: [Kind; KINDS] = [
    Kind::Buckets,
    Kind::Windows,
    Kind::SlidingWindows,
    Kind::Logs,
    Kind::InProgress,
    Kind::Shares,
    Kind::Places,
    Kind::Blocks,
    Kind::Softs,
    Kind::Repeats,
];

/// One part in so many is kept back.
const REBUILD_SHARE: usize = 16;

/// Blocks, repeats and soft times have at most one part in so many, each.
const SIDE_SHARE: usize = 4;

/// Each kind in use is sure of one part in so many.
const SURE_SHARE: usize = 16;
