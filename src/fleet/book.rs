//! The pages of all keys that are kept in touch about, found by key, and in the order in which they are due.

use super::page::Page;
use crate::clock::Timestamp;
use crate::engine::SharedKey;
use foldhash::fast::FixedState;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// What a book has a page of.
pub(super) trait Paged {
    fn new(key: SharedKey, now: Timestamp) -> Self;

    fn key(&self) -> &SharedKey;

    /// When to look at it next.
    fn due(&mut self) -> &mut Timestamp;

    /// Whether it is looked at when its bucket has room, and not before.
    fn waits(&mut self) -> &mut bool;

    fn in_flight(&self) -> bool;
}

impl Paged for Page {
    fn new(key: SharedKey, now: Timestamp) -> Page {
        Page::new(key, now)
    }

    fn key(&self) -> &SharedKey {
        &self.key
    }

    fn due(&mut self) -> &mut Timestamp {
        &mut self.due
    }

    fn waits(&mut self) -> &mut bool {
        &mut self.waits
    }

    fn in_flight(&self) -> bool {
        self.in_flight
    }
}

/// A book of pages, each known by a number.
#[derive(Debug)]
pub(super) struct Book<P = Page> {
    pages: Vec<P>,
    free: Vec<usize>,
    /// Keys are digests under a secret: nobody can aim at a place, and a fast hash will do.
    by_key: HashMap<([u8; 16], u64), usize, FixedState>,
    /// Of a page that was put off or brought forward, more than once; the page says which holds.
    due: BinaryHeap<Reverse<(Timestamp, usize)>>,
}

impl<P> Default for Book<P> {
    fn default() -> Book<P> {
        Book { pages: Vec::new(), free: Vec::new(), by_key: HashMap::default(), due: BinaryHeap::new() }
    }
}

impl<P: Paged> Book<P> {
    /// The page waits for its bucket: until it is scheduled again it is not due. Returns whether it did not wait before.
    pub(super) fn wait(&mut self, number: usize) -> bool {
        let page = self.page_mut(number);
        *page.due() = NEVER;
        !std::mem::replace(page.waits(), true)
    }

    /// The page waits no longer. Returns whether it did: it may have been closed meanwhile, and its number be another's.
    pub(super) fn wake(&mut self, number: usize) -> bool {
        let page = self.page_mut(number);
        std::mem::take(page.waits()) && !page.in_flight()
    }

    /// How many are open.
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    #[allow(clippy::indexing_slicing, reason = "numbers are those of pages, and no page is ever removed")]
    pub(super) fn page(&self, number: usize) -> &P {
        &self.pages[number]
    }

    #[allow(clippy::indexing_slicing, reason = "as above: the tokens of a key without a page would be lost")]
    pub(super) fn page_mut(&mut self, number: usize) -> &mut P {
        &mut self.pages[number]
    }

    /// The page, if it is still that of a key.
    pub(super) fn page_of(&mut self, number: usize, key: &[u8; 16]) -> Option<&mut P> {
        Some(self.page_mut(number)).filter(|page| page.key().name() == *key)
    }

    /// The number of the key's page.
    pub(super) fn find(&self, key: &SharedKey) -> Option<usize> {
        self.by_key.get(&(key.name(), key.budget())).copied()
    }

    /// The numbers of all that are open, in an order that is the same in every run.
    pub(super) fn numbers(&self) -> Vec<usize> {
        let mut numbers: Vec<usize> = self.by_key.values().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// The pages of all that are open, in any order.
    pub(super) fn open_pages(&self) -> impl Iterator<Item = &P> {
        self.by_key.values().map(|number| self.page(*number))
    }

    pub(super) fn open(&mut self, key: SharedKey, now: Timestamp) -> usize {
        let page = P::new(key, now);
        let number = self.free.pop().unwrap_or(self.pages.len());
        match self.pages.get_mut(number) {
            Some(place) => *place = page,
            None => self.pages.push(page),
        }
        self.by_key.insert((key.name(), key.budget()), number);
        number
    }

    /// Closes a page. The number of its budget, if it was open.
    pub(super) fn close(&mut self, number: usize) -> Option<u64> {
        let page = self.page_mut(number);
        *page.due() = NEVER;
        *page.waits() = false;
        let key = *page.key();
        self.by_key.remove(&(key.name(), key.budget()))?;
        self.free.push(number);
        Some(key.budget())
    }

    /// The page is to be looked at then.
    pub(super) fn schedule(&mut self, number: usize, at: Timestamp) {
        *self.page_mut(number).due() = at;
        self.due.push(Reverse((at, number)));
    }

    /// The next page that is due, if one is by now.
    pub(super) fn take_due(&mut self, now: Timestamp) -> Option<usize> {
        loop {
            let Reverse((due, number)) = *self.due.peek().filter(|Reverse((due, _))| *due <= now)?;
            self.due.pop();
            let page = self.page_mut(number);
            if *page.due() == due && !page.in_flight() {
                return Some(number);
            }
        }
    }

    /// When the next one is due.
    pub(super) fn next(&self) -> Timestamp {
        self.due.peek().map_or(NEVER, |Reverse((due, _))| *due)
    }
}

pub(super) const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);
