//! The table of per-key sync state, called pages here, by key and in order of due time.

use super::page::KeySync;
use crate::clock::Timestamp;
use crate::engine::SharedKey;
use foldhash::fast::FixedState;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A table of pages, each with a number.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    pages: Vec<KeySync>,
    free: Vec<usize>,
    /// Keys are digests under a secret, so that no client can force collisions, and a fast hash is safe.
    by_key: HashMap<([u8; 16], u64), usize, FixedState>,
    /// Rescheduled pages occur more than once; the page's own due time decides.
    due: BinaryHeap<Reverse<(Timestamp, usize)>>,
}

impl KeyTable {
    /// Makes the page wait for its bucket: it is not due until scheduled again.
    pub(super) fn wait(&mut self, number: usize) {
        let page = self.page_mut(number);
        (page.due, page.waits) = (NEVER, true);
    }

    /// Ends the page's wait. Returns whether it did wait: it may have been closed meanwhile and its number reused.
    pub(super) fn wake(&mut self, number: usize) -> bool {
        let page = self.page_mut(number);
        std::mem::take(&mut page.waits) && !page.in_flight
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    #[allow(clippy::indexing_slicing, reason = "numbers are those of pages, and no page is ever removed")]
    pub(super) fn page(&self, number: usize) -> &KeySync {
        &self.pages[number]
    }

    #[allow(clippy::indexing_slicing, reason = "as above: the tokens of a key without a page would be lost")]
    pub(super) fn page_mut(&mut self, number: usize) -> &mut KeySync {
        &mut self.pages[number]
    }

    /// The page at `number`, if it still belongs to `key`.
    pub(super) fn page_of(&mut self, number: usize, key: &[u8; 16]) -> Option<&mut KeySync> {
        Some(self.page_mut(number)).filter(|page| page.key.name() == *key)
    }

    pub(super) fn find(&self, key: &SharedKey) -> Option<usize> {
        self.by_key.get(&(key.name(), key.budget())).copied()
    }

    /// The numbers of all open pages, sorted, so that runs are reproducible.
    pub(super) fn numbers(&self) -> Vec<usize> {
        let mut numbers: Vec<usize> = self.by_key.values().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// All open pages, in any order.
    pub(super) fn open_pages(&self) -> impl Iterator<Item = &KeySync> {
        self.by_key.values().map(|number| self.page(*number))
    }

    pub(super) fn open(&mut self, key: SharedKey, now: Timestamp) -> usize {
        let page = KeySync::new(key, now);
        let number = self.free.pop().unwrap_or(self.pages.len());
        match self.pages.get_mut(number) {
            Some(place) => *place = page,
            None => self.pages.push(page),
        }
        self.by_key.insert((key.name(), key.budget()), number);
        number
    }

    /// Closes a page. Returns its budget's number, if the page was open.
    pub(super) fn close(&mut self, number: usize) -> Option<u64> {
        let page = self.page_mut(number);
        (page.due, page.waits) = (NEVER, false);
        let key = page.key;
        self.by_key.remove(&(key.name(), key.budget()))?;
        self.free.push(number);
        Some(key.budget())
    }

    pub(super) fn schedule(&mut self, number: usize, at: Timestamp) {
        self.page_mut(number).due = at;
        self.due.push(Reverse((at, number)));
    }

    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<usize> {
        loop {
            let Reverse((due, number)) = *self.due.peek().filter(|Reverse((due, _))| *due <= now)?;
            self.due.pop();
            let page = self.page_mut(number);
            if page.due == due && !page.in_flight {
                return Some(number);
            }
        }
    }

    pub(super) fn next(&self) -> Timestamp {
        self.due.peek().map_or(NEVER, |Reverse((due, _))| *due)
    }
}

pub(super) const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);
