//! Keeps a lease while a command runs: renews it in time, over another connection when the first one fails, and releases
//! it at the end. It judges nothing and stops nothing.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::client::{Client, Failure, heard};
use crate::daemon::log;
use crate::protocol::{Descriptors, Hello, Reply, Request, WorkOutcome};
use crate::sys;

/// A session of this process, over one connection after the other.
#[derive(Debug)]
pub(super) struct Holder {
    socket: PathBuf,
    patience: Duration,
    pool: String,
    session: [u8; 16],
    /// Counts connections.
    connection: u64,
    client: Option<Client>,
}

impl Holder {
    /// A session that has yet to begin.
    ///
    /// # Errors
    /// The kernel has no randomness to name it by.
    pub(super) fn new(socket: PathBuf, patience: Duration, pool: &str) -> io::Result<Holder> {
        let session = sys::drawn()?;
        Ok(Holder { socket, patience, pool: pool.to_owned(), session, connection: 0, client: None })
    }

    /// Asks over its connection. One that failed is not used again.
    pub(super) fn ask<'r, T>(
        &mut self,
        request: impl FnOnce(u64) -> Request<'r>,
        descriptors: &Descriptors<'_>,
        look: impl FnOnce(&Reply<'_>) -> T,
    ) -> Result<T, Failure> {
        let client = self.client()?;
        let request = request(client.next_id());
        let answered = client.ask(&request, descriptors, look);
        if answered.is_err() {
            self.client = None;
        }
        answered
    }

    /// Its connection, which is made when there is none.
    fn client(&mut self) -> Result<&mut Client, Failure> {
        let client = match self.client.take() {
            Some(client) => client,
            None => {
                self.connection += 1;
                let hello = Hello {
                    session: Some(self.session),
                    pid: Some(std::process::id()),
                    pool: &self.pool,
                    connection: self.connection,
                    ..Hello::new(0)
                };
                Client::connect_as(&self.socket, self.patience, hello)?
            }
        };
        Ok(self.client.insert(client))
    }

    /// Asks for something that is done or not.
    fn done(&mut self, request: impl Fn(u64) -> Request<'static>) -> Result<bool, Failure> {
        let ask = || {
            self.ask(&request, &Descriptors::new(), |reply| match reply {
                Reply::Done { ok, .. } => Ok(*ok),
                Reply::Error { code, message, .. } => {
                    Err(Failure::Refused { code: *code, message: (*message).to_owned() })
                }
                _ => Ok(false),
            })
        };
        let done = heard(ask)?;
        if done.is_err() {
            // It was answered, and may be closed now all the same.
            self.client = None;
        }
        done
    }
}

/// A thread that keeps a lease.
#[derive(Debug)]
pub(super) struct LeaseKeeper {
    end: Sender<WorkOutcome>,
    thread: JoinHandle<()>,
}

impl LeaseKeeper {
    /// Begins to renew.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(holder: Holder, lease: u64) -> io::Result<LeaseKeeper> {
        let (end, ended) = channel();
        let thread =
            std::thread::Builder::new().name("lease".into()).spawn(move || keep(holder, lease, &ended))?;
        Ok(LeaseKeeper { end, thread })
    }

    /// The work has ended. Waits until the daemon knows, if it answers.
    pub(super) fn release(self, outcome: WorkOutcome) {
        // A thread that has ended has nothing to release.
        let _ = self.end.send(outcome);
        let _ = self.thread.join();
    }
}

fn keep(mut holder: Holder, lease: u64, ended: &Receiver<WorkOutcome>) {
    let mut failing = false;
    loop {
        match ended.recv_timeout(RENEW_EVERY) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(outcome) => {
                let release = move |id| Request::Release { id: Some(id), lease, outcome };
                // Where it fails twice, the lease ends with this process.
                if holder.done(release).is_err() {
                    let _ = holder.done(release);
                }
                return;
            }
        }
        match holder.done(move |id| Request::Renew { id, lease }) {
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

/// A third of a second: no rule's `expires` is shorter than one, and a decision does not say how long its lease lasts.
const RENEW_EVERY: Duration = Duration::from_millis(333);
