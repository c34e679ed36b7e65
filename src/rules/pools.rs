//! The pools that are shed, while files are read: each in one entry of one domain.

use std::collections::HashMap;

use super::Position;
use super::meaning::{MeantShed, UnsettledShed};
use super::problem::shown;
use super::source::{Place, Report};

/// Where each pool is shed, by its name.
#[derive(Debug, Default)]
pub(super) struct Pools(HashMap<Box<str>, Position>);

impl Pools {
    /// Of these entries those whose pool had none before, each with its place: two that watch over one pool would both
    /// refuse by the same slots.
    pub(super) fn take(
        &mut self,
        entries: Vec<MeantShed>,
        report: &mut Report<'_>,
    ) -> Vec<(UnsettledShed, Place)> {
        let mut new = Vec::with_capacity(entries.len());
        for MeantShed { pool, entry } in entries {
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
