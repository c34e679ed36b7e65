//! Passes requests, decisions and session events to the recorder, from the decision threads. It never waits, and is not
//! called while the recorder is off.

use super::ServerState;
use super::processes::SessionKey;
use super::request::RequestContext;
use crate::clock::{Now, Timestamp};
use crate::engine::{self, ConnectionEnd, Session, Verdict};
use crate::record::{EventOrigin, NotedKind};

impl ServerState {
    /// Records the HELLO of a connection.
    #[cold]
    pub(super) fn record_hello(
        &self,
        key: &SessionKey,
        session: &Session,
        pool: &str,
        slots: u32,
        at: Timestamp,
    ) {
        self.record(key, session, NotedKind::Hello { pool: pool.into(), slots }, at);
    }

    /// Records the end of a connection.
    #[cold]
    pub(super) fn record_parting(
        &self,
        key: &SessionKey,
        session: &Session,
        parting: ConnectionEnd,
        at: Timestamp,
    ) {
        match parting {
            ConnectionEnd::Stays => {}
            ConnectionEnd::EndsAt(ends_at) => self.record(key, session, NotedKind::Left(ends_at), at),
            ConnectionEnd::Ends => self.record_session_end(key, session, at),
        }
    }

    /// Records the end of a session.
    #[cold]
    pub(super) fn record_session_end(&self, key: &SessionKey, session: &Session, at: Timestamp) {
        self.record(key, session, NotedKind::Gone, at);
    }

    /// Records the end of leases whose replies or requests were dropped.
    #[cold]
    pub(super) fn record_dropped(&self, key: &SessionKey, session: &Session, leases: &[u64], at: Timestamp) {
        for lease in leases {
            self.record(key, session, NotedKind::Ended(*lease, engine::WorkOutcome::Dropped), at);
        }
    }

    fn record(&self, key: &SessionKey, session: &Session, event: NotedKind, at: Timestamp) {
        let origin = EventOrigin { user: key.user(), named: key.to_bytes(), session: session.clone() };
        self.recorder.note(at, Some(origin), event);
    }

    /// Records a tick of the engine.
    pub(super) fn record_tick(&self, now: Now) {
        if self.recorder.is_on() {
            self.recorder.note(now.at, None, NotedKind::Tick);
        }
    }
}

impl RequestContext<'_> {
    /// Records a decision.
    #[cold]
    #[inline(never)]
    pub(super) fn record_decision(&self, domain: &str, decision: &engine::Decision<'_>) {
        if !self.shared.recorder.wants(domain) {
            return;
        }
        let is_refused = !matches!(decision.verdict, Verdict::Allow | Verdict::Wait);
        let refused_by = decision.rule_name().filter(|_| is_refused).map(Into::into);
        self.record(NotedKind::Judged {
            payload: self.payload.into(),
            verdict: decision.verdict,
            refused_by,
            lease: decision.lease,
        });
    }

    /// Records a charge.
    #[cold]
    pub(super) fn record_charge(&self, domain: &str) {
        if self.shared.recorder.wants(domain) {
            self.record(NotedKind::Charged(self.payload.into()));
        }
    }

    /// Records an event of this session.
    #[cold]
    pub(super) fn record(&self, event: NotedKind) {
        let origin =
            EventOrigin { user: self.user, named: *self.session_name, session: self.session.clone() };
        self.shared.recorder.note(self.now.at, Some(origin), event);
    }
}
