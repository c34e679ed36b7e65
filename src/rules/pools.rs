//! Pools with a `shed` entry, during reading: each pool has one entry in one domain.

use std::collections::HashMap;

use super::Position;
use super::meaning::{ReadShedEntry, UnsettledShed};
use super::problem::shown;
use super::source::{Report, Span};

/// The position of each pool's entry, by pool name.
#[derive(Debug, Default)]
pub(super) struct PoolIndex(HashMap<Box<str>, Position>);

impl PoolIndex {
    /// Returns the entries of new pools with their spans, and reports duplicates: two entries for one pool
    /// would shed by the same slots.
    pub(super) fn take(
        &mut self,
        entries: Vec<ReadShedEntry>,
        report: &mut Report<'_>,
    ) -> Vec<(UnsettledShed, Span)> {
        let mut new = Vec::with_capacity(entries.len());
        for ReadShedEntry { pool, entry } in entries {
            let Some((pool, at)) = pool else { continue };
            if let Some(first) = self.0.get(&pool) {
                let message = format!("a second entry of `shed` for the pool {}", shown(&pool));
                let mend = format!("a pool is shed in one entry of one domain; the first is at {first}");
                report.error(at, message, mend);
                continue;
            }
            self.0.insert(pool, report.source().position(at));
            new.extend(entry.map(|entry| (entry, at)));
        }
        new
    }
}
