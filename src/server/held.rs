//! How many bytes the connections of one user hold beyond what each has at rest. It frees nothing itself.
//!
//! Counted when a buffer grows for a large frame, and when replies must wait for a peer that does not read: neither
//! happens to a healthy connection, which pays nothing for it. Requests that wait for a call are counted as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;

use super::Shared;
use super::word::Word;
use crate::clock::Timestamp;

/// By user, and only where there is something.
#[derive(Debug, Default)]
pub(super) struct HeldByUser {
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    by_user: HashMap<u32, usize>,
    word: Word,
}

impl HeldByUser {
    /// Changes what a user holds by a difference; whether that is within `most`. Less is always.
    fn change(&self, user: u32, (from, to): (usize, usize), most: usize, now: Timestamp) -> bool {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let all = book.by_user.get(&user).copied().unwrap_or_default();
        let all = all.saturating_sub(from).saturating_add(to);
        if to > from && all > most {
            if most < BYTES_MAX {
                return false;
            }
            let due = book.word.is_due(now);
            // Every buffer that grows needs the lock.
            drop(book);
            if let Some(connections) = due {
                warn!(
                    user,
                    connections,
                    "the connections of this user hold {} MiB of unread replies and large frames: some are closed",
                    BYTES_MAX >> 20
                );
            }
            return false;
        }
        if all == 0 {
            book.by_user.remove(&user);
        } else {
            book.by_user.insert(user, all);
        }
        true
    }
}

/// What one connection holds. Given back when it drops.
#[derive(Debug)]
pub(super) struct Held {
    shared: Arc<Shared>,
    user: u32,
    bytes: usize,
}

impl Held {
    pub(super) fn nothing(shared: Arc<Shared>, user: u32) -> Held {
        Held { shared, user, bytes: 0 }
    }

    /// Notes that it holds so many now; whether it may. If not, nothing is noted, and the connection is to end.
    pub(super) fn set(&mut self, bytes: usize) -> bool {
        self.set_within(bytes, BYTES_MAX)
    }

    /// The same, for what can be done without: of what its user may hold half stays free of it, so that no connection has to
    /// end for its sake.
    pub(super) fn set_if_half_is_free(&mut self, bytes: usize) -> bool {
        self.set_within(bytes, BYTES_MAX / 2)
    }

    fn set_within(&mut self, bytes: usize, most: usize) -> bool {
        if bytes == self.bytes {
            return true;
        }
        let now = self.shared.clock.now().at;
        let may = self.shared.held.change(self.user, (self.bytes, bytes), most, now);
        if may {
            self.bytes = bytes;
        }
        may
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Two hundred peers that do not read their replies; a thousand that each send the largest frame.
const BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::{BYTES_MAX, HeldByUser};
    use crate::clock::Timestamp;

    #[test]
    fn each_user_has_his_own_and_what_is_given_back_can_be_had_again() {
        let held = HeldByUser::default();
        let change = |user, from, to| held.change(user, (from, to), BYTES_MAX, Timestamp::ORIGIN);
        assert!(change(1, 0, BYTES_MAX));
        assert!(!change(1, 0, 1), "no more for him");
        assert!(change(2, 0, BYTES_MAX), "another user has as much");
        assert!(change(1, 10, 5) && change(1, 0, 5) && !change(1, 0, 1));
        assert!(change(1, BYTES_MAX, 0) && change(2, BYTES_MAX, 0));
        assert!(held.book.lock().unwrap().by_user.is_empty(), "nothing is kept of who holds nothing");
    }

    #[test]
    fn what_can_be_done_without_leaves_half_free() {
        let held = HeldByUser::default();
        let half = BYTES_MAX / 2;
        assert!(held.change(1, (0, half), half, Timestamp::ORIGIN));
        assert!(!held.change(1, (0, 1), half, Timestamp::ORIGIN), "no more of it");
        assert!(held.change(1, (0, half), BYTES_MAX, Timestamp::ORIGIN), "buffers have what is left");
    }
}
