//! An engine under rules from YAML, and sessions with requests, in virtual time.

use std::sync::Arc;

use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::engine::{
    ConnectionParams, Cost, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, IdempotencyKey, Op,
    Request, Session, Verdict, WorkOutcome,
};
use tidegate::rules::{Mode, read_text};

use super::engines::options;

pub(crate) struct Fixture {
    pub(crate) engine: Arc<Engine>,
    pub(crate) decider: Decider,
}

/// One request. `attributes` are written `user=u1 plan=free`.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) op: Op,
    pub(crate) attributes: &'a str,
    pub(crate) id: u64,
    pub(crate) cost: u32,
    pub(crate) priority: Option<&'a str>,
    pub(crate) queued: Option<u64>,
    pub(crate) name: Option<&'a [u8]>,
}

/// The reply in one line, and the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) line: String,
    pub(crate) lease: Option<u64>,
    pub(crate) retry: Option<u64>,
}

impl<'a> Ask<'a> {
    pub(crate) fn acquire(attributes: &'a str) -> Ask<'a> {
        Ask { op: Op::Acquire, attributes, id: 1, cost: 1, priority: None, queued: None, name: None }
    }
}

impl Fixture {
    pub(crate) fn new(text: &str) -> Fixture {
        Fixture::of(Mode::Enforce, text)
    }

    pub(crate) fn of(mode: Mode, text: &str) -> Fixture {
        let engine = Arc::new(Engine::new(EngineOptions { mode, ..options() }));
        let fixture = Fixture { decider: engine.decider(), engine };
        fixture.install(text);
        fixture
    }

    pub(crate) fn install(&self, text: &str) {
        let text = format!("domain: api\n{text}");
        let loaded = read_text("rules.yaml", &text);
        assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
        self.engine.install_rules(loaded.domains);
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
        let attributes: Vec<_> =
            ask.attributes.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect();
        let request = Request {
            cost: Cost::Requests(ask.cost),
            priority: ask.priority,
            session: Some(session),
            id: ask.id,
            queued: ask.queued.map(Micros),
            idempotency_key: ask.name.map(|name| IdempotencyKey { session: b"s", user: 1, name }),
            ..Request::new(ask.op, "api", Descriptors::from_attributes(&attributes))
        };
        let decision = match self.decider.decide(&request, at) {
            EngineAnswer::Decided(decision) => decision,
            EngineAnswer::Conflict => return Answer { line: "conflict".into(), lease: None, retry: None },
            EngineAnswer::TooManyLeases => return Answer { line: "quota".into(), lease: None, retry: None },
            EngineAnswer::RemoteCheck(_) => return Answer { line: "ask".into(), lease: None, retry: None },
        };
        let mut line = format!("{:?}", decision.verdict).to_lowercase();
        if let Some(rule) = decision.rule_name() {
            line += &format!(" {rule}");
        }
        if let Some(view) = decision.binding {
            line += &format!(" {}/{}", view.level.remaining, view.level.limit);
        }
        for (kind, rule) in decision.notes() {
            line += &format!(" [{} {rule}]", kind.name());
        }
        let granted = matches!(decision.verdict, Verdict::Allow | Verdict::Wait);
        assert!(granted || decision.lease.is_none(), "a lease without a grant: {line}");
        Answer { line, lease: decision.lease, retry: decision.retry_after.map(|retry| retry.0) }
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

/// Milliseconds after the start.
pub(crate) fn ms(millis: u64) -> Now {
    Now { at: Timestamp::from_nanos(millis * 1_000_000), utc_offset_nanos: 0 }
}

/// Seconds after the start.
pub(crate) fn s(seconds: u64) -> Now {
    ms(seconds * 1_000)
}
