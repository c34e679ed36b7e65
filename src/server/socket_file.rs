//! The socket file at its path while the daemon runs: noticed when it is removed or replaced, and made again, so that new
//! processes are limited too.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::UnixListener;
use tracing::{info, warn};

use super::ServerState;
use super::accept::admit_backlog;
use super::decision_thread::DecisionThread;
use super::listener::Listener;

/// The identity of the socket file, and why it cannot be made again, for operators.
#[derive(Debug, Default)]
pub struct SocketFile {
    identity: Mutex<Option<(u64, u64)>>,
    obstacle: Mutex<Option<String>>,
}

impl SocketFile {
    /// Returns device and inode of the socket; `None` if the path of a passed socket did not exist.
    pub fn identity(&self) -> Option<(u64, u64)> {
        *self.identity.lock()
    }

    /// Says why new processes cannot connect, if the file is not at its path.
    pub fn obstacle(&self) -> Option<String> {
        let obstacle = self.obstacle.lock();
        let text = |why: &String| {
            format!(
                "its socket file was removed or replaced, so no new process can connect: {why}; then it is made again"
            )
        };
        obstacle.as_ref().map(text)
    }

    pub(super) fn set_identity(&self, identity: Option<(u64, u64)>) {
        *self.identity.lock() = identity;
    }
}

/// Makes the socket file again if it is not at its path. Returns the new socket to accept from.
pub(super) fn restore(
    listener: &mut Listener,
    shared: &Arc<ServerState>,
    threads: &[DecisionThread],
) -> Option<UnixListener> {
    let file = Arc::clone(listener.file());
    if listener.is_at_path() {
        if file.obstacle.lock().take().is_some() {
            info!(path = %listener.path().display(), "the socket file is at its path again");
        }
        return None;
    }
    // No path leads to them any more.
    admit_backlog(listener, shared, threads);
    match listener.bind_again() {
        Ok(socket) => {
            *file.obstacle.lock() = None;
            let path = listener.path().display();
            warn!(%path, "the socket file was removed or replaced: it is made again, and new processes can connect");
            Some(socket)
        }
        Err(error) => {
            let reason = error.to_string().replace('\n', "; ");
            let mut obstacle = file.obstacle.lock();
            if obstacle.as_ref() != Some(&reason) {
                warn!(
                    reason,
                    "the socket file was removed or replaced, and NO NEW PROCESS CAN CONNECT; tried again"
                );
                *obstacle = Some(reason);
            }
            None
        }
    }
}

/// New processes run without limits for no longer than this, at the cost of one `lstat` each time.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(1);
