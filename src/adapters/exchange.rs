//! Connections to a decision thread, as a client has them: of an HTTP connection, with one request at a time and its reply, and of
//! a session that clients name, so that its leases live between two HTTP connections.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tidegate_client::Reason;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::AdapterState;
use super::decision::HttpDecision;
use super::handler::{BadRequest, invalid};
use crate::clock::Timestamp;
use crate::protocol::{
    Code, DescriptorList, FrameSplit, HelloFrame, ReplyScratch, RequestFrame, WireReply, decode_reply,
    encode_request, split_frame,
};
use crate::server::Connector;

/// The name of a session on the wire.
pub(super) type SessionName = [u8; 16];

/// A connection that has sent HELLO.
#[derive(Debug)]
pub(super) struct ProtocolConnection {
    stream: UnixStream,
    pub(super) session: Option<SessionName>,
    received: Vec<u8>,
}

#[derive(Debug)]
pub(super) enum WireAnswer {
    Decision(Box<HttpDecision>),
    Done(bool),
    Error(Code, String),
}

/// Opens a connection of this user and sends HELLO, under the name of the adapter.
pub(super) fn open(
    connector: &Connector,
    name: &str,
    user: u32,
    session: Option<SessionName>,
) -> io::Result<StdStream> {
    let mut stream = connector.connect(user)?;
    let client = format!("{name}/{}", env!("CARGO_PKG_VERSION"));
    let hello = HelloFrame { client: Some(&client), session, ..HelloFrame::new(HELLO_ID) };
    let mut bytes = Vec::new();
    let too_large = |_| io::Error::from(ErrorKind::InvalidInput);
    encode_request(&mut bytes, &RequestFrame::Hello(hello), &DescriptorList::new()).map_err(too_large)?;
    // A new socket has room for it.
    stream.write_all(&bytes)?;
    Ok(stream)
}

impl ProtocolConnection {
    pub(super) fn open(
        connector: &Connector,
        name: &str,
        user: u32,
        session: Option<SessionName>,
    ) -> Result<ProtocolConnection, Reason> {
        let stream = open(connector, name, user, session).and_then(UnixStream::from_std);
        let stream = stream.map_err(|_| Reason::Unreachable)?;
        Ok(ProtocolConnection { stream, session, received: Vec::new() })
    }

    /// Sends a request with the id [`REQUEST_ID`] and returns its reply; `None`: it was not read, as the connection was closed
    /// while it was idle. After an error, or if the future is dropped, the connection is closed; the request may have been
    /// judged.
    pub(super) async fn exchange(&mut self, frame: &[u8]) -> Result<Option<WireAnswer>, Reason> {
        if self.stream.write_all(frame).await.is_err() {
            return Ok(None);
        }
        loop {
            match receive(&mut self.stream, &mut self.received).await? {
                WireMessage::Welcome => {}
                WireMessage::Goodbye => return Ok(None),
                WireMessage::Answer(Some(REQUEST_ID) | None, answer) => return Ok(Some(answer)),
                WireMessage::Answer(..) => return Err(Reason::Protocol),
            }
        }
    }
}

/// A message of a decision thread.
#[derive(Debug)]
pub(super) enum WireMessage {
    Welcome,
    /// It reads no further request, and has answered all that it read.
    Goodbye,
    /// With the id of the request. An ERROR without one is about the connection.
    Answer(Option<u64>, WireAnswer),
}

/// Waits for the next message. `received` keeps the bytes behind it.
pub(super) async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    received: &mut Vec<u8>,
) -> Result<WireMessage, Reason> {
    loop {
        match split_frame(received) {
            FrameSplit::Frame { payload, consumed } => {
                let message = read_message(payload);
                received.drain(..consumed);
                return message;
            }
            FrameSplit::More { .. } => match stream.read_buf(received).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Err(Reason::Unreachable),
            },
            FrameSplit::Broken(_) => return Err(Reason::Protocol),
        }
    }
}

fn read_message(payload: &[u8]) -> Result<WireMessage, Reason> {
    let mut scratch = ReplyScratch::default();
    match decode_reply(payload, &mut scratch) {
        Ok(WireReply::Welcome { .. }) => Ok(WireMessage::Welcome),
        Ok(WireReply::Goodbye { .. }) => Ok(WireMessage::Goodbye),
        Ok(WireReply::Decision(decision)) => {
            let answer = WireAnswer::Decision(Box::new(HttpDecision::from_reply(&decision)));
            Ok(WireMessage::Answer(Some(decision.id), answer))
        }
        Ok(WireReply::Done { id, ok }) => Ok(WireMessage::Answer(Some(id), WireAnswer::Done(ok))),
        Ok(WireReply::Error { id, code, message }) => {
            Ok(WireMessage::Answer(id, WireAnswer::Error(code, message.to_owned())))
        }
        Err(_) => Err(Reason::Protocol),
    }
}

/// The id of every request: a connection has one in flight.
pub(super) const REQUEST_ID: u64 = 1;

const HELLO_ID: u64 = 0;

#[derive(Debug, Default)]
pub(super) struct HttpSessions(Mutex<HashMap<(u32, SessionName), UsedSession>>);

#[derive(Debug)]
struct UsedSession {
    /// Keeps the session open.
    _connection: StdStream,
    used_at: Timestamp,
}

impl HttpSessions {
    /// Opens a session, or notes its use. Returns its name on the wire, which is the same after a restart.
    pub(super) fn enter(state: &AdapterState, user: u32, name: &[u8]) -> Result<SessionName, BadRequest> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let help = "send a random text that this process keeps";
            return Err(invalid(format!("Tidegate-Session has 1 to {NAME_BYTES_MAX} bytes; help: {help}")));
        }
        let unavailable = |message| BadRequest(StatusCode::SERVICE_UNAVAILABLE, message);
        let named = digest(&SHA256, &[&b"http:"[..], &user.to_be_bytes(), name].concat());
        let wire_name = named.as_ref().first_chunk().copied().unwrap_or_default();
        let used_at = state.clock.now().at;
        let mut sessions = state.sessions.0.lock();
        if let Some(session) = sessions.get_mut(&(user, wire_name)) {
            session.used_at = used_at;
            return Ok(wire_name);
        }
        let of_user = sessions.keys().filter(|(of, _)| *of == user).count();
        let (max, per_user) = ((state.limits.max / 4).max(1), (state.limits.per_user / 4).max(1));
        if of_user >= per_user as usize || sessions.len() >= max as usize {
            return Err(unavailable(format!(
                "there are too many sessions: {per_user} of one user, or {max} in all; help: keep one name per process"
            )));
        }
        let connection = open(&state.connector, "http", user, Some(wire_name))
            .map_err(|error| unavailable(format!("no session can be opened: {error}")))?;
        sessions.insert((user, wire_name), UsedSession { _connection: connection, used_at });
        state.counters.sessions.store(sessions.len() as u64, Ordering::Relaxed);
        Ok(wire_name)
    }

    /// Ends the sessions that were not used for long, again and again.
    pub(super) async fn expire(state: &AdapterState) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let now = state.clock.now().at;
            let mut sessions = state.sessions.0.lock();
            sessions.retain(|_, session| now.since(session.used_at) < unused_max());
            state.counters.sessions.store(sessions.len() as u64, Ordering::Relaxed);
        }
    }
}

fn unused_max() -> Duration {
    #[cfg(all(debug_assertions, feature = "test-hooks"))]
    if let Some(millis) =
        std::env::var("TIDEGATE_DEBUG_SESSION_MS").ok().and_then(|millis| millis.parse().ok())
    {
        return Duration::from_millis(millis);
    }
    UNUSED_MAX
}

/// The server ends a session 5 s after its last connection has closed: 60 s after its last use.
const UNUSED_MAX: Duration = Duration::from_secs(55);

const NAME_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as StdStream;

    use tokio::net::UnixStream;

    use super::{ProtocolConnection, REQUEST_ID, Reason, WireAnswer};
    use crate::protocol::{WireReply, encode_reply};

    /// Exchanges a request with an end that answers by these messages, or closes before it reads, and then closes.
    async fn exchange(replies: Option<&'static [WireReply<'static>]>) -> Result<Option<bool>, Reason> {
        let (own, mut other) = StdStream::pair().unwrap();
        own.set_nonblocking(true).unwrap();
        let served = std::thread::spawn(move || {
            let Some(replies) = replies else { return };
            other.read_exact(&mut [0; 8]).unwrap();
            let mut bytes = Vec::new();
            replies.iter().for_each(|reply| encode_reply(&mut bytes, reply));
            other.write_all(&bytes).unwrap();
        });
        if replies.is_none() {
            served.join().unwrap();
        }
        let stream = UnixStream::from_std(own).unwrap();
        let mut connection = ProtocolConnection { stream, session: None, received: Vec::new() };
        let answer = connection.exchange(&[7; 8]).await?;
        Ok(answer.map(|answer| matches!(answer, WireAnswer::Done(true))))
    }

    /// A request that may have been read may have been charged.
    #[tokio::test]
    async fn tells_unread_requests_from_lost_replies() {
        const DONE: WireReply<'_> = WireReply::Done { id: REQUEST_ID, ok: true };
        const GOODBYE: WireReply<'_> = WireReply::Goodbye { reason: "idle" };
        assert_eq!(exchange(Some(&[DONE, GOODBYE])).await, Ok(Some(true)));
        assert_eq!(exchange(None).await, Ok(None));
        assert_eq!(exchange(Some(&[GOODBYE])).await, Ok(None));
        assert_eq!(exchange(Some(&[])).await, Err(Reason::Unreachable));
    }
}
