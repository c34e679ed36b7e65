//! An engine with rules from YAML that decides tables of requests in virtual time.

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{
    Amount, Charge, ChargeError, ConnectionParams, Cost, Decider, Decision, Descriptors, Engine,
    EngineAnswer, EngineOptions, IdempotencyKey, Op, RefundBy, Request, Session, Verdict,
};
use tidegate::rules::{Mode, read_text};

use super::engines::options;

pub(crate) struct Bench {
    pub(crate) engine: Arc<Engine>,
    decider: Decider,
}

/// One request of a table. `attributes` have the form `user=u1 plan=free`.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) op: Op,
    pub(crate) attributes: &'a str,
    pub(crate) cost: u32,
    pub(crate) wait_max: Option<u64>,
    pub(crate) repeat: Option<IdempotencyKey<'a>>,
}

impl<'a> Ask<'a> {
    pub(crate) fn hit(attributes: &'a str, cost: u32) -> Ask<'a> {
        Ask { op: Op::Hit, attributes, cost, wait_max: None, repeat: None }
    }
}

impl Bench {
    /// With a list of limits for the domain `api`.
    pub(crate) fn new(limits: &str) -> Bench {
        Bench::of(Mode::Enforce, &format!("domain: api\nlimits:\n{limits}"))
    }

    /// With a whole rules file, in this mode.
    pub(crate) fn of(mode: Mode, text: &str) -> Bench {
        let engine = Arc::new(Engine::new(EngineOptions { mode, ..options() }));
        let mut bench = Bench { decider: engine.decider(), engine };
        bench.install(text);
        bench
    }

    pub(crate) fn reload(&mut self, limits: &str) {
        self.install(&format!("domain: api\nlimits:\n{limits}"));
    }

    fn install(&mut self, text: &str) {
        let loaded = read_text("rules.yaml", text);
        assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
        self.engine.install_rules(loaded.domains);
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
        let attributes = pairs(ask.attributes);
        let request = Request {
            cost: Cost::Requests(ask.cost),
            wait_max: ask.wait_max.map(Micros),
            idempotency_key: ask.repeat,
            ..Request::new(ask.op, "api", Descriptors::from_attributes(&attributes))
        };
        match self.decider.decide(&request, at(micros)) {
            EngineAnswer::Decided(decision) => shown(&decision),
            EngineAnswer::Conflict => "conflict".to_owned(),
            EngineAnswer::TooManyLeases => "quota".to_owned(),
            EngineAnswer::RemoteCheck(_) => "ask".to_owned(),
        }
    }

    pub(crate) fn charge(&mut self, micros: u64, attributes: &str, amount: i64) -> bool {
        let attributes = pairs(attributes);
        let charge = charge_of(&attributes, Amount::Requests(amount));
        self.decider.charge(&charge, at(micros)).unwrap()
    }

    /// Charges as an untrusted user of the domain.
    pub(crate) fn charge_as(
        &mut self,
        micros: u64,
        attributes: &str,
        amount: Amount<'_>,
        repeat: Option<IdempotencyKey<'_>>,
        of: Option<RefundBy<'_>>,
    ) -> Result<bool, ChargeError> {
        let attributes = pairs(attributes);
        let charge = Charge {
            idempotency_key: repeat,
            refund_of: of,
            trusted: false,
            ..charge_of(&attributes, amount)
        };
        self.decider.charge(&charge, at(micros))
    }

    /// A session of this user without a name or slots.
    pub(crate) fn session(&self, user: u32) -> Session {
        let opening = ConnectionParams { name: None, user, pool: "web", slots: 0, connection: 1, pid: None };
        self.engine.open_session(&opening, at(0)).unwrap()
    }

    /// Acquires a lease for a cost in units.
    pub(crate) fn acquire(
        &mut self,
        micros: u64,
        attributes: &str,
        cost: Cost<'_>,
        session: &Session,
        repeat: Option<IdempotencyKey<'_>>,
    ) -> Option<u64> {
        let attributes = pairs(attributes);
        let session = Some(session);
        let request = Request {
            cost,
            session,
            idempotency_key: repeat,
            ..Request::new(Op::Acquire, "api", Descriptors::from_attributes(&attributes))
        };
        match self.decider.decide(&request, at(micros)) {
            EngineAnswer::Decided(decision) => decision.lease,
            _ => None,
        }
    }

    /// Decides a cost that was clamped to the maximum.
    pub(crate) fn oversized(
        &mut self,
        op: Op,
        domain: &str,
        attributes: &str,
        session: Option<&Session>,
    ) -> String {
        let attributes = pairs(attributes);
        let request = Request {
            cost: Cost::Requests(u32::MAX),
            oversized: true,
            session,
            ..Request::new(op, domain, Descriptors::from_attributes(&attributes))
        };
        match self.decider.decide(&request, at(0)) {
            EngineAnswer::Decided(decision) => shown(&decision),
            other => format!("{other:?}"),
        }
    }
}

/// Unix time is 0 at the origin of the engine's clock.
pub(crate) fn at(micros: u64) -> Now {
    Now::at_nanos(micros * 1_000)
}

/// A charge of a trusted user.
pub(crate) fn charge_of<'a>(attributes: &'a [(&'a str, &'a str)], amount: Amount<'a>) -> Charge<'a> {
    let descriptors = Descriptors::from_attributes(attributes);
    Charge { domain: "api", descriptors, amount, idempotency_key: None, refund_of: None, trusted: true }
}

fn pairs(text: &str) -> Vec<(&str, &str)> {
    text.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect()
}

fn shown(decision: &Decision<'_>) -> String {
    let mut text = match decision.verdict {
        Verdict::Allow => "allow".to_owned(),
        Verdict::Limit => "limit".to_owned(),
        Verdict::Wait => "wait".to_owned(),
        Verdict::Deny => "deny".to_owned(),
        Verdict::Shed => format!("shed {}", decision.shedder.unwrap_or_default()),
    };
    if let Some(view) = decision.binding {
        text += &format!(" {} {}/{}", view.rule.name, view.level.remaining, view.level.limit);
    }
    if let Some(listed) = decision.listed {
        text += &format!(" {}", listed.name);
    }
    match (decision.verdict, decision.retry_after) {
        (Verdict::Allow, _) => {}
        (_, Some(retry)) => text += &format!(" after {}", retry.0),
        (_, None) => text += " never",
    }
    for (kind, rule) in decision.notes() {
        text += &format!(" [{} {rule}]", kind.name());
    }
    text
}

pub(crate) const MS: u64 = 1_000;
pub(crate) const S: u64 = 1_000_000;
