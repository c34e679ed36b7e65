//! One `hit` without a socket: frame, decision, frame, as on a decision thread.

#![allow(dead_code, reason = "shared by several benchmarks, each of which uses a part")]

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{
    self, ConnectionParams, Decider, Engine, EngineAnswer, EngineOptions, HashKey, KnownSelection, Op,
    Session, WorkOutcome,
};
use tidegate::protocol::{
    self, CheckRequest, DecisionReply, DescriptorList, FrameShape, FrameSplit, RequestFrame, ShapedCheck,
    decode_request,
};
use tidegate::rules::{self, Domain, Mode};

use crate::lender::Lender;
use crate::workload::{self, Hits, Users};

pub(crate) struct Inside {
    decider: Decider,
    shape: FrameShape,
    known_selection: KnownSelection,
    replies: Vec<u8>,
}

impl Inside {
    /// With the common rules and room for all keys.
    pub(crate) fn new() -> Inside {
        let engine = engine();
        engine.install_rules(rule_set());
        Inside::of(&engine)
    }

    /// With a fleet budget for each caller, and the lender of its tokens. `terms`: fields of the fleet rule.
    pub(crate) fn in_fleet(terms: &str) -> (Inside, Lender) {
        let engine = engine();
        let lender = Lender::join(&engine);
        engine.install_rules(rules_of(&workload::rules_where(&format!(", scope: fleet, {terms}"))));
        (Inside::of(&engine), lender)
    }

    /// With three rules that count each request.
    pub(crate) fn with_three_rules() -> Inside {
        let engine = engine();
        let limit = format!("key: [user], rate: 1/h, burst: {}", workload::BURST);
        let rules = ["a", "b", "c"].map(|name| format!("- {{name: {name}, {limit}}}\n"));
        engine.install_rules(rules_of(&format!("domain: {}\nlimits:\n{}", workload::DOMAIN, rules.concat())));
        Inside::of(&engine)
    }

    fn of(engine: &Arc<Engine>) -> Inside {
        Inside {
            decider: engine.decider(),
            shape: FrameShape::default(),
            known_selection: KnownSelection::default(),
            replies: Vec::with_capacity(4096),
        }
    }

    /// With a key for each of `callers` callers.
    pub(crate) fn filled(mut self, callers: u32, now: Now) -> Inside {
        let mut hits = Hits::new(Users::InOrder(0));
        for _ in 0..callers {
            self.answer(hits.next(), now);
        }
        self
    }

    /// Answers one frame; the reply replaces the previous one.
    #[inline(never)]
    pub(crate) fn answer(&mut self, frame: &[u8], now: Now) -> &[u8] {
        let mut descriptors = DescriptorList::new();
        let FrameSplit::Frame { payload, .. } = protocol::split_frame(frame) else { panic!("a whole frame") };
        if self.shape.is_outdated() {
            self.shape.learn(payload);
            self.known_selection = KnownSelection::default();
        }
        let shaped = self.shape.read(payload, &mut descriptors);
        let decoded = shaped.ok_or_else(|| decode_request(payload, &mut descriptors));
        let request = match &decoded {
            Ok(check) => asked_again(check, &descriptors, &self.known_selection),
            Err(Ok(RequestFrame::Check(Op::Hit, judge))) => asked(judge, &descriptors),
            _ => panic!("a HIT"),
        };
        let EngineAnswer::Decided(decision) = self.decider.decide(&request, now) else {
            panic!("a conflict")
        };
        self.replies.clear();
        protocol::encode_decision(&mut self.replies, &said(request.id, &decision));
        &self.replies
    }

    /// Decides without decoding and encoding.
    #[inline(never)]
    pub(crate) fn decide(&mut self, attributes: &[(&str, &str)], now: Now) -> engine::Verdict {
        let descriptors = engine::Descriptors::from_attributes(attributes);
        let request = engine::Request::new(Op::Hit, workload::DOMAIN, descriptors);
        let EngineAnswer::Decided(decision) = self.decider.decide(&request, now) else {
            panic!("a conflict")
        };
        decision.verdict
    }
}

/// Acquires and releases leases under a concurrency limit, without a socket.
pub(crate) struct Work {
    engine: Arc<Engine>,
    decider: Decider,
    session: Session,
}

impl Work {
    pub(crate) fn new(now: Now) -> Work {
        let engine = engine();
        let rules = "concurrency: [{name: at-once, key: [user], max: 8}]";
        engine.install_rules(rules_of(&format!("domain: {}\n{rules}\n", workload::DOMAIN)));
        let opening =
            ConnectionParams { name: None, user: 1, pool: "web", slots: 8, connection: 1, pid: None };
        let Ok(session) = engine.open_session(&opening, now) else { panic!("a session") };
        Work { decider: engine.decider(), engine, session }
    }

    /// Acquires a lease.
    #[inline(never)]
    pub(crate) fn begin(&mut self, user: &str, now: Now) -> u64 {
        let attributes = [("user", user)];
        let descriptors = engine::Descriptors::from_attributes(&attributes);
        let request = engine::Request {
            session: Some(&self.session),
            ..engine::Request::new(Op::Acquire, workload::DOMAIN, descriptors)
        };
        let EngineAnswer::Decided(decision) = self.decider.decide(&request, now) else {
            panic!("a conflict")
        };
        let Some(lease) = decision.lease else { panic!("it is granted") };
        lease
    }

    #[inline(never)]
    pub(crate) fn end(&self, lease: u64, now: Now) {
        assert!(self.engine.release_lease(&self.session, lease, WorkOutcome::Ok, now), "it is held");
    }
}

/// The common rules, read as by the daemon.
pub(crate) fn rule_set() -> Vec<Arc<Domain>> {
    rules_of(&workload::rules())
}

fn rules_of(yaml: &str) -> Vec<Arc<Domain>> {
    let loaded = rules::read_text("benchmark.yaml", yaml);
    assert!(!loaded.has_errors(), "the benchmark's own rules: {:?}", loaded.problems);
    loaded.domains
}

fn engine() -> Arc<Engine> {
    let options = EngineOptions {
        // Fixed, so that runs are repeatable.
        hash_key: HashKey::from_bytes([7; 16]),
        mode: Mode::Enforce,
        memory_bytes_max: 1 << 30,
    };
    Arc::new(Engine::new(options))
}

/// As [`asked`], of a request of the known shape.
fn asked_again<'a>(
    check: &ShapedCheck<'a>,
    descriptors: &'a DescriptorList<'a>,
    known_selection: &'a KnownSelection,
) -> engine::Request<'a> {
    let of_engine = engine::Descriptors { attributes: descriptors.attributes(), ends: descriptors.ends() };
    engine::Request {
        id: check.id,
        cost: engine::Cost::Requests(check.cost),
        known_selection: Some(known_selection),
        ..engine::Request::new(check.op, check.domain, of_engine)
    }
}

fn asked<'a>(judge: &CheckRequest<'a>, descriptors: &'a DescriptorList<'a>) -> engine::Request<'a> {
    let protocol::CostField::Requests(cost) = judge.cost else { panic!("a cost in requests") };
    let of_engine = engine::Descriptors { attributes: descriptors.attributes(), ends: descriptors.ends() };
    engine::Request {
        id: judge.id,
        cost: engine::Cost::Requests(u32::try_from(cost).unwrap_or(u32::MAX)),
        lists_all_limits: judge.options.all,
        priority: judge.priority,
        wait_max: judge.options.max_wait_us.map(Micros),
        ..engine::Request::new(Op::Hit, judge.domain, of_engine)
    }
}

fn said<'d>(id: u64, decision: &engine::Decision<'d>) -> DecisionReply<'d> {
    let binding = decision.binding;
    DecisionReply {
        rule: binding.map(|binding| &*binding.rule.name),
        limit: binding.map(|binding| binding.level.limit),
        window_us: binding.map(|binding| binding.level.window.0),
        remaining: binding.map(|binding| binding.level.remaining),
        reset_us: binding.map(|binding| binding.level.reset.0),
        retry_us: decision.retry_after.map(|retry| retry.0),
        help: binding.and_then(|binding| binding.rule.help.as_deref()),
        ..DecisionReply::new(id, decision.verdict)
    }
}
