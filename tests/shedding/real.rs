//! The real engine behind the plant, under rules as they are written. One session for each worker, as a server of
//! processes has them.

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{
    ConnectionParams, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, HashKey, Mode, Op, Request,
    Session, Verdict, WorkOutcome,
};
use tidegate::rules::read_text;

use crate::plan::{CALLERS, PRIORITIES, SECOND};
use crate::quota::QuotaCheck;

/// One request at the moment when it is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) worker: u32,
    /// A place in [`PRIORITIES`](crate::plan::PRIORITIES).
    pub(crate) priority: usize,
    pub(crate) caller: u32,
    pub(crate) queued_nanos: u64,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Grant {
        lease: u64,
    },
    /// 503: this host is too busy, as this part of it says.
    Shed {
        by: By,
    },
    /// 429: this caller is over his own limit.
    Limit,
}

/// The part that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Fleet,
    Brake,
    Workers,
    QueueAge,
}

impl By {
    /// The name of its rule.
    pub(crate) fn rule(self) -> &'static str {
        match self {
            By::Fleet => "web/fleet",
            By::Brake => "web/brake",
            By::Workers => "web/workers",
            By::QueueAge => "web/queue_age",
        }
    }
}

/// What the engine shows of the pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    /// The share of the slots that was busy in the last 8 s.
    pub(crate) utilization: Option<f64>,
    /// s.
    pub(crate) severity: f64,
    pub(crate) braking: bool,
    /// Leases of critical work, and of all other.
    pub(crate) leases: [u32; 2],
}

/// What an engine is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) slots: u32,
    pub(crate) parts: Parts,
    /// Whether s leaks away between 0.7 and 0.8.
    pub(crate) leaks: bool,
    /// Whether one caller has a limit of his own.
    pub(crate) quota: bool,
}

/// Which parts are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// Nothing: what the plant does by itself.
    None,
    /// The slow loop alone.
    Workers,
    /// The slow loop and the brake.
    WorkersBrake,
    /// The slow loop and the queue age.
    WorkersAge,
    /// All three.
    All,
    /// The reserve alone.
    Reserve,
}

impl Parts {
    pub(crate) fn workers(self) -> bool {
        !matches!(self, Parts::None | Parts::Reserve)
    }

    pub(crate) fn brake(self) -> bool {
        matches!(self, Parts::WorkersBrake | Parts::All)
    }

    pub(crate) fn reserve(self) -> bool {
        self == Parts::Reserve
    }

    pub(crate) fn queue_age(self) -> bool {
        matches!(self, Parts::WorkersAge | Parts::All)
    }
}

pub(crate) struct Real {
    engine: Arc<Engine>,
    decider: Decider,
    sessions: Vec<Session>,
    /// The lease of each worker, and when its time last began.
    held: Vec<Option<(u64, u64)>>,
    callers: Vec<String>,
    asked: u64,
    quota: Option<QuotaCheck>,
}

impl Real {
    pub(crate) fn new(setting: &Setting) -> Real {
        let engine = engine(&rules(setting));
        let sessions: Vec<_> = (0..setting.slots).map(|_| open(&engine)).collect();
        let held = vec![None; sessions.len()];
        let callers = (0..=CALLERS).map(|caller| format!("u{caller}")).collect();
        let decider = engine.decider();
        let quota = setting.quota.then(QuotaCheck::default);
        Real { engine, decider, sessions, held, callers, asked: 0, quota }
    }

    /// A worker has taken a request from the backlog: may it start?
    pub(crate) fn ask(&mut self, asked: &Asked, at: u64) -> Said {
        self.asked += 1;
        let attributes = [("user", &*self.callers[asked.caller as usize])];
        let request = Request {
            priority: Some(PRIORITIES[asked.priority]),
            session: Some(&self.sessions[asked.worker as usize]),
            id: self.asked,
            queued: Some(Micros(asked.queued_nanos.div_ceil(1_000))),
            ..Request::new(Op::Acquire, "api", Descriptors::from_attributes(&attributes))
        };
        let EngineAnswer::Decided(decision) = self.decider.decide(&request, Now::at_nanos(at)) else {
            panic!("a worker holds one lease at most, and no name comes twice")
        };
        let said = match decision.verdict {
            Verdict::Allow => {
                let lease = decision.lease.unwrap();
                self.held[asked.worker as usize] = Some((lease, at));
                Said::Grant { lease }
            }
            Verdict::Limit => Said::Limit,
            Verdict::Shed => {
                let rule = decision.rule_name();
                let by = [By::Fleet, By::Brake, By::Workers, By::QueueAge];
                let by = by.into_iter().find(|by| Some(by.rule()) == rule);
                Said::Shed { by: by.unwrap_or_else(|| panic!("shed by {rule:?}")) }
            }
            verdict => panic!("{verdict:?}"),
        };
        if let Some(quota) = &mut self.quota {
            quota.check(asked, said, decision.retry_after, at);
        }
        said
    }

    /// The work under a lease has ended.
    pub(crate) fn release(&mut self, worker: u32, lease: u64, at: u64) {
        self.held[worker as usize] = None;
        let session = &self.sessions[worker as usize];
        assert!(
            self.engine.release_lease(session, lease, WorkOutcome::Ok, Now::at_nanos(at)),
            "lease {lease}"
        );
    }

    /// 250 ms have passed; so many connections wait to be accepted.
    pub(crate) fn tick(&mut self, queue: u32, at: u64) -> View {
        let now = Now::at_nanos(at);
        // Long work is rare, but there is some that takes longer than a lease lasts.
        for (session, held) in self.sessions.iter().zip(&mut self.held) {
            if let Some((lease, since)) = held.as_mut().filter(|(_, since)| at - since >= RENEWED_EVERY) {
                *since = at;
                assert!(self.engine.renew_lease(session, *lease, now), "lease {lease}");
            }
        }
        self.engine.record_host_signal("web", "accept_queue", Some(queue), now);
        self.engine.tick(now);
        self.engine.sweep(now);
        if let Some(quota) = self.quota.as_ref().filter(|_| at.is_multiple_of(60 * SECOND)) {
            quota.check_counts(&self.engine);
        }
        let pool = self.engine.pools(now).into_iter().find(|pool| &*pool.pool == "web").unwrap();
        View {
            utilization: pool.utilization,
            severity: pool.severity,
            braking: pool.braking,
            leases: [pool.critical, pool.noncritical],
        }
    }
}

fn engine(rules: &str) -> Arc<Engine> {
    let hash_key = HashKey::from_bytes([7; 16]);
    let options = EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 64 << 20 };
    let engine = Arc::new(Engine::new(options));
    let loaded = read_text("rules.yaml", rules);
    assert!(!loaded.has_errors(), "{rules}\n{:#?}", loaded.problems);
    engine.install_rules(loaded.domains);
    engine
}

/// A process of the pool with one slot.
fn open(engine: &Engine) -> Session {
    let opening =
        ConnectionParams { name: None, user: 1_000, pool: "web", slots: 1, connection: 1, pid: None };
    engine.open_session(&opening, Now::default()).unwrap()
}

fn rules(setting: &Setting) -> String {
    let parts = setting.parts;
    let mut text = "domain: api\npriorities: [critical, post, get, test]\n".to_owned();
    if setting.quota {
        text += "limits:\n- {name: per-caller, match: {user: u0}, key: [user], rate: 5/s, burst: 10}\n";
    }
    text += "shed:\n- pool: web\n  slots: 1\n  signals: {accept_queue: {listen: \":8000\"}}\n";
    if parts.workers() {
        text += if setting.leaks { "  workers: {leak: 1/1800}\n" } else { "  workers: {leak: 0/1}\n" };
    }
    if parts.brake() {
        text += "  brake: {bands: [70%, 80%, 90%]}\n";
    }
    if parts.queue_age() {
        text += "  queue_age: {others: 500ms, critical: 2500ms}\n";
    }
    if parts.reserve() {
        text += "  fleet: {reserve: 20%, for: critical}\n";
    }
    text
}

/// A third of what a lease lasts, as clients do.
const RENEWED_EVERY: u64 = 20 * SECOND;
