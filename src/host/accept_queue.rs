//! How many connections wait to be accepted at one port or Unix socket. Those that the kernel has not yet greeted,
//! and those it dropped because the queue was full, are not among them.

use std::io;

use super::Listen;
use super::netlink::{
    Family, UnixId, ask_tcp_listeners, ask_unix_listeners, ask_unix_queue, tcp_queue, unix_listener,
};
use super::sock_diag::{Answered, SockDiag};
use super::unreadable::Unreadable;

/// The accept queue of one application.
#[derive(Debug)]
pub(super) struct AcceptQueue {
    listen: Listen,
    /// The Unix socket, once it was found, and the file that it was found by.
    found: Option<(UnixId, File)>,
}

/// The device and inode of a path.
type File = (u64, u64);

impl AcceptQueue {
    pub(super) fn new(listen: Listen) -> AcceptQueue {
        AcceptQueue { listen, found: None }
    }

    /// Connections that wait now.
    pub(super) fn read(&mut self, kernel: &mut SockDiag) -> Result<u32, Unreadable> {
        match &self.listen {
            Listen::Port(port) => waiting_at_port(*port, kernel),
            Listen::Path(path) => waiting_at_path(path, &mut self.found, kernel),
        }
    }
}

/// The sum over every listener on a port: processes that listen apart (SO_REUSEPORT) have a queue each.
fn waiting_at_port(port: u16, kernel: &mut SockDiag) -> Result<u32, Unreadable> {
    let mut waiting: Option<u32> = None;
    for family in [Family::V4, Family::V6] {
        let ask = |request: &mut Vec<u8>, sequence| ask_tcp_listeners(request, family, port, sequence);
        let asked = kernel.ask_all(ask, |socket| {
            if let Some(queue) = tcp_queue(socket, port) {
                waiting = Some(waiting.unwrap_or_default().saturating_add(queue.waiting));
            }
        });
        asked.map_err(|error| Unreadable::sock_diag(&error))?;
    }
    waiting.ok_or(Unreadable::NoTcpListener { port })
}

/// Looked for among all Unix sockets once, then asked for by its number, until that or the file is another.
fn waiting_at_path(
    path: &str,
    found: &mut Option<(UnixId, File)>,
    kernel: &mut SockDiag,
) -> Result<u32, Unreadable> {
    let file = file_of(path)?;
    if let Some((socket, _)) = found.filter(|(_, by)| *by == file)
        && let Some(waiting) = waiting_at_socket(socket, kernel)?
    {
        return Ok(waiting);
    }
    *found = None;
    let socket = find(path, file, kernel)?;
    *found = Some((socket, file));
    // Gone in between: the next reading finds whoever took its place.
    waiting_at_socket(socket, kernel)?.ok_or_else(|| Unreadable::NoUnixListener { path: path.into() })
}

fn waiting_at_socket(socket: UnixId, kernel: &mut SockDiag) -> Result<Option<u32>, Unreadable> {
    let mut waiting = None;
    let ask = |request: &mut Vec<u8>, sequence| ask_unix_queue(request, socket, sequence);
    let answered = kernel.ask_one(ask, |body| waiting = unix_listener(body).and_then(|found| found.queue));
    match answered.map_err(|error| Unreadable::sock_diag(&error))? {
        Answered::Whole => Ok(waiting.map(|queue| queue.waiting)),
        Answered::NoSuchSocket => Ok(None),
    }
}

fn file_of(path: &str) -> Result<File, Unreadable> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok((stat.st_dev, stat.st_ino)),
        Err(rustix::io::Errno::NOENT) => Err(Unreadable::NoSocketFile { path: path.into() }),
        Err(error) => Err(Unreadable::file(path.as_ref(), &io::Error::from(error))),
    }
}

/// The listener of a path. By the file, since an application may have bound to another way of writing the path and
/// one that was replaced may listen on; by the name where the file system has numbers of its own (overlayfs). Of
/// several by that name, the latest made.
fn find(path: &str, file: File, kernel: &mut SockDiag) -> Result<UnixId, Unreadable> {
    let (mut by_file, mut by_name) = (None, None);
    let asked = kernel.ask_all(ask_unix_listeners, |body| {
        let Some(listener) = unix_listener(body) else { return };
        if listener.file == Some(as_told_by_kernel(file)) {
            by_file = Some(listener.id);
        }
        if listener.name == path.as_bytes()
            && by_name.is_none_or(|other: UnixId| other.inode < listener.id.inode)
        {
            by_name = Some(listener.id);
        }
    });
    asked.map_err(|error| Unreadable::sock_diag(&error))?;
    by_file.or(by_name).ok_or_else(|| Unreadable::NoUnixListener { path: path.into() })
}

/// The kernel's own numbering of a file: the low half of the inode, and 12 bits of major over 20 bits of minor.
fn as_told_by_kernel((device, inode): (u64, u64)) -> (u32, u32) {
    let device = (rustix::fs::major(device) << 20) | (rustix::fs::minor(device) & 0x000f_ffff);
    (u32::try_from(inode & u64::from(u32::MAX)).unwrap_or(u32::MAX), device)
}
