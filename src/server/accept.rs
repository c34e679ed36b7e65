//! Accepts connections and assigns them to the decision threads in round robin, by user in rotation.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::ServerState;
use super::connections::{ConnectionPermit, ConnectionRefusal, ConnectionRegistry};
use super::decision_thread::DecisionThread;
use super::listener::{self, BACKLOG, Listener};
use crate::protocol::{Code, WireReply, encode_reply};

/// Accepts until shutdown. Errors of single connections and a lack of descriptors do not end it.
pub(super) async fn run(
    listener: &mut Listener,
    shared: &Arc<ServerState>,
    threads: &[DecisionThread],
    shutdown: &CancellationToken,
) -> io::Result<()> {
    let mut watched = listener.watch()?;
    let mut next_thread = threads.iter().cycle();
    let mut queue = AcceptedQueue::new();
    let mut last_pause = None;
    while !shutdown.is_cancelled() {
        let first = if queue.is_empty() {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                accepted = accept(&watched) => Some(accepted),
                () = shared.file_check.notified() => {
                    watched = listener::restore(listener, shared, threads).unwrap_or(watched);
                    continue;
                }
            }
        } else {
            tokio::task::yield_now().await;
            None
        };
        let accepted = accept_some(first, listener, |socket, user| {
            let socket = Arc::new(socket);
            if let Some(permit) = admit(shared, &socket, user) {
                queue.push(user, (socket, permit));
            }
        });
        for thread in next_thread.by_ref().take(ASSIGNED_PER_ROUND) {
            let Some((socket, permit)) = queue.pop() else { break };
            thread.assign(socket, permit);
        }
        match accepted {
            Ok(()) => last_pause = None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => last_pause = None,
            // Connections with a permit are assigned before the pause.
            Err(error) if is_shortage(&error) && !queue.is_empty() => {}
            Err(error) if is_shortage(&error) => {
                // Open connections are served meanwhile; new ones wait in the backlog.
                warn!(%error, "no connection can be let in: raise the limit of open files (LimitNOFILE=, ulimit -n)");
                let pause = last_pause.map_or(PAUSE_MIN, |pause: Duration| (pause * 2).min(PAUSE_MAX));
                last_pause = Some(pause);
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
            }
            Err(error) => debug!(%error, "a connection closed before it was admitted"),
        }
    }
    // The requests that admitted connections sent are answered during the drain.
    for thread in next_thread {
        let Some((socket, permit)) = queue.pop() else { break };
        thread.assign(socket, permit);
    }
    Ok(())
}

/// Accepts up to [`ACCEPTED_PER_ROUND`] connections without waiting, `first` included.
fn accept_some(
    first: Option<io::Result<UnixStream>>,
    listener: &Listener,
    mut accepted: impl FnMut(UnixStream, u32),
) -> io::Result<()> {
    let others = std::iter::repeat_with(|| listener.try_accept());
    for socket in first.into_iter().chain(others).take(ACCEPTED_PER_ROUND) {
        let socket = socket?;
        let user = peer_uid(&socket)?;
        accepted(socket, user);
    }
    Ok(())
}

async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    let (socket, _) = listener.accept().await?;
    socket.into_std()
}

/// Admits the connections that wait in the backlog at shutdown: their requests are answered during the drain.
pub(super) fn admit_backlog(listener: &Listener, shared: &Arc<ServerState>, threads: &[DecisionThread]) {
    // At most one backlog: clients keep connecting to a passed socket, and wait for the next daemon.
    for thread in threads.iter().cycle().take(usize::from(BACKLOG)) {
        match listener.try_accept().and_then(|socket| Ok((peer_uid(&socket)?, socket))) {
            Ok((user, socket)) => {
                let socket = Arc::new(socket);
                if let Some(permit) = admit(shared, &socket, user) {
                    thread.assign(socket, permit);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_shortage(&error) => return,
            Err(error) => debug!(%error, "a connection closed before it was admitted"),
        }
    }
}

fn peer_uid(socket: &UnixStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Admits a connection, or replies to its peer that a limit is reached.
pub(super) fn admit(
    shared: &Arc<ServerState>,
    socket: &Arc<UnixStream>,
    user: u32,
) -> Option<ConnectionPermit> {
    let admitted = ConnectionRegistry::admit(shared, socket, user);
    if let Err(refusal) = &admitted {
        shared.options.telemetry.count_refused(*refusal);
    }
    let message = match admitted {
        Ok(permit) => return Some(permit),
        Err(ConnectionRefusal::Draining) => return None,
        Err(ConnectionRefusal::Full) => "there are as many connections as `connections.max` allows",
        Err(ConnectionRefusal::FullForUser) => {
            "this user has as many connections as `connections.per_user` allows"
        }
    };
    warn!(user, "{message}: more are refused");
    let mut reply = Vec::new();
    encode_reply(&mut reply, &WireReply::Error { id: None, code: Code::Busy, message });
    // A new socket has room for it. On an error the closed connection is the reply.
    let _ = (&**socket).write_all(&reply);
    None
}

/// Whether the process or the machine lacks a resource that a connection needs.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::ENOSPC];
    error.raw_os_error().is_some_and(|code| shortages.contains(&code))
}

/// Accepted connections that wait for a decision thread, taken by user in rotation: a flood of connections of one user
/// does not delay other users. Bounded by the connection limits, as each has a permit.
#[derive(Debug)]
struct AcceptedQueue<T> {
    /// The user in front is next. No list is empty.
    users: VecDeque<(u32, VecDeque<T>)>,
}

impl<T> AcceptedQueue<T> {
    fn new() -> AcceptedQueue<T> {
        AcceptedQueue { users: VecDeque::new() }
    }

    fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    fn push(&mut self, user: u32, connection: T) {
        match self.users.iter_mut().find(|(known, _)| *known == user) {
            Some((_, waiting)) => waiting.push_back(connection),
            None => self.users.push_back((user, VecDeque::from([connection]))),
        }
    }

    fn pop(&mut self) -> Option<T> {
        let (user, mut waiting) = self.users.pop_front()?;
        let next = waiting.pop_front();
        if !waiting.is_empty() {
            self.users.push_back((user, waiting));
        }
        next
    }
}

/// Connections accepted between two yields, at which housekeeping runs.
const ACCEPTED_PER_ROUND: usize = 64;

/// Connections assigned between two yields: fewer than are accepted, so that a user that connects later gets a turn
/// before the rest of a flood.
const ASSIGNED_PER_ROUND: usize = 16;

/// Pauses grow while a shortage lasts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::AcceptedQueue;

    #[test]
    fn pops_by_user_in_rotation() {
        let mut queue = AcceptedQueue::new();
        for arrived in ["a1", "a2", "a3", "b1", "c1", "c2"] {
            queue.push(u32::from(arrived.as_bytes()[0]), arrived);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert!(queue.is_empty());
    }
}
