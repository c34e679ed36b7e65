//! Closes idle connections of sessions that have many, before a new connection is refused. A session keeps at least four.

use std::collections::HashMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::ConnectionTable;
use crate::clock::Timestamp;
use crate::protocol::{WireReply, encode_reply};

impl ConnectionTable {
    /// Removes some idle surplus connections of one user, or of all: those first that have been idle longest. Their tasks
    /// read and write no more. Pass the returned sockets to [`write_goodbye`] after the lock is released.
    pub(super) fn remove_surplus(&mut self, user: Option<u32>, now: Timestamp) -> Vec<Arc<UnixStream>> {
        if self.empty_search.is_some_and(|(of_user, until)| of_user == user && now < until) {
            return Vec::new();
        }
        let mut removed = Vec::new();
        for number in self.find_surplus(user, now) {
            if removed.len() == REMOVED_AT_ONCE {
                break;
            }
            let Some(entry) = self.entries.get(&number) else { continue };
            if entry.activity.end_if_idle(IDLE_MIN, now) {
                removed.extend(self.remove(number).and_then(|entry| entry.stream.upgrade()));
            }
        }
        if removed.is_empty() {
            // A search visits every connection.
            self.empty_search = Some((user, now.after(SEARCH_PAUSE)));
        }
        removed
    }

    /// Returns the idle connections that sessions have beyond [`KEPT_PER_SESSION`], those first that have been idle
    /// longest.
    fn find_surplus(&self, user: Option<u32>, now: Timestamp) -> Vec<u64> {
        let mut sessions: HashMap<u64, (usize, Vec<(Timestamp, u64)>)> = HashMap::new();
        for (number, entry) in &self.entries {
            let Some(session) = entry.session.filter(|_| user.is_none_or(|user| user == entry.user)) else {
                continue;
            };
            let (count, idle) = sessions.entry(session).or_default();
            *count += 1;
            let since = entry.activity.idle_since().filter(|since| now.since(*since) >= IDLE_MIN);
            idle.extend(since.map(|since| (since, *number)));
        }
        let mut surplus: Vec<_> = sessions
            .into_values()
            .flat_map(|(count, mut idle)| {
                idle.sort_unstable();
                idle.truncate(count.saturating_sub(KEPT_PER_SESSION));
                idle
            })
            .collect();
        surplus.sort_unstable();
        surplus.into_iter().map(|(_, number)| number).collect()
    }
}

/// Writes GOODBYE to removed connections, then wakes their tasks. Unread requests are not answered.
pub(super) fn write_goodbye(removed: &[Arc<UnixStream>]) {
    let mut goodbye = Vec::new();
    encode_reply(&mut goodbye, &WireReply::Goodbye { reason: "idle" });
    for stream in removed {
        // There is room, as all replies were written, unless the peer reads none. It sees the end in any case.
        let _ = (&**stream).write(&goodbye);
        let _ = stream.shutdown(Shutdown::Read);
    }
}

/// Connections that a session keeps, so that a client that is busy again need not reconnect.
const KEPT_PER_SESSION: usize = 4;

/// The idle time after which a connection may be closed: longer than the gaps in a burst, and short enough for clients
/// that wait to connect. A client that needs more connections again opens them.
const IDLE_MIN: Duration = Duration::from_millis(100);

/// Connections removed by one search, so that many new connections do not each cause a search.
const REMOVED_AT_ONCE: usize = 32;

/// The pause after a search that found nothing.
const SEARCH_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::REMOVED_AT_ONCE;
    use crate::clock::Timestamp;
    use crate::server::connections::ConnectionTable;

    /// A table of connections and their streams, which outlive it.
    #[derive(Default)]
    struct Fixture {
        table: ConnectionTable,
        streams: Vec<[Arc<UnixStream>; 2]>,
    }

    impl Fixture {
        /// Adds connections of a session, idle since these milliseconds; `None` for a working one.
        fn join(&mut self, user: u32, session: u64, idle_since: &[Option<u64>]) {
            for since in idle_since {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let streams = [ours, theirs].map(Arc::new);
                let (number, activity) = self.table.add(&streams[0], user);
                let session = if session > 0 { session } else { 100 + number };
                self.table.entries.get_mut(&number).unwrap().session = Some(session);
                since.iter().for_each(|since| activity.set_idle(at(*since)));
                self.streams.push(streams);
            }
        }

        /// Removes surplus connections and returns their numbers, in order.
        fn remove(&mut self, user: Option<u32>, millis: u64) -> Vec<usize> {
            let removed = self.table.remove_surplus(user, at(millis));
            let is_of = |stream: &Arc<UnixStream>, streams: &[_; 2]| Arc::ptr_eq(stream, &streams[0]);
            let number = |stream| self.streams.iter().position(|streams| is_of(stream, streams)).unwrap() + 1;
            removed.iter().map(number).collect()
        }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn removes_longest_idle_first_and_keeps_four_per_session() {
        let mut fixture = Fixture::default();
        fixture.join(7, 1, &[Some(500), None, Some(100), Some(400), Some(200), None, Some(300)]);
        fixture.join(7, 2, &[Some(250); 4]);
        // Each is a session of its own.
        fixture.join(7, 0, &[Some(0); 6]);
        // All but 19 have been idle for 99 ms.
        fixture.join(8, 3, &[Some(901), Some(150), Some(901), Some(901), Some(901), Some(901)]);
        assert_eq!(fixture.remove(None, 1_000), [3, 19, 5, 7], "four of session 1 stay");
        assert_eq!(fixture.table.by_user[&7], 14);
        assert_eq!(fixture.remove(None, 1_000), [0; 0]);
    }

    #[test]
    fn pauses_search_for_user_after_finding_none() {
        let mut fixture = Fixture::default();
        fixture.join(7, 1, &[Some(0); 6]);
        fixture.join(8, 2, &[Some(950); 6]);
        assert_eq!(fixture.remove(Some(8), 1_000), [0; 0], "none is idle");
        fixture.join(8, 3, &[Some(0); 5]);
        assert_eq!(fixture.remove(Some(8), 1_019), [0; 0], "the search for this user pauses");
        assert_eq!(fixture.remove(Some(7), 1_019), [1, 2], "the search for another user does not");
        assert_eq!(fixture.remove(Some(8), 1_020), [13]);
    }

    #[test]
    fn removes_bounded_number_per_search() {
        let mut fixture = Fixture::default();
        fixture.join(7, 1, &[Some(0); 4 + REMOVED_AT_ONCE + 8]);
        assert_eq!(fixture.remove(None, 100).len(), REMOVED_AT_ONCE);
        assert_eq!(fixture.remove(None, 100).len(), 8);
    }
}
