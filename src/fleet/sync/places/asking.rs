//! Requests that wait for a place: how many there are of a key, and what Redis has said of it.

use super::{Call, Engine, Now, SharedKey, Sync, Timestamp};

/// What Redis has said of a key that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacesTold {
    /// Which key.
    pub key: SharedKey,
    /// There were fewer places than are waited for.
    pub is_short: bool,
}

impl Sync {
    /// So many requests wait for a place of a key.
    pub fn wait_for_places(&mut self, key: SharedKey, waiting: u32, engine: &Engine, now: Now) {
        let Some(limit) = self.places.limits.get(&key.budget()) else { return };
        engine.know_places(&key, limit, now);
        let Some(number) = self.find_or_open_place(key, now.at) else { return };
        self.places.book.page_mut(number).set_waiting(waiting);
        if waiting > 0 {
            self.hurry_place(number, now.at);
        }
    }

    /// Says of places what is to be said now, and waits for no turn.
    pub fn say_places(&mut self, engine: &Engine, now: Now, out: &mut Vec<Call>) {
        if self.standing.is_linked() {
            self.tick_places(engine, now, out);
        }
    }

    /// What was said since of keys that somebody waits for.
    pub fn take_places_told(&mut self) -> Vec<PlacesTold> {
        std::mem::take(&mut self.places.told)
    }

    /// Has a page looked at as soon as may be.
    pub(super) fn hurry_place(&mut self, number: usize, now: Timestamp) {
        let page = self.places.book.page_mut(number);
        if page.in_flight || page.waits {
            return;
        }
        let soonest = page.soonest(now);
        if soonest < page.due_at() || page.due_at() <= now {
            self.places.book.schedule(number, soonest);
        }
    }
}
