//! Watching a socket for one direction only.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a socket for the readiness named and no other.
///
/// tokio's own `UnixStream` always watches both directions: each read of a reply by the peer then wakes the daemon
/// ahead of the next request, which costs a third of a round trip on one CPU.
///
/// # Errors
/// What the kernel says to adding one more descriptor to the runtime's epoll set.
pub fn register(stream: Arc<UnixStream>, interest: Interest) -> io::Result<AsyncFd<Arc<UnixStream>>> {
    // SAFETY: `register_with_interest` asks that the descriptor stay open, and the same, for as long as the
    // `AsyncFd` lives. An `Arc<UnixStream>` owns a share of its descriptor: it is closed when the last `Arc` drops,
    // the `AsyncFd` holds one until it has deregistered, and no safe call replaces a `UnixStream`'s descriptor
    // behind a shared reference.
    unsafe { AsyncFd::register_with_interest(stream, interest) }.map_err(Into::into)
}
