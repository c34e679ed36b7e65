//! One budget of bytes for all tables.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what the tables have allocated, also while one grows.
#[derive(Debug)]
pub(super) struct Memory {
    bytes_max: usize,
    bytes: AtomicUsize,
}

impl Memory {
    pub(super) fn new(bytes_max: usize) -> Memory {
        // What is kept back is for tables being rebuilt at their size, one on each decision thread.
        Memory { bytes_max: bytes_max - bytes_max / REBUILD_SHARE, bytes: AtomicUsize::new(0) }
    }

    /// Takes so many bytes, if they are there.
    pub(super) fn claim(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// A table that had `before` bytes, claims included, now has `after`.
    pub(super) fn settle(&self, before: usize, after: usize) {
        if after >= before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// One part in so many is kept back.
const REBUILD_SHARE: usize = 16;
