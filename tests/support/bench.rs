//! An engine with rules from YAML that decides tables of requests in virtual time.

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{
    Amount, Charge, ConnectionParams, Cost, Decider, Decision, Descriptors, Engine, EngineAnswer,
    EngineOptions, IdempotencyKey, Op, Request, Session, Verdict, WorkOutcome,
};
use tidegate::rules::Mode;

use super::engines::{domains, options};

pub(crate) struct Bench {
    pub(crate) engine: Arc<Engine>,
    pub(crate) decider: Decider,
}

/// One request of a table. `attributes` have the form `user=u1 plan=free`.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) op: Op,
    pub(crate) attributes: &'a str,
    pub(crate) cost: u32,
    pub(crate) wait_max: Option<u64>,
    pub(crate) repeat: Option<IdempotencyKey<'a>>,
    pub(crate) id: u64,
    pub(crate) priority: Option<&'a str>,
    pub(crate) queued: Option<u64>,
    pub(crate) lists_all_limits: bool,
}

/// The reply in one line, and its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) line: String,
    pub(crate) lease: Option<u64>,
    pub(crate) retry: Option<u64>,
}

impl<'a> Ask<'a> {
    pub(crate) fn hit(attributes: &'a str, cost: u32) -> Ask<'a> {
        Ask {
            op: Op::Hit,
            attributes,
            cost,
            wait_max: None,
            repeat: None,
            id: 1,
            priority: None,
            queued: None,
            lists_all_limits: false,
        }
    }

    pub(crate) fn acquire(attributes: &'a str) -> Ask<'a> {
        Ask { op: Op::Acquire, ..Ask::hit(attributes, 1) }
    }
}

/// The name of a request of user 1.
pub(crate) fn named(name: &[u8]) -> IdempotencyKey<'_> {
    IdempotencyKey { session: b"s", user: 1, name }
}

impl Bench {
    /// With rules as in [`install`](Bench::install).
    pub(crate) fn new(rules: &str) -> Bench {
        Bench::of(Mode::Enforce, rules)
    }

    pub(crate) fn of(mode: Mode, rules: &str) -> Bench {
        let bench = Bench::with(Arc::new(Engine::new(EngineOptions { mode, ..options() })));
        bench.install(rules);
        bench
    }

    pub(crate) fn with(engine: Arc<Engine>) -> Bench {
        Bench { decider: engine.decider(), engine }
    }

    /// With a session of this number of slots.
    pub(crate) fn with_session(rules: &str, slots: u32) -> (Bench, Session) {
        let bench = Bench::new(rules);
        let session = bench.session(1, slots, at(0));
        (bench, session)
    }

    /// Installs limits of the domain `api`, other sections of it, or whole files, at the origin of time.
    pub(crate) fn install(&self, rules: &str) {
        self.install_at(rules, at(0));
    }

    pub(crate) fn install_at(&self, rules: &str, now: Now) {
        let text = match rules.trim_start() {
            text if text.starts_with("domain:") => rules.to_owned(),
            text if text.starts_with('-') => format!("domain: api\nlimits:\n{rules}"),
            _ => format!("domain: api\n{rules}"),
        };
        let parts = text.split("---\n").flat_map(domains);
        drop(self.engine.install_rules_at(parts.collect::<Vec<_>>(), now.at));
    }

    /// Opens a session of the pool `web`; 0 is no name.
    pub(crate) fn session(&self, name: u8, slots: u32, now: Now) -> Session {
        let name = (name > 0).then_some([name; 16]);
        let opening = ConnectionParams { name, user: 1, pool: "web", slots, connection: 1, pid: None };
        self.engine.open_session(&opening, now).unwrap()
    }

    pub(crate) fn ask_by(&mut self, session: &Session, now: Now, ask: Ask<'_>) -> Answer {
        self.decide(Some(session), now, ask, |decision| shown(decision, false))
    }

    pub(crate) fn acquire(&mut self, session: &Session, now: Now, attributes: &str) -> Answer {
        self.ask_by(session, now, Ask::acquire(attributes))
    }

    pub(crate) fn release(&self, session: &Session, lease: Option<u64>, now: Now) -> bool {
        self.engine.release_lease(session, lease.unwrap(), WorkOutcome::Ok, now)
    }

    /// Checks a table of hits: microseconds, attributes, cost, expected answer.
    #[track_caller]
    pub(crate) fn check(&mut self, table: &[(u64, &str, u32, &str)]) {
        for (micros, attributes, cost, expected) in table {
            let seen = self.ask(*micros, Ask::hit(attributes, *cost));
            assert_eq!(seen, *expected, "at {micros} µs: {attributes} × {cost}");
        }
    }

    pub(crate) fn peek(&mut self, micros: u64, attributes: &str, cost: u32) -> String {
        self.ask(micros, Ask { op: Op::Peek, ..Ask::hit(attributes, cost) })
    }

    /// Returns `allow rule remaining/limit` or `limit rule remaining/limit retry 5` (or `never`), with notes.
    pub(crate) fn ask(&mut self, micros: u64, ask: Ask<'_>) -> String {
        self.decide(None, at(micros), ask, |decision| shown(decision, true)).line
    }

    /// Decides; `line` describes the decision.
    pub(crate) fn decide(
        &mut self,
        session: Option<&Session>,
        now: Now,
        ask: Ask<'_>,
        line: impl Fn(&Decision<'_>) -> String,
    ) -> Answer {
        let attributes = pairs(ask.attributes);
        let request = Request {
            cost: Cost::Requests(ask.cost),
            wait_max: ask.wait_max.map(Micros),
            idempotency_key: ask.repeat,
            session,
            id: ask.id,
            priority: ask.priority,
            queued: ask.queued.map(Micros),
            lists_all_limits: ask.lists_all_limits,
            ..Request::new(ask.op, "api", Descriptors::from_attributes(&attributes))
        };
        let decision = match self.decider.decide(&request, now) {
            EngineAnswer::Decided(decision) => decision,
            EngineAnswer::Conflict => return Answer { line: "conflict".into(), lease: None, retry: None },
            EngineAnswer::TooManyLeases => return Answer { line: "quota".into(), lease: None, retry: None },
            EngineAnswer::RemoteCheck(_) => return Answer { line: "ask".into(), lease: None, retry: None },
        };
        let granted = matches!(decision.verdict, Verdict::Allow | Verdict::Wait);
        assert!(granted || decision.lease.is_none(), "a lease without a grant: {decision:?}");
        Answer {
            line: line(&decision),
            lease: decision.lease,
            retry: decision.retry_after.map(|retry| retry.0),
        }
    }

    pub(crate) fn charge(&mut self, micros: u64, attributes: &str, amount: i64) -> bool {
        let attributes = pairs(attributes);
        let charge = charge_of(&attributes, Amount::Requests(amount));
        self.decider.charge(&charge, at(micros)).unwrap()
    }
}

/// Unix time is 0 at the origin of the engine's clock.
pub(crate) fn at(micros: u64) -> Now {
    Now::at_nanos(micros * 1_000)
}

/// Seconds after the start.
pub(crate) fn s(seconds: u64) -> Now {
    at(seconds * S)
}

/// A charge of a trusted user.
pub(crate) fn charge_of<'a>(attributes: &'a [(&'a str, &'a str)], amount: Amount<'a>) -> Charge<'a> {
    let descriptors = Descriptors::from_attributes(attributes);
    Charge { domain: "api", descriptors, amount, idempotency_key: None, refund_of: None, trusted: true }
}

pub(crate) fn pairs(text: &str) -> Vec<(&str, &str)> {
    text.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect()
}

/// `verdict rule remaining/limit`, perhaps the retry time, and the notes.
pub(crate) fn shown(decision: &Decision<'_>, has_retry: bool) -> String {
    let mut text = format!("{:?}", decision.verdict).to_lowercase();
    if let Some(rule) = decision.rule_name() {
        text += &format!(" {rule}");
    }
    if let Some(view) = decision.binding {
        text += &format!(" {}/{}", view.level.remaining, view.level.limit);
    }
    match (decision.verdict, decision.retry_after) {
        (Verdict::Allow, _) => {}
        _ if !has_retry => {}
        (_, Some(retry)) => text += &format!(" after {}", retry.0),
        (_, None) => text += " never",
    }
    for (kind, rule) in decision.notes() {
        text += &format!(" [{} {rule}]", kind.name());
    }
    text
}

pub(crate) const S: u64 = 1_000_000;
