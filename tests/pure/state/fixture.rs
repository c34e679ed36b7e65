//! An engine with rules from YAML and sessions in virtual time, and its restored copy.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{Amount, ConnectionParams, Decision, Engine, HashKey, Session, WorkOutcome};
use tidegate::state::{Moment, RestoreResult, SnapshotError, SnapshotKey, read_tables, write_tables};

pub(crate) use crate::bench::Ask;
use crate::bench::{Bench, charge_of, pairs};
use crate::engines::options;

pub(crate) const KEY: SnapshotKey = SnapshotKey([7; 16]);

/// Unix time at the engine's origin, 3 March 2026, so that calendar windows are not at their start.
pub(crate) const UTC: i64 = 1_772_539_200_000_000_000;

pub(crate) const ANY_SIZE: u64 = 1 << 30;

pub(crate) struct Fixture {
    bench: Bench,
    /// By the number of the session's name.
    pub(crate) sessions: BTreeMap<u8, Session>,
}

impl Deref for Fixture {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.bench
    }
}

impl DerefMut for Fixture {
    fn deref_mut(&mut self) -> &mut Bench {
        &mut self.bench
    }
}

/// An engine of a host that does not reach the Redis of its fleet.
pub(crate) fn engine() -> Engine {
    let engine = Engine::new(options());
    engine.join_fleet(HashKey::from_bytes([9; 16]));
    engine
}

pub(crate) fn at(nanos: u64) -> Now {
    Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: UTC }
}

pub(crate) fn s(seconds: u64) -> Now {
    at(seconds * 1_000_000_000)
}

/// A time on the single machine of these tests, whose clocks run at the rate of the engine's.
pub(crate) fn here(now: Now) -> Moment {
    let nanos = now.at.as_nanos();
    Moment {
        clock: Some(1),
        boot_nanos: 5_000_000_000 + nanos,
        unix_nanos: UTC + i64::try_from(nanos).unwrap(),
    }
}

impl Fixture {
    pub(crate) fn new(rules: &str) -> Fixture {
        let fixture = Fixture::of(engine());
        fixture.install(rules);
        fixture
    }

    pub(crate) fn of(engine: impl Into<Arc<Engine>>) -> Fixture {
        Fixture { bench: Bench::with(engine.into()), sessions: BTreeMap::new() }
    }

    pub(crate) fn write(&self, path: &Path, now: Now) {
        write_tables(path, KEY, &self.engine, now, &here(now), false).unwrap();
    }

    /// An engine restored from a file at a later time, without rules.
    pub(crate) fn restart(path: &Path, now: Now) -> Fixture {
        Fixture::try_restart(path, now).unwrap().0
    }

    /// An engine restored at a time from the tables of another, without rules.
    pub(crate) fn restarted(&self, written: Now, now: Now) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tables");
        self.write(&path, written);
        Fixture::restart(&path, now)
    }

    pub(crate) fn try_restart(path: &Path, now: Now) -> Result<(Fixture, RestoreResult), SnapshotError> {
        let engine = engine();
        let back = read_tables(path, KEY, &engine, &here(now), ANY_SIZE)?;
        assert_eq!(back.at, now.at, "the timeline goes on");
        engine.number_leases_from(u64::from(back.entries > 0) << 40);
        Ok((Fixture::of(engine), back))
    }

    pub(crate) fn open(&mut self, number: u8, slots: u32, now: Now) {
        let opening = ConnectionParams {
            name: Some([number; 16]),
            user: u32::from(number % 3),
            pool: if number.is_multiple_of(2) { "web" } else { "jobs" },
            slots,
            connection: 1,
            pid: None,
        };
        let session = self.engine.open_session(&opening, now).unwrap();
        self.sessions.insert(number, session);
    }

    pub(crate) fn close(&mut self, number: u8, now: Now) {
        if let Some(session) = self.sessions.remove(&number) {
            self.engine.close_connection(&session, now);
        }
    }

    /// The decision with every number in one line, and the lease; of a session if it is open.
    pub(crate) fn ask(&mut self, session: u8, ask: Ask<'_>, now: Now) -> (String, Option<u64>) {
        let ask = Ask { lists_all_limits: true, ..ask };
        let answer = self.bench.decide(self.sessions.get(&session), now, ask, in_full);
        (answer.line, answer.lease)
    }

    pub(crate) fn charge(&mut self, attributes: &str, amount: i64, now: Now) -> bool {
        self.decider.charge(&charge_of(&pairs(attributes), Amount::Requests(amount)), now).unwrap()
    }

    pub(crate) fn acquire(&mut self, session: u8, attributes: &str, now: Now) -> Option<u64> {
        self.ask(session, Ask::acquire(attributes), now).1
    }

    /// A hit without a session.
    pub(crate) fn hit(&mut self, attributes: &str, now: Now) -> String {
        self.ask(u8::MAX, Ask::hit(attributes, 1), now).0
    }

    pub(crate) fn release(&self, session: u8, lease: u64, outcome: WorkOutcome, now: Now) -> bool {
        self.sessions
            .get(&session)
            .is_some_and(|session| self.engine.release_lease(session, lease, outcome, now))
    }
}

fn in_full(decision: &Decision<'_>) -> String {
    let notes: Vec<_> = decision.notes().collect();
    let all: Vec<_> = decision.limits().map(|limit| (&*limit.view.rule.name, limit.view.level)).collect();
    let binding = decision.binding.map(|view| (&*view.rule.name, view.level));
    let (verdict, name, retry) = (decision.verdict, decision.rule_name(), decision.retry_after);
    format!(
        "{verdict:?} {name:?} {binding:?} {retry:?} {notes:?} {all:?} lease: {}",
        decision.lease.is_some()
    )
}
