//! An engine with some rules, asked about one caller after the other in virtual time.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{Answer, Decider, Descriptors, Engine, HashKey, Mode, Op, Options, Request, Verdict};
use tidegate::rules::{RuleSet, read_text};

use crate::workload::{DOMAIN, USERS, UserName, Users};

/// An engine with some rules.
pub(crate) struct Limits {
    pub(crate) engine: Arc<Engine>,
    decider: Decider,
    nanos: u64,
    refused: u64,
}

impl Limits {
    /// With these rules in force and no key.
    pub(crate) fn new(rules: &str, memory_bytes_max: usize) -> Limits {
        let loaded = read_text("benchmark.yaml", rules);
        assert!(!loaded.has_errors(), "the benchmark's own rules: {:?}", loaded.problems.first());
        Limits::of(RuleSet::new(loaded.domains), memory_bytes_max)
    }

    pub(crate) fn of(rules: RuleSet, memory_bytes_max: usize) -> Limits {
        // Fixed, so that two runs do the same.
        let hash_key = HashKey::from_bytes([7; 16]);
        let engine = Arc::new(Engine::new(Options { hash_key, mode: Mode::Enforce, memory_bytes_max }));
        engine.install(rules);
        let decider = engine.decider();
        Limits { engine, decider, nanos: START_NANOS, refused: 0 }
    }

    /// Gives each of the callers so many hits, spread over the hour before the start, each caller's at other times.
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

    /// The same, the callers one after the other at each of the times: whatever grows does so among its like.
    pub(crate) fn filled_in_rounds(mut self, keys: u32, hits: u32) -> Limits {
        let apart = HOUR_NANOS / u64::from(hits + 1);
        for hit in 0..u64::from(hits) {
            for user in 0..keys {
                self.decide(&UserName::new(user), START_NANOS - HOUR_NANOS + hit * apart + u64::from(user));
            }
        }
        self
    }

    /// Decides so many times. The clock runs at the pace at which each of the million callers comes 75 times an hour.
    pub(crate) fn run(&mut self, users: &mut Users, decisions: u32) {
        let mut nanos = self.nanos;
        for _ in 0..decisions {
            nanos += STEP_NANOS;
            self.decide(&UserName::new(users.draw()), nanos);
        }
        self.nanos = nanos;
    }

    /// One decision about a caller, at the next moment.
    #[inline]
    pub(crate) fn next(&mut self, user: u32) {
        self.nanos += STEP_NANOS;
        self.decide(&UserName::new(user), self.nanos);
    }

    /// The next moment.
    pub(crate) fn later(&mut self) -> Now {
        self.nanos += STEP_NANOS;
        Now::at_nanos(self.nanos)
    }

    pub(crate) fn decider(&mut self) -> &mut Decider {
        &mut self.decider
    }

    #[inline]
    fn decide(&mut self, user: &UserName, nanos: u64) {
        let attributes = [("user", user.as_str()), ("path", "/v1/charges")];
        let request = Request::new(Op::Hit, DOMAIN, Descriptors::one(&attributes));
        let Answer::Decided(decision) = self.decider.decide(&request, Now::at_nanos(nanos)) else {
            panic!("a conflict")
        };
        self.refused += u64::from(!matches!(decision.verdict, Verdict::Allow | Verdict::Wait));
    }

    /// What is measured is one kind of answer: of a log that is three quarters full a few are refused by chance.
    pub(crate) fn assert_few_refused(&self) {
        let decided = self.engine.totals().allowed + self.engine.totals().limited;
        assert!(self.refused * 50 <= decided, "{} of {decided} were refused", self.refused);
    }
}

/// Room for all keys, whatever the algorithm.
pub(crate) const MEMORY_BYTES: usize = 4 << 30;

/// Every window that is measured is of an hour.
const HOUR_NANOS: u64 = 3_600_000_000_000;

const START_NANOS: u64 = 100 * HOUR_NANOS;

/// How often each caller comes within an hour.
pub(crate) const HITS: u32 = 75;

const STEP_NANOS: u64 = HOUR_NANOS / (HITS as u64 * USERS as u64);

/// Spreads the callers' times.
const PRIME: u64 = 1_000_000_007;
