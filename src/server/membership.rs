//! A connection's membership in a session of the engine, from HELLO to its close.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::ServerState;
use super::pool_access::PoolRefusal;
use super::processes::{SessionKey, WatchError};
use crate::clock::{Now, Timestamp};
use crate::engine::{ConnectionParams, Session, SessionError};
use crate::protocol::{Code, HelloFrame};
use crate::record::SESSION_BYTES;
use crate::sys;

/// A connection and its user, as the kernel reports it.
#[derive(Clone, Debug)]
pub(super) struct ConnectionInfo {
    pub(super) socket: Arc<UnixStream>,
    /// The user of the peer.
    pub(super) user: u32,
    /// The connection's number, unique since the start.
    pub(super) number: u64,
}

/// A membership in a session, ended by its drop.
#[derive(Debug)]
pub(super) struct Membership {
    shared: Arc<ServerState>,
    session: Session,
    key: SessionKey,
    number: u64,
}

/// Why HELLO is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum HelloRefusal {
    #[error("{0}")]
    NotOpened(#[from] SessionError),
    #[error("{0}")]
    Pool(#[from] PoolRefusal),
    #[error("the process of this session has exited")]
    ProcessExited,
}

impl HelloRefusal {
    pub(super) fn code(&self) -> Code {
        match self {
            HelloRefusal::NotOpened(SessionError::TooMany) => Code::Busy,
            HelloRefusal::NotOpened(_)
            | HelloRefusal::ProcessExited
            | HelloRefusal::Pool(PoolRefusal::Slots { .. }) => Code::Forbidden,
            HelloRefusal::Pool(PoolRefusal::User { .. }) => Code::NotAllowed,
        }
    }
}

impl Membership {
    /// Joins the session that HELLO names, or starts it.
    pub(super) fn join(
        shared: &Arc<ServerState>,
        info: &ConnectionInfo,
        hello: &HelloFrame<'_>,
        now: Now,
    ) -> Result<Membership, HelloRefusal> {
        shared.pools.check(hello.pool, info.user, hello.slots, now.at)?;
        // The pid of HELLO is used only if the kernel confirms it.
        let kernel_pid = || sys::peer_pid(&info.socket).ok().flatten();
        let pid = hello.pid.filter(|pid| kernel_pid() == Some(*pid));
        let opening = ConnectionParams {
            name: hello.session,
            user: info.user,
            pool: hello.pool,
            slots: hello.slots,
            connection: hello.connection,
            pid,
        };
        let session = shared.engine.open_session(&opening, now)?;
        let key = SessionKey::new(hello.session, info.user, info.number);
        let member = Membership { shared: Arc::clone(shared), session, key, number: info.number };
        shared.connections.set_session(info.number, key);
        if shared.recorder.is_on() {
            shared.record_hello(&key, &member.session, hello.pool, hello.slots, now.at);
        }
        let watched = shared.processes.watch(shared, key, info, &member.session, pid.is_some());
        if watched == Err(WatchError::Exited) {
            shared.engine.end_session(&member.session, now);
            if shared.recorder.is_on() {
                shared.record_session_end(&key, &member.session, now.at);
            }
            return Err(HelloRefusal::ProcessExited);
        }
        Ok(member)
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the name of its session for idempotency keys.
    pub(super) fn session_name(&self) -> [u8; SESSION_BYTES] {
        self.key.to_bytes()
    }

    /// Records the end of leases whose replies or requests were dropped.
    pub(super) fn record_dropped(&self, leases: &[u64], at: Timestamp) {
        if self.shared.recorder.is_on() {
            self.shared.record_dropped(&self.key, &self.session, leases, at);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        self.shared.processes.remove_connection(&self.key, self.number, now.at);
        let parting = self.shared.engine.close_connection(&self.session, now);
        if self.shared.recorder.is_on() {
            self.shared.record_parting(&self.key, &self.session, parting, now.at);
        }
    }
}
