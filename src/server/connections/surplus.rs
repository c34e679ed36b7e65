//! Idle connections of sessions that have many: they give way before a newcomer is refused. No session loses its last.

use std::collections::HashMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use super::{Book, SessionKey};
use crate::clock::Timestamp;
use crate::protocol::{Reply, encode_reply};

impl Book {
    /// Takes the places of some idle surplus connections, those first that have rested longest: of one user, or of all.
    /// Their tasks read and write no more; their sockets are to be passed to [`say_goodbye`] once no lock is held.
    pub(super) fn end_surplus(&mut self, user: Option<u32>, now: Timestamp) -> Vec<Arc<UnixStream>> {
        if self.searched.is_some_and(|(of_user, until)| of_user == user && now < until) {
            return Vec::new();
        }
        let mut ended = Vec::new();
        for number in self.surplus(user, now) {
            if ended.len() == ENDED_AT_ONCE {
                break;
            }
            let Some(present) = self.present.get(&number) else { continue };
            if present.activity.end_if_resting(IDLE, now) {
                ended.extend(self.remove(number).and_then(|present| present.stream.upgrade()));
            }
        }
        if ended.is_empty() {
            // To search costs a look at every connection.
            self.searched = Some((user, now.after(SEARCH_PAUSE)));
        }
        ended
    }

    /// The connections that a session has beyond a few and that are idle, those first that have rested longest.
    fn surplus(&self, user: Option<u32>, now: Timestamp) -> Vec<u64> {
        let mut sessions: HashMap<SessionKey, (usize, Vec<(Timestamp, u64)>)> = HashMap::new();
        for (number, present) in &self.present {
            let Some(session) = present.session.filter(|_| user.is_none_or(|user| user == present.user))
            else {
                continue;
            };
            let (count, resting) = sessions.entry(session).or_default();
            *count += 1;
            let since = present.activity.resting_since().filter(|since| now.since(*since) >= IDLE);
            resting.extend(since.map(|since| (since, *number)));
        }
        let mut surplus: Vec<_> = sessions
            .into_values()
            .flat_map(|(count, mut resting)| {
                resting.sort_unstable();
                resting.truncate(count.saturating_sub(KEPT_A_SESSION));
                resting
            })
            .collect();
        surplus.sort_unstable();
        surplus.into_iter().map(|(_, number)| number).collect()
    }
}

/// Tells the peers of connections that are to end, then wakes their tasks. What a peer has written and the daemon has not
/// read is not judged.
pub(super) fn say_goodbye(ended: &[Arc<UnixStream>]) {
    let mut goodbye = Vec::new();
    encode_reply(&mut goodbye, &Reply::Goodbye { reason: "idle" });
    for stream in ended {
        // All replies were written before, so there is room, unless the peer reads none. It finds the end all the same.
        let _ = (&**stream).write(&goodbye);
        let _ = stream.shutdown(Shutdown::Read);
    }
}

/// A session keeps so many: a client that is busy again need not connect first.
const KEPT_A_SESSION: usize = 4;

/// A connection that has not been used for so long is idle: a burst has ended, and requests that wait for a place would be
/// refused by then. A client that comes back opens another.
const IDLE: Duration = Duration::from_millis(100);

/// So many places are freed in one search, so that a crowd of newcomers does not cause one each.
const ENDED_AT_ONCE: usize = 32;

/// After a search that found nothing.
const SEARCH_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::{ENDED_AT_ONCE, say_goodbye};
    use crate::clock::Timestamp;
    use crate::server::connections::Book;
    use crate::server::processes::SessionKey;

    /// A book of connections, each with a stream that outlives it.
    #[derive(Default)]
    struct Office {
        book: Book,
        streams: Vec<[Arc<UnixStream>; 2]>,
    }

    impl Office {
        /// Adds connections of a session, which rest since so many milliseconds; none: it works.
        fn join(&mut self, user: u32, session: u8, resting: &[Option<u64>]) {
            for since in resting {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let streams = [ours, theirs].map(Arc::new);
                let (number, activity) = self.book.add(&streams[0], user);
                let key = SessionKey::new((session > 0).then_some([session; 16]), user, number);
                self.book.present.get_mut(&number).unwrap().session = Some(key);
                since.iter().for_each(|since| activity.rest(at(*since)));
                self.streams.push(streams);
            }
        }

        /// The numbers of those that are ended, in order.
        fn end(&mut self, user: Option<u32>, millis: u64) -> Vec<usize> {
            let ended = self.book.end_surplus(user, at(millis));
            let is_of = |stream: &Arc<UnixStream>, streams: &[_; 2]| Arc::ptr_eq(stream, &streams[0]);
            let number = |stream| self.streams.iter().position(|streams| is_of(stream, streams)).unwrap() + 1;
            ended.iter().map(number).collect()
        }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn ends_first_those_that_have_rested_longest_and_leaves_each_session_four() {
        let mut office = Office::default();
        office.join(7, 1, &[Some(500), None, Some(100), Some(400), Some(200), None, Some(300)]);
        office.join(7, 2, &[Some(250); 4]);
        // Each is a session of its own.
        office.join(7, 0, &[Some(0); 6]);
        // All but 19 have rested for 99 ms.
        office.join(8, 3, &[Some(901), Some(150), Some(901), Some(901), Some(901), Some(901)]);
        assert_eq!(office.end(None, 1_000), [3, 19, 5, 7], "four of session 1 stay");
        assert_eq!(office.book.by_user[&7], 14);
        assert_eq!(office.end(None, 1_000), [0; 0]);
    }

    #[test]
    fn searches_among_one_user_and_not_again_at_once_where_none_was_found() {
        let mut office = Office::default();
        office.join(7, 1, &[Some(0); 6]);
        office.join(8, 2, &[Some(950); 6]);
        assert_eq!(office.end(Some(8), 1_000), [0; 0], "none is idle");
        office.join(8, 3, &[Some(0); 5]);
        assert_eq!(office.end(Some(8), 1_019), [0; 0], "it has just been searched");
        assert_eq!(office.end(Some(7), 1_019), [1, 2], "another user has not");
        assert_eq!(office.end(Some(8), 1_020), [13]);
    }

    #[test]
    fn frees_some_places_at_once() {
        let mut office = Office::default();
        office.join(7, 1, &[Some(0); 4 + ENDED_AT_ONCE + 8]);
        assert_eq!(office.end(None, 100).len(), ENDED_AT_ONCE);
        assert_eq!(office.end(None, 100).len(), 8);
    }

    #[test]
    fn says_goodbye_and_reads_no_more() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = Arc::new(ours);
        say_goodbye(&[Arc::clone(&ours)]);
        assert_eq!((&*ours).read(&mut [0; 8]).unwrap(), 0, "the end, though the peer has not ended");
        drop(ours);
        let mut said = Vec::new();
        theirs.read_to_end(&mut said).unwrap();
        assert!(said.ends_with(b"idle"), "{said:?}");
    }
}
