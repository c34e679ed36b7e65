//! What work is in progress in each pool, as its sessions have it.

use std::collections::HashMap;
use std::sync::Arc;

use super::Leases;
use super::book::Book;
use crate::engine::pool::{InPool, Pool};

/// By pool.
#[derive(Debug, Default)]
pub(in crate::engine) struct InPools(HashMap<*const Pool, InPool>);

impl InPools {
    /// What is in progress in one pool.
    pub(in crate::engine) fn of(&self, pool: &Arc<Pool>) -> InPool {
        self.0.get(&Arc::as_ptr(pool)).copied().unwrap_or_default()
    }

    fn add(&mut self, book: &Book) {
        let members = (0..).map_while(|piece| book.members().piece(piece)).flatten();
        for member in members {
            let sum = self.0.entry(Arc::as_ptr(&member.pool)).or_default();
            sum.busy = sum.busy.saturating_add(member.busy());
            sum.others = sum.others.saturating_add(member.others);
            sum.critical = sum.critical.saturating_add(member.working.saturating_sub(member.others));
        }
    }
}

impl Leases {
    /// What is in progress, one book after the other: work that begins or ends meanwhile may be in it or not.
    pub(in crate::engine) fn in_pools(&self) -> InPools {
        let mut sums = InPools::default();
        self.books.iter().for_each(|book| sums.add(&book.lock()));
        sums
    }

    /// Does something while no lease begins or ends. Of all sessions, not of all leases: it takes a few microseconds, and it
    /// is done only where something is wrong.
    pub(in crate::engine) fn while_still<T>(&self, then: impl FnOnce(&InPools) -> T) -> T {
        // Always in this order, and nobody else holds two.
        let books: Vec<_> = self.books.iter().map(|book| book.lock()).collect();
        let mut sums = InPools::default();
        books.iter().for_each(|book| sums.add(book));
        then(&sums)
    }
}
