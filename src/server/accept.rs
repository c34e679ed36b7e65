//! Lets connections in and deals them to the decision threads, round robin.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Shared;
use super::connections::{Connections, Refusal};
use super::decision_thread::DecisionThread;
use super::listener::{BACKLOG, Listener};
use super::word::Word;
use crate::clock::Timestamp;
use crate::protocol::{Code, Reply, encode_reply};

/// Accepts until shut down. No error of one connection, nor a lack of descriptors, ends it.
pub(super) async fn run(
    listener: &UnixListener,
    shared: &Arc<Shared>,
    threads: &[DecisionThread],
    shutdown: &CancellationToken,
) {
    let mut next_thread = threads.iter().cycle();
    let mut shortage = Shortage::default();
    let mut refused = Refused::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            accepted = accept(listener) => accepted,
        };
        match accepted {
            Ok((socket, user)) => {
                shortage.pause = None;
                if let Some(thread) = next_thread.next() {
                    let_in(shared, thread, socket, user, &mut refused);
                }
            }
            Err(error) if is_shortage(&error) => {
                // Who is here is served meanwhile; who comes waits in the backlog.
                let pause = shortage.note(&error, shared.clock.now().at);
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
            }
            Err(error) => debug!(%error, "a connection ended before it was let in"),
        }
    }
}

/// Lets in who has connected and could not be let in before the end began: what they sent is answered, too.
pub(super) fn let_in_who_waits(listener: &Listener, shared: &Arc<Shared>, threads: &[DecisionThread]) {
    let mut refused = Refused::default();
    // No more than can wait at once: at a path that stays, others come meanwhile, and wait for the next daemon.
    for thread in threads.iter().cycle().take(usize::from(BACKLOG)) {
        match listener.accept_waiting().and_then(|socket| Ok((user_of(&socket)?, socket))) {
            Ok((user, socket)) => let_in(shared, thread, socket, user, &mut refused),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_shortage(&error) => return,
            Err(error) => debug!(%error, "a connection ended before it was let in"),
        }
    }
}

/// The next connection and the user at its other end.
async fn accept(listener: &UnixListener) -> io::Result<(UnixStream, u32)> {
    let (socket, _) = listener.accept().await?;
    let socket = socket.into_std()?;
    let user = user_of(&socket)?;
    Ok((socket, user))
}

fn user_of(socket: &UnixStream) -> io::Result<u32> {
    Ok(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

fn let_in(
    shared: &Arc<Shared>,
    thread: &DecisionThread,
    socket: UnixStream,
    user: u32,
    refused: &mut Refused,
) {
    let socket = Arc::new(socket);
    let admitted = Connections::admit(shared, &socket, user);
    if let Err(refusal) = &admitted {
        shared.telemetry.not_let_in(*refusal);
    }
    let (word, message) = match admitted {
        Ok(permit) => return thread.take(socket, permit),
        Err(Refusal::Draining) => return,
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
    let _ = (&*socket).write_all(&reply);
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

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
