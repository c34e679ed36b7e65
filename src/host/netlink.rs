//! Questions about listening sockets and the kernel's answers, as bytes: linux/netlink.h, linux/inet_diag.h,
//! linux/unix_diag.h. It knows bytes, not sockets.

/// IPv4 or IPv6. A listener on both is an IPv6 one and stands there alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// AF_INET.
    V4,
    /// AF_INET6.
    V6,
}

/// A Unix socket as the kernel tells it apart from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixId {
    /// The inode of the socket itself, which is not that of its path.
    pub inode: u32,
    /// Never the same for two sockets, even if the inode comes again.
    pub cookie: [u8; 8],
}

/// Writes the question for all TCP listeners on a port, by one family. The kernel picks them out.
pub fn ask_tcp_listeners(request: &mut Vec<u8>, family: Family, port: u16, sequence: u32) {
    header(request, HEADER_BYTES + 56, NLM_F_REQUEST | NLM_F_DUMP, sequence);
    request.extend([if family == Family::V4 { AF_INET } else { AF_INET6 }, IPPROTO_TCP, 0, 0]);
    request.extend(LISTENING.to_ne_bytes());
    request.extend(port.to_be_bytes());
    // The other port, two addresses, an interface: any. The cookie: any.
    request.extend([0; 2 + 16 + 16 + 4]);
    request.extend(ANY_COOKIE);
}

/// Writes the question for all listening Unix sockets, with their names.
pub fn ask_unix_listeners(request: &mut Vec<u8>, sequence: u32) {
    let any = UnixId { inode: 0, cookie: ANY_COOKIE };
    ask_unix(request, NLM_F_REQUEST | NLM_F_DUMP, any, SHOW_NAME | SHOW_VFS, sequence);
}

/// Writes the question for the queue of one Unix socket.
pub fn ask_unix_queue(request: &mut Vec<u8>, socket: UnixId, sequence: u32) {
    ask_unix(request, NLM_F_REQUEST, socket, SHOW_RQLEN, sequence);
}

fn ask_unix(request: &mut Vec<u8>, flags: u16, socket: UnixId, show: u32, sequence: u32) {
    header(request, HEADER_BYTES + 24, flags, sequence);
    request.extend([AF_UNIX, 0, 0, 0]);
    request.extend(LISTENING.to_ne_bytes());
    request.extend(socket.inode.to_ne_bytes());
    request.extend(show.to_ne_bytes());
    request.extend(socket.cookie);
}

fn header(request: &mut Vec<u8>, bytes: u32, flags: u16, sequence: u32) {
    request.clear();
    request.extend(bytes.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend(sequence.to_ne_bytes());
    // To the kernel, which has number 0.
    request.extend([0; 4]);
}

/// One message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'b> {
    /// A socket, as its family describes it.
    Socket(&'b [u8]),
    /// Nothing more comes.
    Done,
    /// The question was refused, with this number of an error; 0: it was taken.
    Refused(i32),
    /// Something that was not asked for.
    Other,
}

/// The messages of one datagram that answer the question of this sequence number, until one is cut short.
pub fn messages(datagram: &[u8], sequence: u32) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    let all = std::iter::from_fn(move || {
        let bytes = usize::try_from(word(rest, 0)?).ok()?;
        let message = rest.get(..bytes).filter(|message| message.len() >= HEADER_BYTES as usize)?;
        rest = rest.get(aligned(bytes)..).unwrap_or_default();
        Some(message)
    });
    all.filter(move |message| word(message, 8) == Some(sequence)).map(|message| {
        let body = message.get(HEADER_BYTES as usize..).unwrap_or_default();
        match half(message, 4) {
            Some(SOCK_DIAG_BY_FAMILY) => Message::Socket(body),
            // The kernel counts errors downwards. A dump that failed says so in its last message.
            Some(NLMSG_DONE) => match word(body, 0).map_or(0, u32::cast_signed) {
                error if error < 0 => Message::Refused(error.saturating_neg()),
                _ => Message::Done,
            },
            Some(NLMSG_ERROR) => Message::Refused(word(body, 0).map_or(0, u32::cast_signed).saturating_neg()),
            _ => Message::Other,
        }
    })
}

/// What waits at a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Connections that wait to be accepted.
    pub waiting: u32,
    /// How many may, less one.
    pub backlog: u32,
}

/// The queue of a TCP socket that listens on this port: `inet_diag_msg`. None: it is another's, or cut short.
#[must_use]
pub fn tcp_queue(body: &[u8], port: u16) -> Option<Queue> {
    let its_port = u16::from_be_bytes(*body.get(4..)?.first_chunk()?);
    let listens = body.get(1) == Some(&STATE_LISTEN) && its_port == port;
    let queue = Queue { waiting: word(body, 56)?, backlog: word(body, 60)? };
    listens.then_some(queue)
}

/// A listening Unix socket: `unix_diag_msg` and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnixListener<'b> {
    /// Which it is.
    pub id: UnixId,
    /// What it was bound to, as the application wrote it: a path, or a zero byte and a name. Empty: nothing.
    pub name: &'b [u8],
    /// Inode and device (of the kernel's making) of the path that it was bound to.
    pub file: Option<(u32, u32)>,
    /// What waits, when it was asked for.
    pub queue: Option<Queue>,
}

/// Reads a listening Unix socket. None: it does not listen, or is cut short.
#[must_use]
pub fn unix_listener(body: &[u8]) -> Option<UnixListener<'_>> {
    let id = UnixId { inode: word(body, 4)?, cookie: *body.get(8..)?.first_chunk()? };
    let mut listener = UnixListener { id, name: &[], file: None, queue: None };
    let mut rest = body.get(16..)?;
    while let (Some(bytes), Some(kind)) = (half(rest, 0), half(rest, 2)) {
        let value = rest.get(4..usize::from(bytes))?;
        let pair = || Some((word(value, 0)?, word(value, 4)?));
        match kind {
            // A path may end with a zero byte, a name may begin with one.
            UNIX_DIAG_NAME => listener.name = value.strip_suffix(&[0]).unwrap_or(value),
            UNIX_DIAG_VFS => listener.file = pair(),
            UNIX_DIAG_RQLEN => {
                listener.queue = pair().map(|(waiting, backlog)| Queue { waiting, backlog });
            }
            _ => {}
        }
        rest = rest.get(aligned(usize::from(bytes))..).unwrap_or_default();
    }
    (body.get(2) == Some(&STATE_LISTEN)).then_some(listener)
}

/// Messages and attributes begin at multiples of four.
const fn aligned(bytes: usize) -> usize {
    bytes.saturating_add(3) & !3
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
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
/// A set of states with that one in it.
const LISTENING: u32 = 1 << STATE_LISTEN;
const ANY_COOKIE: [u8; 8] = [0xff; 8];

const SHOW_NAME: u32 = 0x1;
const SHOW_VFS: u32 = 0x2;
const SHOW_RQLEN: u32 = 0x10;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_VFS: u16 = 1;
const UNIX_DIAG_RQLEN: u16 = 4;
