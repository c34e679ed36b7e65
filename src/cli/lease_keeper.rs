//! Renews a lease while a command runs, over a new connection after a failure, and releases it at the end.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::client::{Client, ClientFailure, heard};
use crate::daemon::log;
use crate::protocol::{DescriptorList, HelloFrame, RequestFrame, WireReply, WorkOutcome};
use crate::sys;

/// A session of this process over successive connections.
#[derive(Debug)]
pub(super) struct KeeperSession {
    socket: PathBuf,
    patience: Duration,
    pool: String,
    session: [u8; 16],
    connection: u64,
    client: Option<Client>,
}

impl KeeperSession {
    /// Makes a session; the first request connects it. Fails if the kernel has no random bytes for its id.
    pub(super) fn new(socket: PathBuf, patience: Duration, pool: &str) -> io::Result<KeeperSession> {
        let session = sys::random_bytes()?;
        Ok(KeeperSession { socket, patience, pool: pool.to_owned(), session, connection: 0, client: None })
    }

    /// Sends a request. A connection that failed is not used again.
    pub(super) fn ask<'r, T>(
        &mut self,
        request: impl FnOnce(u64) -> RequestFrame<'r>,
        descriptors: &DescriptorList<'_>,
        look: impl FnOnce(&WireReply<'_>) -> T,
    ) -> Result<T, ClientFailure> {
        let client = self.client()?;
        let request = request(client.next_id());
        let answered = client.ask(&request, descriptors, look);
        if answered.is_err() {
            self.client = None;
        }
        answered
    }

    /// Returns the connection, and connects if there is none.
    fn client(&mut self) -> Result<&mut Client, ClientFailure> {
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                self.connection += 1;
                let hello = HelloFrame {
                    session: Some(self.session),
                    pid: Some(std::process::id()),
                    pool: &self.pool,
                    connection: self.connection,
                    ..HelloFrame::new(0)
                };
                Client::connect_as(&self.socket, self.patience, hello)?
            }
        };
        Ok(self.client.insert(client))
    }

    /// Sends a request that returns DONE. Returns whether it was done.
    fn done(&mut self, request: impl Fn(u64) -> RequestFrame<'static>) -> Result<bool, ClientFailure> {
        let ask = || {
            self.ask(&request, &DescriptorList::new(), |reply| match reply {
                WireReply::Done { ok, .. } => Ok(*ok),
                WireReply::Error { code, message, .. } => {
                    Err(ClientFailure::Refused { code: *code, message: (*message).to_owned() })
                }
                _ => Ok(false),
            })
        };
        let done = heard(ask)?;
        if done.is_err() {
            // After an error reply, the daemon may close the connection.
            self.client = None;
        }
        done
    }
}

#[derive(Debug)]
pub(super) struct LeaseKeeper {
    end: Sender<WorkOutcome>,
    thread: JoinHandle<()>,
}

impl LeaseKeeper {
    pub(super) fn start(holder: KeeperSession, lease: u64) -> io::Result<LeaseKeeper> {
        let (end, ended) = channel();
        let thread =
            std::thread::Builder::new().name("lease".into()).spawn(move || keep(holder, lease, &ended))?;
        Ok(LeaseKeeper { end, thread })
    }

    /// Releases the lease and waits until the daemon has replied or failed.
    pub(super) fn release(self, outcome: WorkOutcome) {
        // The thread may have exited: then there is nothing to release.
        let _ = self.end.send(outcome);
        let _ = self.thread.join();
    }
}

fn keep(mut holder: KeeperSession, lease: u64, ended: &Receiver<WorkOutcome>) {
    let mut failing = false;
    loop {
        match ended.recv_timeout(RENEW_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(outcome) => {
                let release = move |id| RequestFrame::Release { id: Some(id), lease, outcome };
                // After a second failure, the lease ends with this process.
                if holder.done(release).is_err() {
                    let _ = holder.done(release);
                }
                return;
            }
        }
        match holder.done(move |id| RequestFrame::Renew { id, lease }) {
            Ok(true) => failing = false,
            Ok(false) => {
                log::plainly("tidegate: the daemon knows the lease no more; the command goes on without it");
                return;
            }
            Err(failure) => {
                if !std::mem::replace(&mut failing, true) {
                    log::plainly(&format!(
                        "tidegate: the lease cannot be renewed, the command goes on: {failure}"
                    ));
                }
            }
        }
    }
}

/// A third of the shortest `expires` of a rule, 1 s: a decision does not contain the duration of its lease.
const RENEW_EVERY: Duration = Duration::from_millis(333);
