//! Who is at the other end of a socket, and a descriptor that says when that process has ended. Nobody is signalled.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, PidfdFlags};

/// A descriptor of a process that becomes readable when it has ended, whoever is its parent.
///
/// The number may belong to another process by now: use [`peer_pidfd`] where there is a socket.
///
/// # Errors
/// There is no such process, or no descriptor is left.
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// A descriptor of the process that connected to, or made, the other end of a socket.
///
/// By SO_PEERPIDFD, which cannot be mistaken; kernels before 6.5 do not know it and are asked by number, which
/// another process may bear if the peer ended in between.
///
/// # Errors
/// The peer has ended already, is in another space of process numbers (before 6.5), or no descriptor is left.
pub fn peer_pidfd(socket: &UnixStream) -> io::Result<OwnedFd> {
    // SAFETY: any bytes are a valid `c_int`.
    match unsafe { option::<libc::c_int>(socket, SO_PEERPIDFD) } {
        // SAFETY: the kernel has just made this descriptor for the caller; nobody else knows its number.
        Ok(descriptor) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => match peer_pid(socket)? {
            Some(pid) => pidfd_open(pid),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// The number of the process that connected to, or made, the other end of a socket; none: it lives in another space
/// of process numbers, as in a container of its own.
///
/// # Errors
/// What the kernel says.
pub fn peer_pid(socket: &UnixStream) -> io::Result<Option<u32>> {
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
    // SAFETY: zeroed, then written by the kernel, and the caller answers for every such value being valid.
    Ok(unsafe { value.assume_init() })
}

/// Of asm-generic/socket.h since Linux 6.5: x86-64, arm64 and whatever else takes that page as it is.
const SO_PEERPIDFD: libc::c_int = 77;
