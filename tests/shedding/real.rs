//! The real engine behind the plant, under rules as they are written. One session for each worker, as a server of
//! processes has them.

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{
    ConnectionParams, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, HashKey, Mode, Op, PoolView,
    Request, Session, Verdict, WorkOutcome,
};
use tidegate::rules::read_text;

use crate::plan::{CALLERS, PRIORITIES, SECOND};
use crate::shedder::{Asked, By, Said, Setting, Shedder, View};

pub(crate) struct Real {
    pub(crate) engine: Arc<Engine>,
    decider: Decider,
    sessions: Vec<Session>,
    /// The lease of each worker, and when its time last began.
    held: Vec<Option<(u64, u64)>>,
    callers: Vec<String>,
    asked: u64,
    view: View,
    /// What was said with the last refusal.
    pub(crate) retry: Option<Micros>,
}

impl Real {
    pub(crate) fn new(setting: &Setting) -> Real {
        let engine = engine(&rules(setting), 7);
        let sessions: Vec<_> = (0..setting.slots).map(|_| open(&engine, 1)).collect();
        let held = vec![None; sessions.len()];
        let callers = (0..=CALLERS).map(|caller| format!("u{caller}")).collect();
        let decider = engine.decider();
        Real { engine, decider, sessions, held, callers, asked: 0, view: View::default(), retry: None }
    }
}

/// An engine under these rules, with this secret.
fn engine(rules: &str, secret: u8) -> Arc<Engine> {
    let hash_key = HashKey::from_bytes([secret; 16]);
    let options = EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 64 << 20 };
    let engine = Arc::new(Engine::new(options));
    let loaded = read_text("rules.yaml", rules);
    assert!(!loaded.has_errors(), "{rules}\n{:#?}", loaded.problems);
    engine.install_rules(loaded.domains);
    engine
}

/// A process of the pool with so many slots.
fn open(engine: &Engine, slots: u32) -> Session {
    let opening = ConnectionParams { name: None, user: 1_000, pool: "web", slots, connection: 1, pid: None };
    engine.open_session(&opening, Now::default()).unwrap()
}

/// The pool, as it is now.
fn web(engine: &Engine, at: u64) -> PoolView {
    engine.pools(Now::at_nanos(at)).into_iter().find(|pool| &*pool.pool == "web").unwrap()
}

fn rules(setting: &Setting) -> String {
    let parts = setting.parts;
    let mut text = "domain: api\npriorities: [critical, post, get, test]\n".to_owned();
    if setting.quota {
        text += "limits:\n- {name: per-caller, match: {user: u0}, key: [user], rate: 5/s, burst: 10}\n";
    }
    text += "shed:\n- pool: web\n  slots: 1\n  signals: {accept_queue: {listen: \":8000\"}}\n";
    if parts.workers() {
        text += if setting.leak > 0.0 { "  workers: {leak: 1/1800}\n" } else { "  workers: {leak: 0/1}\n" };
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

impl Shedder for Real {
    fn ask(&mut self, asked: &Asked, at: u64) -> Said {
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
        self.retry = decision.retry_after;
        match decision.verdict {
            Verdict::Allow => {
                let lease = decision.lease.unwrap();
                self.held[asked.worker as usize] = Some((lease, at));
                Said::Grant { lease }
            }
            Verdict::Limit => Said::Limit,
            Verdict::Shed => match decision.rule_name() {
                Some("web/fleet") => Said::Shed { by: By::Fleet },
                Some("web/brake") => Said::Shed { by: By::Brake },
                Some("web/workers") => Said::Shed { by: By::Workers },
                Some("web/queue_age") => Said::Shed { by: By::QueueAge },
                other => panic!("shed by {other:?}"),
            },
            verdict => panic!("{verdict:?}"),
        }
    }

    fn release(&mut self, worker: u32, lease: u64, at: u64) {
        self.held[worker as usize] = None;
        let session = &self.sessions[worker as usize];
        assert!(
            self.engine.release_lease(session, lease, WorkOutcome::Ok, Now::at_nanos(at)),
            "lease {lease}"
        );
    }

    fn tick(&mut self, queue: u32, at: u64) {
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
        let pool = web(&self.engine, at);
        self.view = View {
            utilization: pool.utilization,
            severity: pool.severity,
            braking: pool.braking,
            leases: [pool.critical, pool.noncritical],
        };
    }

    fn view(&self) -> View {
        self.view
    }
}

/// A third of what a lease lasts, as clients do.
const RENEWED_EVERY: u64 = 20 * SECOND;
