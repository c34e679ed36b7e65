//! Connects the real engine to the plant, with rules as text. Each worker has its own session, as in a
//! multi-process server.

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{
    Decider, Descriptors, Engine, EngineAnswer, Op, Request, Session, Verdict, WorkOutcome,
};

use crate::engines::{domains, open, options};
use crate::plan::{CALLERS, PRIORITIES, SECOND};
use crate::quota::QuotaCheck;

/// One request at its decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) worker: u32,
    /// An index in [`PRIORITIES`](crate::plan::PRIORITIES).
    pub(crate) priority: usize,
    pub(crate) caller: u32,
    pub(crate) queued_nanos: u64,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Grant(u64),
    /// 503: this rule of the host shed the request.
    Shed(&'static str),
    /// 429: this caller exceeds its own limit.
    Limit,
}

/// The engine's view of the pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    /// Utilization of the slots in the last 8 s.
    pub(crate) utilization: Option<f64>,
    /// s.
    pub(crate) severity: f64,
    pub(crate) braking: bool,
    /// Leases of critical requests, and of all others.
    pub(crate) leases: [u32; 2],
}

/// Settings of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) slots: u32,
    /// The names of the enabled parts, as in the rules, and `reserve`.
    pub(crate) parts: &'static str,
    /// Whether s leaks between 0.7 and 0.8.
    pub(crate) leaks: bool,
    /// Whether one caller has its own limit.
    pub(crate) quota: bool,
}

pub(crate) struct Real {
    engine: Arc<Engine>,
    decider: Decider,
    sessions: Vec<Session>,
    /// The lease of each worker, and its last renewal.
    held: Vec<Option<(u64, u64)>>,
    callers: Vec<String>,
    asked: u64,
    quota: Option<QuotaCheck>,
}

impl Real {
    pub(crate) fn new(setting: &Setting) -> Real {
        let engine = engine(&rules(setting));
        let sessions: Vec<_> = (0..setting.slots).map(|_| open(&engine, 1_000, 1, Now::default())).collect();
        let held = vec![None; sessions.len()];
        let callers = (0..=CALLERS).map(|caller| format!("u{caller}")).collect();
        let decider = engine.decider();
        let quota = setting.quota.then(QuotaCheck::default);
        Real { engine, decider, sessions, held, callers, asked: 0, quota }
    }

    /// Decides a request that a worker took from the backlog.
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
                Said::Grant(lease)
            }
            Verdict::Limit => Said::Limit,
            Verdict::Shed => {
                let rule = decision.rule_name();
                let by = SHED_RULES.into_iter().find(|by| Some(*by) == rule);
                Said::Shed(by.unwrap_or_else(|| panic!("shed by {rule:?}")))
            }
            verdict => panic!("{verdict:?}"),
        };
        if let Some(quota) = &mut self.quota {
            quota.check(asked, said, decision.retry_after, at);
        }
        said
    }

    /// Releases the lease of a completed request.
    pub(crate) fn release(&mut self, worker: u32, lease: u64, at: u64) {
        self.held[worker as usize] = None;
        let (session, now) = (&self.sessions[worker as usize], Now::at_nanos(at));
        assert!(self.engine.release_lease(session, lease, WorkOutcome::Ok, now), "lease {lease}");
    }

    /// Ticks after 250 ms with `queue` connections in the backlog.
    pub(crate) fn tick(&mut self, queue: u32, at: u64) -> View {
        let now = Now::at_nanos(at);
        // Long requests are rare, but some exceed the lifetime of a lease.
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
    let engine = Arc::new(Engine::new(options()));
    engine.install_rules(domains(rules));
    engine
}

fn rules(setting: &Setting) -> String {
    let leak = if setting.leaks { "1/1800" } else { "0/1" };
    let mut text = "domain: api\npriorities: [critical, post, get, test]\n".to_owned();
    if setting.quota {
        text += "limits:\n- {name: per-caller, match: {user: u0}, key: [user], rate: 5/s, burst: 10}\n";
    }
    text += "shed:\n- pool: web\n  slots: 1\n  signals: {accept_queue: {listen: \":8000\"}}\n";
    for (part, line) in [
        ("workers", format!("workers: {{leak: {leak}}}")),
        ("brake", "brake: {bands: [70%, 80%, 90%]}".to_owned()),
        ("queue_age", "queue_age: {others: 500ms, critical: 2500ms}".to_owned()),
        ("reserve", "fleet: {reserve: 20%, for: critical}".to_owned()),
    ] {
        if setting.parts.contains(part) {
            text += &format!("  {line}\n");
        }
    }
    text
}

/// A third of a lease's lifetime, as clients do.
const RENEWED_EVERY: u64 = 20 * SECOND;
/// Rules that shed.
const SHED_RULES: [&str; 4] = ["web/fleet", "web/brake", SLOW_LOOP, "web/queue_age"];
pub(crate) const SLOW_LOOP: &str = "web/workers";
