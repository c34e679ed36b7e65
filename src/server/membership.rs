//! A connection's membership in a session of the engine, from HELLO to its close.

use std::cell::Cell;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::ServerState;
use super::telemetry::ClientKind;
use crate::clock::{Now, Timestamp};
use crate::engine::{ConnectionEnd, ConnectionParams, Session, SessionError, WorkOutcome};
use crate::protocol::{Abandoned, Code, HelloFrame, MissedCounts};
use crate::record::{EventOrigin, NotedKind, SESSION_BYTES};
use crate::sys;

/// A connection and its user, as the kernel reports it.
#[derive(Clone, Debug)]
pub(super) struct ConnectionInfo {
    pub(super) socket: Arc<UnixStream>,
    pub(super) user: u32,
    /// The connection's number, unique since the start.
    pub(super) number: u64,
}

/// A membership in a session, ended by its drop.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) shared: Arc<ServerState>,
    pub(super) session: Session,
    pub(super) key: EventOrigin,
    /// The name of the session as the scope of idempotency keys.
    pub(super) session_name: [u8; SESSION_BYTES],
    pub(super) library: ClientKind,
    /// Reported decisions without the daemon, not counted yet.
    missed: Cell<MissedCounts>,
    /// Whether any domain is closed to the user; otherwise the domain of a request need not be checked.
    pub(super) is_restricted: bool,
}

/// Why a HELLO is refused, as the code and the message of the reply.
#[derive(Debug)]
pub(super) struct HelloRefusal(pub(super) Code, pub(super) String);

impl From<SessionError> for HelloRefusal {
    fn from(error: SessionError) -> HelloRefusal {
        let code = if error == SessionError::TooMany { Code::Busy } else { Code::Forbidden };
        HelloRefusal(code, error.to_string())
    }
}

impl Membership {
    /// Joins the session that HELLO names, or starts it.
    pub(super) fn join(
        shared: &Arc<ServerState>,
        info: &ConnectionInfo,
        hello: &HelloFrame<'_>,
        library: ClientKind,
        now: Now,
    ) -> Result<Membership, HelloRefusal> {
        shared.options.pools.check(hello.pool, info.user, hello.slots)?;
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
        let named = session_name(hello.session, info.number);
        let key = EventOrigin { user: info.user, named, session: session.clone() };
        let member = Membership {
            shared: Arc::clone(shared),
            session,
            key,
            session_name: named,
            library,
            missed: Cell::default(),
            is_restricted: shared.options.access.is_restricted(info.user),
        };
        shared.connections.set_session(info.number, member.session.number());
        member.record(now.at, || NotedKind::Hello { pool: hello.pool.into(), slots: hello.slots });
        if !shared.processes.watch(shared, info, &member.key, pid.is_some()) {
            shared.engine.end_session(&member.session, now);
            member.record(now.at, || NotedKind::SessionEnded);
            let message = "the process of this session has exited".to_owned();
            return Err(HelloRefusal(Code::Forbidden, message));
        }
        Ok(member)
    }

    /// Notes reported decisions without the daemon, to be counted once a reply is written.
    pub(super) fn note_missed(&self, missed: &MissedCounts) {
        if !missed.is_empty() {
            self.missed.set(self.missed.get().plus(missed));
        }
    }

    /// Counts the noted reports. Called after a reply is written: without one the client reports them again.
    pub(super) fn count_missed(&self) {
        self.shared.add_missed(self.library, &self.missed.take());
    }

    /// Ends the leases of requests that the client has abandoned.
    pub(super) fn abandon_requests(&self, reports: &Abandoned<'_>, now: Now) {
        if reports.is_empty() {
            return;
        }
        for lease in self.shared.engine.abandon_requests(&self.session, &mut reports.iter(), now) {
            self.record_dropped(lease, now.at);
        }
    }

    /// Records the end of a lease whose reply or request was dropped.
    pub(super) fn record_dropped(&self, lease: u64, at: Timestamp) {
        self.record(at, || NotedKind::Ended(lease, WorkOutcome::Dropped));
    }

    /// Records an event of this session, if a recording runs. It never waits.
    #[inline]
    pub(super) fn record(&self, at: Timestamp, event: impl FnOnce() -> NotedKind) {
        if self.shared.options.recorder.is_on() {
            self.record_now(None, at, event);
        }
    }

    /// Records an event of a domain, if a recording of this domain runs.
    #[inline]
    pub(super) fn record_in(&self, domain: &str, at: Timestamp, event: impl FnOnce() -> NotedKind) {
        if self.shared.options.recorder.is_on() {
            self.record_now(Some(domain), at, event);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_now(&self, domain: Option<&str>, at: Timestamp, event: impl FnOnce() -> NotedKind) {
        if domain.is_none_or(|domain| self.shared.options.recorder.wants(domain)) {
            self.shared.options.recorder.note(at, Some(self.key.clone()), event());
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        match self.shared.engine.close_connection(&self.session, now) {
            ConnectionEnd::Stays => {}
            ConnectionEnd::EndsAt(ends_at) => self.record(now.at, || NotedKind::Disconnected(ends_at)),
            ConnectionEnd::Ends => {
                self.shared.processes.forget(&self.session);
                self.record(now.at, || NotedKind::SessionEnded);
            }
        }
    }
}

/// Encodes the name of a session, unique among those of its user. One from HELLO never equals the number of a connection.
fn session_name(hello: Option<[u8; 16]>, connection: u64) -> [u8; SESSION_BYTES] {
    let mut encoded = [0; SESSION_BYTES];
    let number = connection.to_le_bytes();
    let bytes = [u8::from(hello.is_some())]
        .into_iter()
        .chain(hello.as_ref().map_or(&number[..], |name| name).iter().copied());
    encoded.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    encoded
}
