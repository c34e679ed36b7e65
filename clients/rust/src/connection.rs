//! One connection to the daemon for all requests of a client, matched by id. Any doubt closes it for good.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

use crate::client::{Client, WeakClient};
use crate::decision::{Answer, Decision, Lease};
use crate::fault::{Fault, Reason};
use crate::wire::{Elements, FRAME_BYTES_MAX, Op, Value, decode};

/// The number of a connection, and the id of a request on it.
pub(crate) type RequestKey = (u64, u64);

/// A connection. Requests are written by their callers, and replies are read by a task, or by a caller whose time is over.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) number: u64,
    /// The same socket twice: one for readiness, and one to read and write at any time.
    readiness: UnixStream,
    socket: StdStream,
    state: Mutex<ConnectionState>,
    /// Wakes the task: bytes wait, or the connection is closed.
    wake: Notify,
    /// Permits of requests in flight.
    places: Semaphore,
}

#[derive(Debug, Default)]
struct ConnectionState {
    unwritten: Vec<u8>,
    /// Bytes that were written, since the start.
    written: u64,
    received: Vec<u8>,
    waiting: BTreeMap<u64, Waiting>,
    last_id: u64,
    /// Granted requests whose RELEASE is proved by a reply to a later request than this.
    unproved: VecDeque<(u64, RequestKey)>,
    is_welcome: bool,
    is_leaving: bool,
    /// After an internal ERROR: the daemon closes, and what it read is unknown.
    is_failed: bool,
    is_closed: bool,
    /// For requests that come after the end.
    fault: Option<Fault>,
}

/// A request in flight.
#[derive(Debug)]
struct Waiting {
    op: Op,
    began: Instant,
    /// The bytes before its frame, since the start.
    start: u64,
    reply: oneshot::Sender<Answer>,
}

/// A request in flight, for its caller.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) reply: oneshot::Receiver<Answer>,
}

impl Connection {
    /// Connects, and writes HELLO. A full backlog is tried again until the deadline.
    pub(crate) async fn open(
        path: &Path,
        number: u64,
        hello: &Elements,
        deadline: Instant,
    ) -> Result<Connection, Fault> {
        let stream = loop {
            match UnixStream::connect(path).await {
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_PERIOD).await;
                }
                connected => break connected,
            }
        };
        let opened = stream.and_then(|stream| {
            let socket = stream.into_std()?;
            Ok((UnixStream::from_std(socket.try_clone()?)?, socket))
        });
        let (readiness, socket) = opened.map_err(|error| explain(path, &error))?;
        let connection = Connection {
            number,
            readiness,
            socket,
            state: Mutex::default(),
            wake: Notify::new(),
            places: Semaphore::new(IN_FLIGHT_MAX),
        };
        crate::lock(&connection.state).unwritten = hello.frame(Op::Hello, Some(0));
        Ok(connection)
    }

    /// Whether further requests may be sent.
    pub(crate) fn is_usable(&self) -> bool {
        let state = crate::lock(&self.state);
        !state.is_closed && !state.is_leaving && !state.is_failed
    }

    pub(crate) fn is_open(&self) -> bool {
        !crate::lock(&self.state).is_closed
    }

    /// Waits for a permit, until the reply or the end of the connection frees one.
    pub(crate) async fn place(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        self.places.acquire().await.ok()
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn send(
        &self,
        client: &Client,
        op: Op,
        elements: &Elements,
        began: Instant,
    ) -> Result<InFlight, Fault> {
        let (sender, reply) = oneshot::channel();
        let mut state = crate::lock(&self.state);
        if state.is_closed {
            return Err(state.fault.clone().unwrap_or_else(|| Fault { is_unread: true, ..hung_up() }));
        }
        state.last_id += 1;
        let id = state.last_id;
        let start = state.written + state.unwritten.len() as u64;
        state.waiting.insert(id, Waiting { op, began, start, reply: sender });
        state.unwritten.extend(elements.frame(op, Some(id)));
        self.write(client, state);
        Ok(InFlight { reply })
    }

    /// Sends a request without a reply. False: the connection is closed. `ended`: the request whose grant it ends.
    pub(crate) fn send_silent(
        &self,
        client: &Client,
        op: Op,
        elements: &Elements,
        ended: Option<RequestKey>,
    ) -> bool {
        let mut state = crate::lock(&self.state);
        if state.is_closed {
            return false;
        }
        let after = state.last_id;
        state.unproved.extend(ended.map(|key| (after, key)));
        if state.unproved.len() > UNPROVED_MAX {
            state.unproved.pop_front();
        }
        state.unwritten.extend(elements.frame(op, None));
        self.write(client, state);
        true
    }

    /// Writes as much as the socket takes; the task writes the rest.
    fn write(&self, client: &Client, mut state: std::sync::MutexGuard<'_, ConnectionState>) {
        while !state.unwritten.is_empty() {
            match (&self.socket).write(&state.unwritten) {
                Ok(written) => {
                    state.unwritten.drain(..written);
                    state.written += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_too_much = state.unwritten.len() > UNWRITTEN_BYTES_MAX;
                    drop(state);
                    self.wake.notify_one();
                    if is_too_much {
                        self.end(
                            client,
                            Some(&Fault::new("the daemon reads nothing", Reason::Timeout)),
                            false,
                        );
                    }
                    return;
                }
                // Replies that came before the end are read by the task.
                Err(_) => return state.unwritten.clear(),
            }
        }
    }

    /// Reads and writes until the connection is closed.
    pub(crate) async fn run(self: Arc<Self>, client: WeakClient) {
        while self.is_open() {
            let is_writing = !crate::lock(&self.state).unwritten.is_empty();
            tokio::select! {
                ready = self.readiness.ready(if is_writing { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE }) => {
                    let Some(client) = client.upgrade() else { return };
                    if ready.is_err() {
                        return self.hung_up(&client);
                    }
                    let blocked = |is_blocked: bool| if is_blocked { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) };
                    let _: io::Result<()> = self.readiness.try_io(Interest::READABLE, || blocked(self.read(&client)));
                    let _: io::Result<()> = self.readiness.try_io(Interest::WRITABLE, || {
                        self.write(&client, crate::lock(&self.state));
                        blocked(!crate::lock(&self.state).unwritten.is_empty())
                    });
                }
                () = self.wake.notified() => {}
            }
        }
    }

    /// Reads all replies that are there. Returns whether the socket is empty.
    pub(crate) fn read(self: &Arc<Self>, client: &Client) -> bool {
        let mut part = [0; 16 * 1_024];
        loop {
            let mut state = crate::lock(&self.state);
            if state.is_closed {
                return true;
            }
            match (&self.socket).read(&mut part) {
                Ok(0) => {
                    drop(state);
                    self.hung_up(client);
                    return true;
                }
                Ok(count) => {
                    state.received.extend_from_slice(part.get(..count).unwrap_or_default());
                    // Answers are dropped without the lock: dropping an unawaited grant releases it.
                    let (unawaited, read) = self.answer(client, &mut state);
                    let is_last = state.is_leaving || state.is_failed;
                    let is_done = is_last && state.waiting.is_empty() && state.unwritten.is_empty();
                    drop(state);
                    drop(unawaited);
                    match read {
                        Err(fault) => self.end(client, Some(&fault), false),
                        Ok(()) if is_done => self.end(client, None, false),
                        Ok(()) => {}
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => {
                    drop(state);
                    self.hung_up(client);
                    return true;
                }
            }
        }
    }

    /// Answers requests by the whole frames that were received. Returns the answers whose callers have left.
    fn answer(
        self: &Arc<Self>,
        client: &Client,
        state: &mut ConnectionState,
    ) -> (Vec<Answer>, Result<(), Fault>) {
        let (mut unawaited, mut consumed) = (Vec::new(), 0);
        let received = std::mem::take(&mut state.received);
        let read = loop {
            let rest = received.get(consumed..).unwrap_or_default();
            let Some((head, rest)) = rest.split_first_chunk::<4>() else { break Ok(()) };
            let length = usize::try_from(u32::from_be_bytes(*head)).unwrap_or(usize::MAX);
            if length > FRAME_BYTES_MAX {
                break Err(match head {
                    b"HTTP" => Fault::protocol(
                        "the daemon answered in HTTP: that is the admin socket; set TIDEGATE_SOCKET to the one beside it",
                    ),
                    _ => Fault::protocol(format!("malformed frame of {length} bytes")),
                });
            }
            let Some(payload) = rest.get(..length) else { break Ok(()) };
            consumed += 4 + length;
            match decode(payload).and_then(|reply| self.answer_one(client, state, &reply)) {
                Ok(answer) => unawaited.extend(answer),
                Err(fault) => break Err(fault),
            }
        };
        state.received = received.get(consumed..).unwrap_or_default().to_vec();
        (unawaited, read)
    }

    /// Passes a reply to its caller. Returns the answer if the caller has left.
    fn answer_one(
        self: &Arc<Self>,
        client: &Client,
        state: &mut ConnectionState,
        reply: &[Value],
    ) -> Result<Option<Answer>, Fault> {
        let unexpected = || Fault::protocol("the daemon sent an unexpected frame");
        let id = match reply.get(1) {
            Some(Value::Unsigned(id)) => Some(*id),
            _ => None,
        };
        let op = id.and_then(|id| state.waiting.get(&id)).map(|waiting| waiting.op);
        let answer = match (reply, op) {
            ([Value::Unsigned(0), Value::Unsigned(0), Value::Unsigned(1), ..], _) if !state.is_welcome => {
                state.is_welcome = true;
                return Ok(None);
            }
            ([Value::Unsigned(4), ..], _) => {
                state.is_leaving = true;
                return Ok(None);
            }
            ([Value::Unsigned(1), _, elements @ ..], Some(op)) if op.is_check() => {
                let (mut decision, lease) = Decision::read(elements).ok_or_else(unexpected)?;
                decision.lease = lease.map(|number| Lease {
                    number,
                    client: client.clone(),
                    connection: Arc::clone(self),
                    key: (self.number, id.unwrap_or_default()),
                    is_ended: AtomicBool::new(false),
                });
                Answer::Decision(Box::new(decision))
            }
            ([Value::Unsigned(2), _, Value::Bool(ok), ..], Some(op)) if !op.is_check() => Answer::Done(*ok),
            ([Value::Unsigned(3), about, Value::Unsigned(code), Value::Text(message), ..], op) => {
                let fault = Fault::of_error(*code, message);
                let is_of_hello = id == Some(0) && !state.is_welcome;
                let is_of_all =
                    *about == Value::Nil && (fault.reason == Reason::Forbidden || !fault.reason.is_refusal());
                match op {
                    Some(_) if fault.is_kept => state.is_failed |= *code == INTERNAL,
                    Some(_) => return Err(fault),
                    None if is_of_hello || is_of_all => return Err(Fault { is_kept: false, ..fault }),
                    // It has the id of no request.
                    None => return Err(Fault::protocol(fault.text)),
                }
                Answer::Fault(fault)
            }
            _ => return Err(unexpected()),
        };
        let Some((id, waiting)) = id.and_then(|id| Some((id, state.waiting.remove(&id)?))) else {
            return Err(unexpected());
        };
        while state.unproved.front().is_some_and(|(after, _)| *after < id) {
            state.unproved.pop_front();
        }
        Ok(waiting.reply.send(answer).err())
    }

    fn hung_up(&self, client: &Client) {
        self.end(client, Some(&hung_up()), true);
    }

    /// Closes the connection, once. Requests that wait get the fault; those that the daemon did not read may be sent again.
    pub(crate) fn end(&self, client: &Client, fault: Option<&Fault>, is_hung_up: bool) {
        let mut state = crate::lock(&self.state);
        if std::mem::replace(&mut state.is_closed, true) {
            return;
        }
        // Callers and the task find it closed; the descriptor closes with the last of them.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let waiting = std::mem::take(&mut state.waiting);
        let unproved = std::mem::take(&mut state.unproved);
        // One that hangs up before HELLO was written has no room. After GOODBYE the daemon has answered all that it read.
        let (is_leaving, is_welcome, written) = (state.is_leaving, state.is_welcome, state.written);
        let closed = Fault::new("the client was closed", Reason::Unreachable);
        let own = fault.unwrap_or(&closed);
        let own = Fault { is_full: own.is_full || (is_hung_up && written == 0), ..own.clone() };
        let is_repeatable = is_welcome || is_leaving || fault.is_none();
        state.fault = Some(Fault { is_unread: is_repeatable, ..own.clone() });
        drop(state);
        self.places.close();
        self.wake.notify_one();
        let is_unread = |of: &Waiting| is_hung_up && (is_leaving || (is_welcome && of.start >= written));
        let failed = || waiting.iter().filter(|(_, of)| !own.is_full && !is_unread(of));
        // A byte in doubt, or an end before WELCOME, counts without a request too; an end between two requests does not.
        let is_harmless = own.is_full || (is_hung_up && is_repeatable);
        let began = failed().map(|(_, of)| of.began).next().or((!is_harmless).then(Instant::now));
        if let Some(began) = began.filter(|_| fault.is_some() && !own.is_own && !own.reason.is_refusal()) {
            client.settle(Some(&own), began);
        }
        let abandoned = failed().filter(|(_, of)| of.op == Op::Acquire).map(|(id, _)| (self.number, *id));
        client.report_abandoned(unproved.into_iter().map(|(_, key)| key).chain(abandoned));
        // Last, since the next request of a caller carries the reports.
        for (_, of) in waiting {
            let is_unread = is_unread(&of);
            let _ = of.reply.send(Answer::Fault(Fault { is_unread, ..own.clone() }));
        }
    }

    /// Closes the connection of a client that is dropped: no request waits.
    pub(crate) fn close(&self) {
        crate::lock(&self.state).is_closed = true;
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.wake.notify_one();
    }
}

fn hung_up() -> Fault {
    Fault::new("the daemon hung up", Reason::Unreachable)
}

/// Returns the cause of a failed connection, and a help.
fn explain(path: &Path, error: &io::Error) -> Fault {
    let path_text = path.display();
    let is_absent = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    let is_socket = || {
        use std::os::unix::fs::FileTypeExt;
        path.metadata().is_ok_and(|found| found.file_type().is_socket())
    };
    let text = match error.kind() {
        ErrorKind::WouldBlock => {
            format!("the daemon at {path_text} takes no connections: it is stopped or overloaded")
        }
        ErrorKind::PermissionDenied => {
            format!(
                "permission denied on {path_text}: this user is not in the group of the socket; see `tidegate doctor`"
            )
        }
        ErrorKind::ConnectionRefused if !is_socket() => {
            format!("{path_text} is no socket: set TIDEGATE_SOCKET to that of the daemon")
        }
        _ => format!(
            "no daemon at {path_text} ({error}): start it with `tidegate serve`, or set TIDEGATE_SOCKET"
        ),
    };
    Fault { is_absent, ..Fault::new(text, Reason::Unreachable) }
}

/// The ERROR after which the daemon closes the connection.
const INTERNAL: u64 = 10;

/// The daemon keeps no more for one connection.
const IN_FLIGHT_MAX: usize = 256;

/// Releases that are not proved; the daemon ends their grants by the report of the next request.
const UNPROVED_MAX: usize = 512;

/// Releases of many leases while the daemon reads nothing.
const UNWRITTEN_BYTES_MAX: usize = 1 << 20;

/// Between attempts to connect while the backlog is full.
const RETRY_PERIOD: std::time::Duration = std::time::Duration::from_millis(1);
