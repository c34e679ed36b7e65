//! Messages to and from a decision thread, as a client has them; and the sessions that clients of HTTP name, so that leases live
//! between two HTTP connections.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use tidegate_client::Reason;
use tokio::io::{AsyncRead, AsyncReadExt};

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

/// Waits for the next answer, and returns it with the id of its request; an ERROR about the connection has none. `None`: the
/// decision thread reads no further request, and has answered all that it read. `received` keeps the bytes behind it.
pub(super) async fn receive(
    stream: &mut (impl AsyncRead + Unpin),
    received: &mut Vec<u8>,
) -> Result<Option<(Option<u64>, WireAnswer)>, Reason> {
    loop {
        let (payload, consumed) = match split_frame(received) {
            FrameSplit::Frame { payload, consumed } => (payload, consumed),
            FrameSplit::More { .. } => match stream.read_buf(received).await {
                Ok(1..) => continue,
                Ok(0) | Err(_) => return Err(Reason::Unreachable),
            },
            FrameSplit::Broken(_) => return Err(Reason::Protocol),
        };
        let mut scratch = ReplyScratch::default();
        let answer = match decode_reply(payload, &mut scratch).map_err(|_| Reason::Protocol)? {
            WireReply::Welcome { .. } => None,
            WireReply::Goodbye { .. } => return Ok(None),
            WireReply::Decision(decision) => {
                let answer = WireAnswer::Decision(Box::new(HttpDecision::from_reply(&decision)));
                Some((Some(decision.id), answer))
            }
            WireReply::Done { id, ok } => Some((Some(id), WireAnswer::Done(ok))),
            WireReply::Error { id, code, message } => Some((id, WireAnswer::Error(code, message.to_owned()))),
        };
        received.drain(..consumed);
        if answer.is_some() {
            return Ok(answer);
        }
    }
}

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
