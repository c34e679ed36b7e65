//! Connections of the daemon's own adapters: one end of a socket pair, the other end served like an accepted connection.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc::WeakUnboundedSender;

use super::ServerState;
use super::accept::admit;
use super::decision_thread::{Assignment, DecisionThread};
use super::memory_charge::AdapterMemory;
use crate::terms::Mode;

/// Connects adapters to the decision threads. It keeps no decision thread running.
#[derive(Debug)]
pub struct Connector {
    shared: Arc<ServerState>,
    threads: Vec<WeakUnboundedSender<Assignment>>,
    next: AtomicUsize,
}

impl Connector {
    pub(super) fn new(shared: &Arc<ServerState>, threads: &[DecisionThread]) -> Connector {
        Connector {
            shared: Arc::clone(shared),
            threads: threads.iter().map(DecisionThread::assignments).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// Returns the mode of the daemon, the strictest of any rule; `None` if the domain is closed to the user.
    pub fn mode(&self, domain: &str, user: u32) -> Option<Mode> {
        self.shared.options.access.is_open(domain, user).then(|| self.shared.engine.mode())
    }

    /// Counts the memory of a connection of this user to an adapter.
    #[must_use]
    pub fn count_memory(&self, user: u32) -> AdapterMemory {
        AdapterMemory::open(self.shared.engine.account(user))
    }

    /// Connects as this user, within the limits of `connections`. As on the socket, a refusal is an ERROR to read, and a
    /// drain the end of the stream.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn connect(&self, user: u32) -> io::Result<UnixStream> {
        let (own, served) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        served.set_nonblocking(true)?;
        let served = Arc::new(served);
        if let Some(permit) = admit(&self.shared, &served, user) {
            let number = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len().max(1);
            let thread = self.threads.get(number).and_then(WeakUnboundedSender::upgrade);
            // Without its thread, as during the drain, the connection is closed here.
            let _ = thread.map(|thread| thread.send((served, permit)));
        }
        Ok(own)
    }
}
