//! One `hit` without a socket: a frame in, a decision, a frame out, as a decision thread does it.

#![allow(dead_code, reason = "shared by several benchmarks, each of which uses a part")]

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{self, Answer, Decider, Engine, HashKey, Op, Options};
use tidegate::protocol::{self, Decision, Descriptors, Judge, Request, Split};
use tidegate::rules::{self, Mode, RuleSet};

use crate::workload::{self, Hits, Users};

/// The decision thread's part of the daemon.
pub(crate) struct Inside {
    decider: Decider,
    replies: Vec<u8>,
}

impl Inside {
    /// With the rules of every benchmark and room for all keys.
    pub(crate) fn new() -> Inside {
        let options = Options {
            // Fixed, so that two runs do the same.
            hash_key: HashKey::from_bytes([7; 16]),
            mode: Mode::Enforce,
            memory_bytes_max: 1 << 30,
        };
        let engine = Arc::new(Engine::new(options));
        engine.install(rule_set());
        Inside { decider: engine.decider(), replies: Vec::with_capacity(4096) }
    }

    /// With a key for each of so many callers in the table.
    pub(crate) fn filled(callers: u32, now: Now) -> Inside {
        let mut inside = Inside::new();
        let mut hits = Hits::new(Users::InOrder(0));
        for _ in 0..callers {
            inside.answer(hits.next(), now);
        }
        inside
    }

    /// Answers one frame; the reply takes the place of the one before.
    #[inline(never)]
    pub(crate) fn answer(&mut self, frame: &[u8], now: Now) -> &[u8] {
        let mut descriptors = Descriptors::new();
        let Split::Frame { payload, .. } = protocol::split(frame) else { panic!("a whole frame") };
        let Ok(Request::Hit(judge)) = protocol::decode_request(payload, &mut descriptors) else {
            panic!("a HIT")
        };
        let Answer::Decided(decision) = self.decider.decide(&asked(&judge, &descriptors), now) else {
            panic!("a conflict")
        };
        self.replies.clear();
        protocol::encode_decision(&mut self.replies, &said(judge.id, &decision));
        &self.replies
    }

    /// Decides alone: the request is read and the reply is not written.
    #[inline(never)]
    pub(crate) fn decide(&mut self, attributes: &[(&str, &str)], now: Now) -> engine::Verdict {
        let descriptors = engine::Descriptors::one(attributes);
        let request = engine::Request::new(Op::Hit, workload::DOMAIN, descriptors);
        let Answer::Decided(decision) = self.decider.decide(&request, now) else { panic!("a conflict") };
        decision.verdict
    }
}

/// The rules of every benchmark, read as the daemon reads them.
pub(crate) fn rule_set() -> RuleSet {
    let loaded = rules::read_text("benchmark.yaml", &workload::rules());
    assert!(!loaded.has_errors(), "the benchmark's own rules: {:?}", loaded.problems);
    RuleSet::new(loaded.domains)
}

fn asked<'a>(judge: &Judge<'a>, descriptors: &'a Descriptors<'a>) -> engine::Request<'a> {
    let protocol::Cost::Requests(cost) = judge.cost else { panic!("a cost in requests") };
    let of_engine = engine::Descriptors { attributes: descriptors.attributes(), ends: descriptors.ends() };
    engine::Request {
        cost: engine::Cost::Requests(cost),
        all: judge.options.all,
        priority: judge.priority,
        wait_max: judge.options.max_wait_us.map(Micros),
        ..engine::Request::new(Op::Hit, judge.domain, of_engine)
    }
}

fn said<'d>(id: u64, decision: &engine::Decision<'d>) -> Decision<'d> {
    let verdict = match decision.verdict {
        engine::Verdict::Allow => protocol::Verdict::Allow,
        engine::Verdict::Limit => protocol::Verdict::Limit,
        engine::Verdict::Wait => protocol::Verdict::Wait,
        engine::Verdict::Deny => protocol::Verdict::Deny,
        engine::Verdict::Shed => protocol::Verdict::Shed,
    };
    let binding = decision.binding;
    Decision {
        rule: binding.map(|binding| &*binding.rule.name),
        limit: binding.map(|binding| binding.level.limit),
        window_us: binding.map(|binding| binding.level.window.0),
        remaining: binding.map(|binding| binding.level.remaining),
        reset_us: binding.map(|binding| binding.level.reset.0),
        retry_us: decision.retry.map(|retry| retry.0),
        help: binding.and_then(|binding| binding.rule.help.as_deref()),
        ..Decision::new(id, verdict)
    }
}
