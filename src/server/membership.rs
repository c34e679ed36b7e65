//! One connection's place in a session of the engine, from HELLO to its end. It judges nothing itself.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::Shared;
use super::pool_access::Closed;
use super::processes::{NotWatched, SessionKey};
use crate::clock::{Now, Timestamp};
use crate::engine::{NotOpened, Opening, Session};
use crate::protocol::{Code, Hello};
use crate::record::SESSION_BYTES;
use crate::sys;

/// The other end of a connection, as the kernel knows it.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) socket: Arc<UnixStream>,
    /// The user at the other end.
    pub(super) user: u32,
    /// The connection's number, no other's since the start.
    pub(super) number: u64,
}

/// A place in a session. Given back when it drops.
#[derive(Debug)]
pub(super) struct Membership {
    shared: Arc<Shared>,
    session: Session,
    key: SessionKey,
    number: u64,
}

/// Why HELLO is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotMember {
    #[error("{0}")]
    NotOpened(#[from] NotOpened),
    #[error("{0}")]
    Closed(#[from] Closed),
    #[error("the process of this session has ended")]
    Ended,
}

impl NotMember {
    pub(super) fn code(&self) -> Code {
        match self {
            NotMember::NotOpened(NotOpened::TooMany) => Code::Busy,
            NotMember::NotOpened(_) | NotMember::Ended | NotMember::Closed(Closed::Slots { .. }) => {
                Code::Forbidden
            }
            NotMember::Closed(Closed::User { .. }) => Code::NotAllowed,
        }
    }
}

impl Membership {
    /// Joins the session that HELLO names, or begins it.
    pub(super) fn begin(
        shared: &Arc<Shared>,
        line: &Line,
        hello: &Hello<'_>,
        now: Now,
    ) -> Result<Membership, NotMember> {
        shared.pools.check(hello.pool, line.user, hello.slots, now.at)?;
        // What a peer says of itself counts only where the kernel says the same.
        let known = || sys::peer_pid(&line.socket).ok().flatten();
        let pid = hello.pid.filter(|pid| known() == Some(*pid));
        let opening = Opening {
            name: hello.session,
            user: line.user,
            pool: hello.pool,
            slots: hello.slots,
            connection: hello.connection,
            pid,
        };
        let session = shared.engine.open(&opening, now)?;
        let key = SessionKey::new(hello.session, line.user, line.number);
        let member = Membership { shared: Arc::clone(shared), session, key, number: line.number };
        shared.connections.join(line.number, key);
        if shared.recorder.is_on() {
            shared.note_hello(&key, &member.session, hello.pool, hello.slots, now.at);
        }
        let watched = shared.processes.watch(shared, key, line, &member.session, pid.is_some());
        if watched == Err(NotWatched::Ended) {
            shared.engine.end(&member.session, now);
            if shared.recorder.is_on() {
                shared.note_gone(&key, &member.session, now.at);
            }
            return Err(NotMember::Ended);
        }
        Ok(member)
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// What its session is called.
    pub(super) fn named(&self) -> [u8; SESSION_BYTES] {
        self.key.named()
    }

    /// Leases of it have ended that nobody waits for any more.
    pub(super) fn note_dropped(&self, leases: &[u64], at: Timestamp) {
        if self.shared.recorder.is_on() {
            self.shared.note_dropped(&self.key, &self.session, leases, at);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        self.shared.processes.leave(&self.key, self.number, now.at);
        let parting = self.shared.engine.close(&self.session, now);
        if self.shared.recorder.is_on() {
            self.shared.note_parting(&self.key, &self.session, parting, now.at);
        }
    }
}
