//! Waiting for a process to end, in a runtime. Nobody is signalled.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The end of a process, to be waited for.
#[derive(Debug)]
pub struct ProcessEnd(AsyncFd<OwnedFd>);

impl ProcessEnd {
    /// Of the process that a descriptor is about: see [`pidfd_open`](super::pidfd_open). To be made in the runtime that
    /// it is waited for in.
    ///
    /// # Errors
    /// What the kernel says to adding one more descriptor to the runtime's epoll set.
    pub fn of(process: OwnedFd) -> io::Result<ProcessEnd> {
        // SAFETY: `register_with_interest` asks that the descriptor stay open, and the same, for as long as the
        // `AsyncFd` lives. It is moved in here, an `OwnedFd` closes its descriptor when it drops and not before, and
        // nothing replaces it: no reference to the `AsyncFd` leaves this file.
        let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?;
        Ok(ProcessEnd(process))
    }

    /// Waits until it has come. Cancelled, nothing is lost.
    pub async fn come(&self) {
        // An error is the end of the runtime, in which nobody waits any more.
        let _ = self.0.readable().await;
    }
}
