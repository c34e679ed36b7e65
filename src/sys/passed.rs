//! Sockets that whoever started this process has opened for it. None is made or changed here.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A descriptor that was passed, and its name.
#[derive(Debug)]
pub struct Passed {
    /// The descriptor, closed when it drops.
    pub descriptor: OwnedFd,
    /// What it is called by who passed it; `unknown` where it is not called anything.
    pub name: String,
}

/// The descriptors that a service manager has opened for this process, as `sd_listen_fds_with_names(3)` has it: of
/// `LISTEN_FDS`, `LISTEN_PID` and `LISTEN_FDNAMES`. To be called before anything else is opened; a second call finds
/// none.
///
/// # Errors
/// The variables contradict each other, or name a descriptor that is not open.
pub fn passed_descriptors() -> io::Result<Vec<Passed>> {
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
            // SAFETY: the descriptor is open, for the crate has just set its close-on-exec flag without an error, and
            // `LISTEN_PID` says that it was passed to this very process. Nobody else in it owns the number: it was open
            // before the process began, and this function hands out each one once in the life of the process, which
            // `TAKEN` sees to.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            Passed { descriptor, name }
        })
        .collect())
}

/// Whether they have been handed out.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// There is use for one; a number beyond this is a mistake.
const DESCRIPTORS_MAX: u32 = 16;
