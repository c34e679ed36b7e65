//! An engine with rules from YAML and sessions in virtual time, and its restored copy.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::engine::{
    Amount, Charge, ConnectionParams, Cost, Decider, Descriptors, Engine, EngineAnswer, EngineOptions,
    HashKey, IdempotencyKey, Op, Request, Session, WorkOutcome,
};
use tidegate::rules::{Mode, read_text};
use tidegate::state::{Moment, RestoreResult, SnapshotError, SnapshotKey, read_tables, write_tables};

pub(crate) const KEY: SnapshotKey = SnapshotKey([7; 16]);

/// Unix time at the engine's origin, 3 March 2026, so that calendar windows are not at their start.
pub(crate) const UTC: i64 = 1_772_539_200_000_000_000;

pub(crate) const ANY_SIZE: u64 = 1 << 30;

pub(crate) struct Fixture {
    pub(crate) engine: Arc<Engine>,
    pub(crate) decider: Decider,
    /// By the number of the session's name.
    pub(crate) sessions: BTreeMap<u8, Session>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) op: Op,
    pub(crate) attributes: &'a [(&'a str, &'a str)],
    pub(crate) cost: u32,
    pub(crate) wait_max: Option<u64>,
    pub(crate) name: Option<&'a [u8]>,
    pub(crate) session: Option<u8>,
}

pub(crate) fn engine() -> Engine {
    let hash_key = HashKey::from_bytes(KEY.0);
    let engine = Engine::new(EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 64 << 20 });
    engine.set_elastic_room(true);
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

    pub(crate) fn of(engine: Engine) -> Fixture {
        let engine = Arc::new(engine);
        Fixture { decider: engine.decider(), engine, sessions: BTreeMap::new() }
    }

    pub(crate) fn install(&self, rules: &str) {
        let text = format!("domain: api\n{rules}");
        let loaded = read_text("rules.yaml", &text);
        assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
        drop(self.engine.install_rules(loaded.domains));
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

    /// The decision in one line, and the lease.
    pub(crate) fn ask(&mut self, ask: &Ask<'_>, now: Now) -> (String, Option<u64>) {
        let request = Request {
            cost: Cost::Requests(ask.cost),
            wait_max: ask.wait_max.map(Micros),
            session: ask.session.and_then(|number| self.sessions.get(&number)),
            idempotency_key: ask.name.map(|name| IdempotencyKey { session: b"s", user: 1, name }),
            lists_all_limits: true,
            ..Request::new(ask.op, "api", Descriptors::from_attributes(ask.attributes))
        };
        let decision = match self.decider.decide(&request, now) {
            EngineAnswer::Decided(decision) => decision,
            other => return (format!("{other:?}").split_whitespace().next().unwrap().to_owned(), None),
        };
        let notes: Vec<_> = decision.notes().collect();
        let all: Vec<_> = decision.limits().map(|view| (&*view.rule.name, view.level)).collect();
        let binding = decision.binding.map(|view| (&*view.rule.name, view.level));
        let line = format!(
            "{:?} {:?} {binding:?} {:?} {notes:?} {all:?} lease: {}",
            decision.verdict,
            decision.rule_name(),
            decision.retry_after,
            decision.lease.is_some()
        );
        (line, decision.lease)
    }

    pub(crate) fn charge(&mut self, attributes: &[(&str, &str)], amount: i64, now: Now) -> bool {
        let descriptors = Descriptors::from_attributes(attributes);
        let charge = Charge {
            domain: "api",
            descriptors,
            amount: Amount::Requests(amount),
            idempotency_key: None,
            refund_of: None,
            trusted: true,
        };
        self.decider.charge(&charge, now).unwrap()
    }

    pub(crate) fn acquire(&mut self, session: u8, attributes: &[(&str, &str)], now: Now) -> Option<u64> {
        let ask =
            Ask { op: Op::Acquire, attributes, cost: 1, wait_max: None, name: None, session: Some(session) };
        self.ask(&ask, now).1
    }

    pub(crate) fn hit(&mut self, attributes: &[(&str, &str)], now: Now) -> String {
        let ask = Ask { op: Op::Hit, attributes, cost: 1, wait_max: None, name: None, session: None };
        self.ask(&ask, now).0
    }

    pub(crate) fn release(&self, session: u8, lease: u64, outcome: WorkOutcome, now: Now) -> bool {
        self.sessions
            .get(&session)
            .is_some_and(|session| self.engine.release_lease(session, lease, outcome, now))
    }

    /// Asserts the number of permits taken.
    #[track_caller]
    pub(crate) fn assert_places(&self, in_progress: u64) {
        assert_eq!(self.engine.in_progress(), in_progress);
    }
}
