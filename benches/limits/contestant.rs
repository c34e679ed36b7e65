//! An engine with some rules that decides requests of one caller after the other in virtual time.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{
    Decider, Descriptors, Engine, EngineAnswer, EngineOptions, HashKey, Mode, Op, Request, Verdict,
};
use tidegate::rules::{Domain, read_text};

use crate::lender::Lender;
use crate::workload::{DOMAIN, USERS, UserName, Users};

pub(crate) struct Limits {
    pub(crate) engine: Arc<Engine>,
    decider: Decider,
    nanos: u64,
    step: u64,
    refused: u64,
}

impl Limits {
    /// With these rules and no keys.
    pub(crate) fn new(rules: &str, memory_bytes_max: usize) -> Limits {
        let loaded = read_text("benchmark.yaml", rules);
        assert!(!loaded.has_errors(), "the benchmark's own rules: {:?}", loaded.problems.first());
        Limits::of(loaded.domains, memory_bytes_max)
    }

    pub(crate) fn of(rules: Vec<Arc<Domain>>, memory_bytes_max: usize) -> Limits {
        let engine = engine(memory_bytes_max);
        engine.install_rules(rules);
        Limits::by(engine)
    }

    /// Like `new`, in a fleet; also returns the lender of its tokens.
    pub(crate) fn in_fleet(rules: &str, memory_bytes_max: usize) -> (Limits, Lender) {
        let engine = engine(memory_bytes_max);
        let lender = Lender::join(&engine);
        let loaded = read_text("benchmark.yaml", rules);
        assert!(!loaded.has_errors(), "the benchmark's own rules: {:?}", loaded.problems.first());
        engine.install_rules(loaded.domains);
        (Limits::by(engine).in_a_hurry(), lender)
    }

    fn by(engine: Arc<Engine>) -> Limits {
        let decider = engine.decider();
        Limits { engine, decider, nanos: START_NANOS, step: STEP_NANOS, refused: 0 }
    }

    /// Another decider of the same engine.
    pub(crate) fn beside(&self) -> Limits {
        Limits::by(Arc::clone(&self.engine))
    }

    /// With such short steps that borrowed tokens do not expire during the run.
    pub(crate) fn in_a_hurry(self) -> Limits {
        Limits { step: HURRY_NANOS, ..self }
    }

    /// With a state for each of `keys` callers.
    pub(crate) fn with_keys(mut self, keys: u32) -> Limits {
        (0..keys).for_each(|user| self.next(user));
        self
    }

    /// Gives each caller `hits` requests within the hour before the start, each caller's at other times.
    pub(crate) fn filled(mut self, hits: u32) -> Limits {
        let apart = HOUR_NANOS / u64::from(hits + 1);
        for user in 0..USERS {
            let first = START_NANOS - HOUR_NANOS + u64::from(user) * PRIME % apart;
            for hit in 0..u64::from(hits) {
                self.decide(&UserName::new(user), first + hit * apart);
            }
        }
        self
    }

    /// Like `filled`, with all callers at each time, so that allocations of one size come together.
    pub(crate) fn filled_in_rounds(mut self, keys: u32, hits: u32) -> Limits {
        let apart = HOUR_NANOS / u64::from(hits + 1);
        for hit in 0..u64::from(hits) {
            for user in 0..keys {
                self.decide(&UserName::new(user), START_NANOS - HOUR_NANOS + hit * apart + u64::from(user));
            }
        }
        self
    }

    /// Makes `decisions` decisions. Each of the million callers comes 75 times per hour of virtual time.
    pub(crate) fn run(&mut self, users: &mut Users, decisions: u32) {
        let mut nanos = self.nanos;
        for _ in 0..decisions {
            nanos += self.step;
            self.decide(&UserName::new(users.draw()), nanos);
        }
        self.nanos = nanos;
    }

    /// Decides one request at the next time.
    #[inline]
    pub(crate) fn next(&mut self, user: u32) {
        self.nanos += self.step;
        self.decide(&UserName::new(user), self.nanos);
    }

    pub(crate) fn later(&mut self) -> Now {
        self.nanos += self.step;
        Now::at_nanos(self.nanos)
    }

    pub(crate) fn decider(&mut self) -> &mut Decider {
        &mut self.decider
    }

    #[inline]
    fn decide(&mut self, user: &UserName, nanos: u64) {
        let attributes = [("user", user.as_str()), ("path", "/v1/charges")];
        let request = Request::new(Op::Hit, DOMAIN, Descriptors::from_attributes(&attributes));
        let EngineAnswer::Decided(decision) = self.decider.decide(&request, Now::at_nanos(nanos)) else {
            panic!("a conflict")
        };
        self.refused += u64::from(!matches!(decision.verdict, Verdict::Allow | Verdict::Wait));
    }

    /// Asserts that only one kind of answer was measured: a log that is 3/4 full refuses a few by chance.
    pub(crate) fn assert_few_refused(&self) {
        let decided = self.engine.totals().verdicts.allow + self.engine.totals().verdicts.limit;
        assert!(self.refused * 50 <= decided, "{} of {decided} were refused", self.refused);
    }
}

fn engine(memory_bytes_max: usize) -> Arc<Engine> {
    // Fixed, so that runs are repeatable.
    let hash_key = HashKey::from_bytes([7; 16]);
    Arc::new(Engine::new(EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max }))
}

/// Lends tokens to each of `keys` callers: each is refused once, and calls.
pub(crate) fn with_tokens((mut limits, lender): (Limits, Lender), keys: u32) -> Limits {
    for user in 0..keys {
        limits.next(user);
        if user % LEND_EVERY == 0 || user + 1 == keys {
            let now = limits.later();
            lender.lend(TOKENS, now);
        }
    }
    limits.refused = 0;
    limits
}

/// Room for all keys under any algorithm.
pub(crate) const MEMORY_BYTES: usize = 4 << 30;

/// All measured windows are 1 h.
const HOUR_NANOS: u64 = 3_600_000_000_000;

const START_NANOS: u64 = 100 * HOUR_NANOS;

/// Requests of each caller per hour.
pub(crate) const HITS: u32 = 75;

const STEP_NANOS: u64 = HOUR_NANOS / (HITS as u64 * USERS as u64);

const HURRY_NANOS: u64 = 100;

/// The most calls that wait.
const LEND_EVERY: u32 = 1_000;

/// More than any caller spends.
const TOKENS: u32 = 5_000;

/// Spreads the callers' times.
const PRIME: u64 = 1_000_000_007;
