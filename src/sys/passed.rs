//! Descriptors passed by a service manager (socket activation). None is opened or changed here.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct PassedDescriptor {
    pub(crate) descriptor: OwnedFd,
    /// Its name in `LISTEN_FDNAMES`; `unknown` if it has none.
    pub(crate) name: String,
}

/// Takes the descriptors that a service manager passed to this process, by `LISTEN_FDS`, `LISTEN_PID` and
/// `LISTEN_FDNAMES` (`sd_listen_fds_with_names(3)`). Call it before any other descriptor is opened. A second call
/// returns none. Fails if the variables contradict each other, or name a descriptor that is not open.
pub(crate) fn take_passed_descriptors() -> io::Result<Vec<PassedDescriptor>> {
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let claimed = std::env::var("LISTEN_FDS").ok().and_then(|count| count.parse::<u32>().ok());
    if claimed > Some(DESCRIPTORS_MAX) {
        return Err(io::Error::other(format!("LISTEN_FDS says more than {DESCRIPTORS_MAX}")));
    }
    let passed = sd_notify::listen_fds_with_names()?;
    Ok(passed
        .map(|(number, name)| {
            // SAFETY: the descriptor is open, for the crate has just set its close-on-exec flag without an
            // error, and `LISTEN_PID` assigns it to this very process. No other value owns the number: it was
            // open before the process began, and `TAKEN` ensures that this function returns each one once in
            // the life of the process.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            PassedDescriptor { descriptor, name }
        })
        .collect())
}

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The daemon uses one; a larger number than this is a mistake.
const DESCRIPTORS_MAX: u32 = 16;
