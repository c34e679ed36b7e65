//! Pending requests for permits: their number per key, and the replies about them.

use super::{Engine, Now, ScriptCommand, SharedKey, Sync, Timestamp};

/// A reply about a key with pending requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitCheckReply {
    /// The key.
    pub key: SharedKey,
    /// Redis granted fewer permits than the requests need.
    pub is_short: bool,
}

impl Sync {
    /// Sets the number of pending requests of a key.
    pub fn wait_for_places(&mut self, key: SharedKey, waiting: u32, engine: &Engine, now: Now) {
        let Some(limit) = self.places.limits.get(&key.budget()) else { return };
        engine.create_permits(&key, limit, now);
        let Some(number) = self.find_or_open_place(key, now.at) else { return };
        self.places.book.page_mut(number).set_waiting(waiting);
        if waiting > 0 {
            self.hurry_place(number, now.at);
        }
    }

    /// Emits the due commands about permits without waiting for a tick.
    pub fn say_places(&mut self, engine: &Engine, now: Now, out: &mut Vec<ScriptCommand>) {
        if self.standing.is_redis_reachable() {
            self.tick_places(engine, now, out);
        }
    }

    /// Takes the replies about keys with pending requests since the last call.
    pub fn take_places_told(&mut self) -> Vec<PermitCheckReply> {
        std::mem::take(&mut self.places.told)
    }

    /// Schedules a check of a key at the earliest allowed time.
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
