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
