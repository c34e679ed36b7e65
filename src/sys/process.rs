//! The process at the other end of a socket: its number, and a descriptor of it. And descriptors that a service manager passed to
//! this process (socket activation). No process is signalled.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, PidfdFlags};

/// Opens a descriptor of a process that becomes readable when the process has exited. It need not be a child.
///
/// The number may belong to another process by now.
fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Opens a descriptor of the process that connected to, or made, the other end of a socket.
///
/// SO_PEERPIDFD identifies the process exactly. On kernels before 6.5, which lack it, the process is looked up by
/// number, which another process may have taken if the peer exited in between. Fails if the peer has exited, is in another
/// PID namespace (before 6.5), or no descriptor is left.
pub(crate) fn peer_pidfd(socket: &UnixStream) -> io::Result<OwnedFd> {
    // SAFETY: any bytes are a valid `c_int`.
    match unsafe { option::<libc::c_int>(socket, SO_PEERPIDFD) } {
        // SAFETY: the kernel has just made this descriptor for the caller; no other value owns its number.
        Ok(descriptor) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => match peer_pid(socket)? {
            Some(pid) => pidfd_open(pid),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Returns the number of the process that connected to, or made, the other end of a socket; `None` if it is in another
/// PID namespace, such as a container's.
pub(crate) fn peer_pid(socket: &UnixStream) -> io::Result<Option<u32>> {
    // SAFETY: three integers; any bytes are a valid `ucred`.
    let peer: libc::ucred = unsafe { option(socket, libc::SO_PEERCRED) }?;
    Ok(u32::try_from(peer.pid).ok().filter(|pid| *pid > 0))
}

/// Reads one option of a socket.
///
/// # Safety
/// Any bytes, zeroes too, are a valid `T`.
unsafe fn option<T>(socket: &UnixStream, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut bytes = libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default();
    // SAFETY: `value` is writable for `bytes` bytes, the kernel writes no more than that and keeps neither pointer,
    // both of which outlive the call; the descriptor is open as long as `socket` is borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast::<libc::c_void>(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed, then written by the kernel; the caller guarantees that every such value is valid.
    Ok(unsafe { value.assume_init() })
}

/// From asm-generic/socket.h since Linux 6.5: x86-64, arm64 and all architectures that use that header unchanged.
const SO_PEERPIDFD: libc::c_int = 77;

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
