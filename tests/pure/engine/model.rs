//! The engine against a slow reference that follows the design: for random rules and traces, every number of
//! every reply must agree. A difference prints the rules, the trace and the seed.

mod limit;
mod reference;
mod spec;

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::engine::{
    Amount, Cost, Decider, Decision, Descriptors, Engine, EngineAnswer, Op, Request, Session, Verdict,
};

use super::bench::{Bench, charge_of};
use super::engines::ROOM;
use reference::{About, NAMES, Reference, Reply};
use spec::{Event, Pause, Spec, Step};

/// The engine under these rules.
struct Subject {
    engine: Arc<Engine>,
    decider: Decider,
    /// Its pool has room for elastic requests.
    session: Session,
    has_room: bool,
    utc: i64,
}

impl Subject {
    fn new(specs: &[Spec], utc: i64) -> Subject {
        let limits: String = specs.iter().zip(NAMES).map(|(spec, name)| spec.text(name)).collect();
        let (bench, session) = Bench::with_session(&format!("{limits}{ROOM}"), 10);
        let Bench { engine, decider } = bench;
        Subject { engine, decider, session, has_room: false, utc }
    }

    fn now(&self, at: u64) -> Now {
        Now { at: Timestamp::from_nanos(at), utc_offset_nanos: self.utc }
    }

    fn decide(
        &mut self,
        about: About,
        peek: bool,
        requests: u32,
        tokens: Option<u32>,
        wait_max: Option<u64>,
    ) -> Reply {
        let attributes = [("u", about.user), ("p", about.p)];
        let units: Vec<(&str, u32)> =
            [("requests", requests)].into_iter().chain(tokens.map(|tokens| ("tokens", tokens))).collect();
        let request = Request {
            cost: if tokens.is_some() { Cost::Units(&units) } else { Cost::Requests(requests) },
            wait_max: wait_max.map(Micros),
            lists_all_limits: true,
            session: self.has_room.then_some(&self.session),
            ..Request::new(
                if peek { Op::Peek } else { Op::Hit },
                "api",
                Descriptors::from_attributes(&attributes),
            )
        };
        let now = self.now(about.at);
        let EngineAnswer::Decided(decision) = self.decider.decide(&request, now) else {
            panic!("a conflict")
        };
        said(&decision)
    }

    fn charge(&mut self, about: About, requests: i64, tokens: Option<i64>) {
        let attributes = [("u", about.user), ("p", about.p)];
        let units: Vec<(&str, i64)> =
            [("requests", requests)].into_iter().chain(tokens.map(|tokens| ("tokens", tokens))).collect();
        let amount = if tokens.is_some() { Amount::Units(&units) } else { Amount::Requests(requests) };
        let now = self.now(about.at);
        self.decider.charge(&charge_of(&attributes, amount), now).unwrap();
    }
}

fn said(decision: &Decision<'_>) -> Reply {
    Reply {
        verdict: match decision.verdict {
            Verdict::Allow => "allow",
            Verdict::Limit => "limit",
            Verdict::Wait => "wait",
            Verdict::Deny => "deny",
            Verdict::Shed => "shed",
        },
        rule: decision
            .binding
            .map(|view| (view.rule.name.to_string(), view.level.remaining, view.level.limit)),
        retry: decision.retry_after.map(|retry| retry.0),
        notes: decision.notes().map(|(kind, rule)| (kind.name(), rule.to_owned())).collect(),
        all: decision
            .limits()
            .map(|limit| {
                let view = limit.view;
                let level = view.level;
                (view.rule.name.to_string(), level.limit, level.window.0, level.remaining, level.reset.0)
            })
            .collect(),
    }
}

/// Plays a trace to both.
fn play(specs: &[Spec], start: u64, utc: u64, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut subject = Subject::new(specs, i64::try_from(utc).unwrap());
    let mut reference = Reference::new(specs.to_vec(), utc);
    let (mut at, mut last_retry) = (start, 0);
    for (number, step) in steps.iter().enumerate() {
        at += match step.pause {
            Pause::Nanos(nanos) => nanos,
            Pause::Retry(less) => (last_retry * 1_000_u64).saturating_sub(less * 1_000),
        };
        let about = About { at, user: step.user, p: step.p };
        match step.event {
            Event::Room(room) => {
                (subject.has_room, reference.room) = (room, room);
            }
            Event::Tick => subject.engine.sweep(subject.now(at)),
            Event::Charge { requests, tokens } => {
                if reference.charge(about, requests, tokens).is_none() {
                    return Ok(());
                }
                subject.charge(about, requests, tokens);
            }
            Event::Ask { peek, requests, tokens, wait_max } => {
                let expected = reference.decide(about, peek, requests, tokens, wait_max);
                let seen = subject.decide(about, peek, requests, tokens, wait_max);
                prop_assert_eq!(&seen, &expected, "step {} at {}: {:?}", number, at, step);
                let Some(retry) = seen.retry.filter(|_| seen.verdict == "limit") else { continue };
                last_retry = retry;
                // The retry-after is exact: the request is allowed then, and not a microsecond sooner.
                for sooner in [0, 1] {
                    let then = About { at: at + (retry - sooner) * 1_000, ..about };
                    let seen = subject.decide(then, true, requests, tokens, wait_max);
                    prop_assert!(
                        (seen.verdict == "limit") == (sooner == 1),
                        "step {number} at {at}: {step:?}: {seen:?} {sooner} µs before its time"
                    );
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::rng::cases(150))]

    #[test]
    fn engine_matches_reference_model(
        specs in spec::specs(),
        start in 0..100_000_000_000_u64,
        utc in prop_oneof![Just(0_u64), 0..2_000_000_000_000_000_000_u64],
        steps in spec::steps(80),
    ) {
        play(&specs, start, utc, &steps).map_err(|error| {
            let text: String = specs.iter().zip(NAMES).map(|(spec, name)| spec.text(name)).collect();
            TestCaseError::fail(format!("{text}{error}"))
        })?;
    }
}
