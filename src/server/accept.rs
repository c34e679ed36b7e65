//! Lets connections in and deals them to the decision threads, round robin, users in rotation.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Shared;
use super::connections::{Connections, Permit, Refusal};
use super::decision_thread::DecisionThread;
use super::entrance::Entrance;
use super::listener::{BACKLOG, Listener};
use super::word::Word;
use crate::clock::Timestamp;
use crate::protocol::{Code, Reply, encode_reply};

/// Accepts until shut down. No error of one connection, nor a lack of descriptors, ends it.
pub(super) async fn run(
    listener: &Listener,
    shared: &Arc<Shared>,
    threads: &[DecisionThread],
    shutdown: &CancellationToken,
) -> io::Result<()> {
    let watched = listener.watch()?;
    let mut next_thread = threads.iter().cycle();
    let mut entrance = Entrance::new();
    let mut shortage = Shortage::default();
    let mut refused = Refused::default();
    while !shutdown.is_cancelled() {
        let first = if entrance.is_empty() {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                accepted = accept(&watched) => Some(accepted),
            }
        } else {
            tokio::task::yield_now().await;
            None
        };
        let accepted = accept_some(first, listener, |socket, user| {
            let socket = Arc::new(socket);
            if let Some(permit) = admit(shared, &socket, user, &mut refused) {
                entrance.push(user, (socket, permit));
            }
        });
        for thread in next_thread.by_ref().take(LET_IN_AT_ONCE) {
            let Some((socket, permit)) = entrance.pop() else { break };
            thread.take(socket, permit);
        }
        match accepted {
            Ok(()) => shortage.pause = None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => shortage.pause = None,
            // Those who have a place are let in first.
            Err(error) if is_shortage(&error) && !entrance.is_empty() => {}
            Err(error) if is_shortage(&error) => {
                // Who is here is served meanwhile; who comes waits in the backlog.
                let pause = shortage.note(&error, shared.clock.now().at);
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
            }
            Err(error) => debug!(%error, "a connection ended before it was let in"),
        }
    }
    // What they sent is answered, too.
    for thread in next_thread {
        let Some((socket, permit)) = entrance.pop() else { break };
        thread.take(socket, permit);
    }
    Ok(())
}

/// Accepts some connections without waiting; `first` was waited for.
fn accept_some(
    first: Option<io::Result<UnixStream>>,
    listener: &Listener,
    mut accepted: impl FnMut(UnixStream, u32),
) -> io::Result<()> {
    let others = std::iter::repeat_with(|| listener.accept_waiting());
    for socket in first.into_iter().chain(others).take(ACCEPTED_AT_ONCE) {
        let socket = socket?;
        let user = user_of(&socket)?;
        accepted(socket, user);
    }
    Ok(())
}

async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    let (socket, _) = listener.accept().await?;
    socket.into_std()
}

/// Lets in who has connected and could not be let in before the end began: what they sent is answered, too.
pub(super) fn let_in_who_waits(listener: &Listener, shared: &Arc<Shared>, threads: &[DecisionThread]) {
    let mut refused = Refused::default();
    // No more than can wait at once: at a path that stays, others come meanwhile, and wait for the next daemon.
    for thread in threads.iter().cycle().take(usize::from(BACKLOG)) {
        match listener.accept_waiting().and_then(|socket| Ok((user_of(&socket)?, socket))) {
            Ok((user, socket)) => {
                let socket = Arc::new(socket);
                if let Some(permit) = admit(shared, &socket, user, &mut refused) {
                    thread.take(socket, permit);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_shortage(&error) => return,
            Err(error) => debug!(%error, "a connection ended before it was let in"),
        }
    }
}

fn user_of(socket: &UnixStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Admits a connection, or tells its peer that there is no place.
fn admit(shared: &Arc<Shared>, socket: &Arc<UnixStream>, user: u32, refused: &mut Refused) -> Option<Permit> {
    let admitted = Connections::admit(shared, socket, user);
    if let Err(refusal) = &admitted {
        shared.telemetry.not_let_in(*refusal);
    }
    let (word, message) = match admitted {
        Ok(permit) => return Some(permit),
        Err(Refusal::Draining) => return None,
        Err(Refusal::Full) => {
            (&mut refused.full, "there are as many connections as `connections.max` allows")
        }
        Err(Refusal::FullForUser) => {
            (&mut refused.full_for_user, "this user has as many connections as `connections.per_user` allows")
        }
    };
    if let Some(refused) = word.is_due(shared.clock.now().at) {
        warn!(user, refused, "{message}: more are refused");
    }
    let mut reply = Vec::new();
    encode_reply(&mut reply, &Reply::Error { id: None, code: Code::Busy, message });
    // A fresh socket has room for it; where it has not, the end of the connection says as much.
    let _ = (&**socket).write_all(&reply);
    None
}

/// The process or the machine has run out of something that a connection needs.
fn is_shortage(error: &io::Error) -> bool {
    let shortages = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::ENOSPC];
    error.raw_os_error().is_some_and(|code| shortages.contains(&code))
}

/// Pauses that grow while a shortage lasts.
#[derive(Debug, Default)]
struct Shortage {
    pause: Option<Duration>,
    word: Word,
}

impl Shortage {
    fn note(&mut self, error: &io::Error, now: Timestamp) -> Duration {
        if self.word.is_due(now).is_some() {
            warn!(%error, "no connection can be let in: raise the limit of open files (LimitNOFILE=, ulimit -n)");
        }
        let pause = self.pause.map_or(PAUSE_MIN, |pause| (pause * 2).min(PAUSE_MAX));
        self.pause = Some(pause);
        pause
    }
}

/// Those who were not let in, by reason.
#[derive(Debug, Default)]
struct Refused {
    full: Word,
    full_for_user: Word,
}

/// Between these the thread gives way to housekeeping, and to users who come later.
const ACCEPTED_AT_ONCE: usize = 64;

/// Fewer than are accepted, so that who comes late is in time for the next deal.
const LET_IN_AT_ONCE: usize = 16;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
