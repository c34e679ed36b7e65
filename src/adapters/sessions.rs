//! Sessions that clients name. Each keeps a connection of its own, so that its leases live between two HTTP connections.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::StatusCode;
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use super::AdapterState;
use super::exchange::{SessionName, open};
use super::handler::{BadRequest, invalid};
use crate::clock::Timestamp;

#[derive(Debug, Default)]
pub(super) struct HttpSessions(Mutex<HashMap<(u32, SessionName), UsedSession>>);

#[derive(Debug)]
struct UsedSession {
    /// Keeps the session open.
    _connection: UnixStream,
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
