//! An engine under rules from YAML, and sessions with requests, in virtual time.

use std::ops::{Deref, DerefMut};

use tidegate::clock::Now;
use tidegate::engine::{ConnectionParams, Session, WorkOutcome};
use tidegate::rules::Mode;

pub(crate) use crate::bench::{Answer, Ask};
use crate::bench::{Bench, shown};
pub(crate) use crate::engines::at_millis as ms;

/// [`Bench`] with the rules of the domain `api`.
pub(crate) struct Fixture(Bench);

impl Deref for Fixture {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.0
    }
}

impl DerefMut for Fixture {
    fn deref_mut(&mut self) -> &mut Bench {
        &mut self.0
    }
}

impl Fixture {
    pub(crate) fn new(text: &str) -> Fixture {
        Fixture::of(Mode::Enforce, text)
    }

    pub(crate) fn of(mode: Mode, text: &str) -> Fixture {
        Fixture(Bench::of(mode, &format!("domain: api\n{text}")))
    }

    /// With a session of this number of slots.
    pub(crate) fn with_session(text: &str, slots: u32) -> (Fixture, Session) {
        let fixture = Fixture::new(text);
        let session = fixture.session(1, slots, s(0));
        (fixture, session)
    }

    pub(crate) fn install(&self, text: &str) {
        self.0.install(&format!("domain: api\n{text}"));
    }

    /// A session of the pool `web` with `slots` slots.
    pub(crate) fn session(&self, name: u8, slots: u32, at: Now) -> Session {
        self.connection(name, slots, 1, at)
    }

    pub(crate) fn connection(&self, name: u8, slots: u32, connection: u64, at: Now) -> Session {
        let name = (name > 0).then_some([name; 16]);
        let opening = ConnectionParams { name, user: 1, pool: "web", slots, connection, pid: None };
        self.engine.open_session(&opening, at).unwrap()
    }

    pub(crate) fn ask(&mut self, session: &Session, at: Now, ask: Ask<'_>) -> Answer {
        self.decide(Some(session), at, ask, |decision| shown(decision, false))
    }

    /// Acquires, and returns the reply.
    pub(crate) fn acquire(&mut self, session: &Session, at: Now, attributes: &str) -> Answer {
        self.ask(session, at, Ask::acquire(attributes))
    }

    pub(crate) fn release(&self, session: &Session, lease: Option<u64>, at: Now) -> bool {
        self.engine.release_lease(session, lease.unwrap(), WorkOutcome::Ok, at)
    }

    /// Asserts the number of leases in the concurrency rules.
    #[track_caller]
    pub(crate) fn holds(&self, in_progress: u64) {
        assert_eq!(self.engine.in_progress(), in_progress);
    }
}

/// Seconds after the start.
pub(crate) fn s(seconds: u64) -> Now {
    ms(seconds * 1_000)
}
