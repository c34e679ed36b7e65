//! What whoever records is told: what was asked and what came of it, on the way of those who decide. It waits for nobody,
//! and while nobody records it is not reached.

use super::Shared;
use super::judge::Asking;
use super::processes::SessionKey;
use crate::clock::{Now, Timestamp};
use crate::engine::{self, Parting, Session, Verdict};
use crate::record::{What, Who};

impl Shared {
    /// A connection has said HELLO.
    #[cold]
    pub(super) fn note_hello(
        &self,
        key: &SessionKey,
        session: &Session,
        pool: &str,
        slots: u32,
        at: Timestamp,
    ) {
        self.note(key, session, What::Hello { pool: pool.into(), slots }, at);
    }

    /// A connection has ended.
    #[cold]
    pub(super) fn note_parting(&self, key: &SessionKey, session: &Session, parting: Parting, at: Timestamp) {
        match parting {
            Parting::Stays => {}
            Parting::EndsAt(ends_at) => self.note(key, session, What::Left(ends_at), at),
            Parting::Ends => self.note_gone(key, session, at),
        }
    }

    /// A session has ended.
    #[cold]
    pub(super) fn note_gone(&self, key: &SessionKey, session: &Session, at: Timestamp) {
        self.note(key, session, What::Gone, at);
    }

    /// Leases have ended that nobody waits for any more.
    #[cold]
    pub(super) fn note_dropped(&self, key: &SessionKey, session: &Session, leases: &[u64], at: Timestamp) {
        for lease in leases {
            self.note(key, session, What::Ended(*lease, engine::WorkOutcome::Dropped), at);
        }
    }

    fn note(&self, key: &SessionKey, session: &Session, what: What, at: Timestamp) {
        let who = Who { user: key.user(), named: key.named(), session: session.clone() };
        self.recorder.note(at, Some(who), what);
    }

    /// The engine has done what happens by itself.
    pub(super) fn note_tick(&self, now: Now) {
        if self.recorder.is_on() {
            self.recorder.note(now.at, None, What::Tick);
        }
    }
}

impl Asking<'_> {
    /// A request was judged.
    #[cold]
    #[inline(never)]
    pub(super) fn note_judged(&self, domain: &str, decision: &engine::Decision<'_>) {
        if !self.shared.recorder.wants(domain) {
            return;
        }
        let is_refused = !matches!(decision.verdict, Verdict::Allow | Verdict::Wait);
        let refused_by = decision.rule_name().filter(|_| is_refused).map(Into::into);
        self.note(What::Judged {
            payload: self.payload.into(),
            verdict: decision.verdict,
            refused_by,
            lease: decision.lease,
        });
    }

    /// Something was charged.
    #[cold]
    pub(super) fn note_charged(&self, domain: &str) {
        if self.shared.recorder.wants(domain) {
            self.note(What::Charged(self.payload.into()));
        }
    }

    /// Something happened to this session or its work.
    #[cold]
    pub(super) fn note(&self, what: What) {
        let who = Who { user: self.user, named: *self.named, session: self.session.clone() };
        self.shared.recorder.note(self.now.at, Some(who), what);
    }
}
