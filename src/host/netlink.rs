//! Encoding of sock_diag requests about listening sockets and decoding of the replies: linux/netlink.h,
//! linux/inet_diag.h, linux/unix_diag.h. It does no I/O.

/// IPv4 or IPv6. A listener on both is listed under IPv6 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// AF_INET.
    V4,
    /// AF_INET6.
    V6,
}

/// The kernel's identification of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixSocketId {
    /// The inode of the socket itself, not of its path.
    pub inode: u32,
    /// Unique, even if the inode is reused.
    pub cookie: [u8; 8],
}

/// Writes the request for all TCP listeners of one family on a port. The kernel filters them.
pub fn write_tcp_listeners_request(request: &mut Vec<u8>, family: Family, port: u16, sequence: u32) {
    write_header(request, HEADER_BYTES + 56, NLM_F_REQUEST | NLM_F_DUMP, sequence);
    request.extend([if family == Family::V4 { AF_INET } else { AF_INET6 }, IPPROTO_TCP, 0, 0]);
    request.extend(LISTENING.to_ne_bytes());
    request.extend(port.to_be_bytes());
    // Any remote port, addresses, interface and cookie.
    request.extend([0; 2 + 16 + 16 + 4]);
    request.extend(ANY_COOKIE);
}

/// Writes the request for all listening Unix sockets, with their names.
pub fn write_unix_listeners_request(request: &mut Vec<u8>, sequence: u32) {
    let any = UnixSocketId { inode: 0, cookie: ANY_COOKIE };
    write_unix_request(request, NLM_F_REQUEST | NLM_F_DUMP, any, SHOW_NAME | SHOW_VFS, sequence);
}

/// Writes the request for the queue of one Unix socket.
pub fn write_unix_queue_request(request: &mut Vec<u8>, socket: UnixSocketId, sequence: u32) {
    write_unix_request(request, NLM_F_REQUEST, socket, SHOW_RQLEN, sequence);
}

fn write_unix_request(request: &mut Vec<u8>, flags: u16, socket: UnixSocketId, show: u32, sequence: u32) {
    write_header(request, HEADER_BYTES + 24, flags, sequence);
    request.extend([AF_UNIX, 0, 0, 0]);
    request.extend(LISTENING.to_ne_bytes());
    request.extend(socket.inode.to_ne_bytes());
    request.extend(show.to_ne_bytes());
    request.extend(socket.cookie);
}

fn write_header(request: &mut Vec<u8>, bytes: u32, flags: u16, sequence: u32) {
    request.clear();
    request.extend(bytes.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend(sequence.to_ne_bytes());
    // The port number of the kernel.
    request.extend([0; 4]);
}

/// One message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiagMessage<'b> {
    /// A socket, in the structure of its family.
    Socket(&'b [u8]),
    /// The last message of a dump.
    Done,
    /// The request failed with this error number; 0 acknowledges it.
    Error(i32),
    /// Any other message.
    Other,
}

/// Iterates over the messages of a datagram that have this sequence number, until one is truncated.
pub fn parse_messages(datagram: &[u8], sequence: u32) -> impl Iterator<Item = DiagMessage<'_>> {
    let mut rest = datagram;
    let all = std::iter::from_fn(move || {
        let bytes = usize::try_from(read_u32(rest, 0)?).ok()?;
        let message = rest.get(..bytes).filter(|message| message.len() >= HEADER_BYTES as usize)?;
        rest = rest.get(aligned(bytes)..).unwrap_or_default();
        Some(message)
    });
    all.filter(move |message| read_u32(message, 8) == Some(sequence)).map(|message| {
        let body = message.get(HEADER_BYTES as usize..).unwrap_or_default();
        match read_u16(message, 4) {
            Some(SOCK_DIAG_BY_FAMILY) => DiagMessage::Socket(body),
            // Error numbers are negative. A failed dump has one in its last message.
            Some(NLMSG_DONE) => match read_u32(body, 0).map_or(0, u32::cast_signed) {
                error if error < 0 => DiagMessage::Error(error.saturating_neg()),
                _ => DiagMessage::Done,
            },
            Some(NLMSG_ERROR) => {
                DiagMessage::Error(read_u32(body, 0).map_or(0, u32::cast_signed).saturating_neg())
            }
            _ => DiagMessage::Other,
        }
    })
}

/// Reads the connections that wait to be accepted from a TCP socket that listens on this port (`inet_diag_msg`); `None` if the
/// message is about another socket or truncated.
pub fn parse_tcp_queue(body: &[u8], port: u16) -> Option<u32> {
    let its_port = u16::from_be_bytes(*body.get(4..)?.first_chunk()?);
    let listens = body.get(1) == Some(&STATE_LISTEN) && its_port == port;
    read_u32(body, 56).filter(|_| listens)
}

/// A listening Unix socket: `unix_diag_msg` and its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixListener<'b> {
    /// Its identification.
    pub id: UnixSocketId,
    /// The name it was bound to, as the application wrote it: a path, or a zero byte and an abstract name. Empty if
    /// unbound.
    pub name: &'b [u8],
    /// Inode and device of its path, in the kernel's numbering.
    pub file: Option<(u32, u32)>,
    /// The connections that wait to be accepted, if requested.
    pub waiting: Option<u32>,
}

/// Reads a listening Unix socket; `None` if it does not listen or the message is truncated.
pub fn parse_unix_listener(body: &[u8]) -> Option<UnixListener<'_>> {
    let id = UnixSocketId { inode: read_u32(body, 4)?, cookie: *body.get(8..)?.first_chunk()? };
    let mut listener = UnixListener { id, name: &[], file: None, waiting: None };
    let mut rest = body.get(16..)?;
    while let (Some(bytes), Some(kind)) = (read_u16(rest, 0), read_u16(rest, 2)) {
        let value = rest.get(4..usize::from(bytes))?;
        match kind {
            // A path may end with a zero byte; an abstract name begins with one.
            UNIX_DIAG_NAME => listener.name = value.strip_suffix(&[0]).unwrap_or(value),
            UNIX_DIAG_VFS => listener.file = read_u32(value, 0).zip(read_u32(value, 4)),
            UNIX_DIAG_RQLEN => listener.waiting = read_u32(value, 0),
            _ => {}
        }
        rest = rest.get(aligned(usize::from(bytes))..).unwrap_or_default();
    }
    (body.get(2) == Some(&STATE_LISTEN)).then_some(listener)
}

/// Rounds up to a multiple of four, at which messages and attributes begin.
const fn aligned(bytes: usize) -> usize {
    bytes.saturating_add(3) & !3
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

const HEADER_BYTES: u32 = 16;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;

const AF_UNIX: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
/// TCP_LISTEN, for Unix sockets as well.
const STATE_LISTEN: u8 = 10;
/// The set of states that contains only `STATE_LISTEN`.
const LISTENING: u32 = 1 << STATE_LISTEN;
const ANY_COOKIE: [u8; 8] = [0xff; 8];

const SHOW_NAME: u32 = 0x1;
const SHOW_VFS: u32 = 0x2;
const SHOW_RQLEN: u32 = 0x10;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_VFS: u16 = 1;
const UNIX_DIAG_RQLEN: u16 = 4;
