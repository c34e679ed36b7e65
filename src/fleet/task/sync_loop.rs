//! The loop of the sync task: sends due commands and applies replies.

mod name;
mod pause;
mod replies;
mod report;

use super::servers::{Arrival, Servers};
use super::{LEAVE_MAX, SyncPlan};
use crate::clock::{Clock, Now, Timestamp};
use crate::engine::{Engine, FleetStatus};
use crate::fleet::command::ScriptCommand;
use crate::fleet::counters::{FleetCounters, FleetView};
use crate::fleet::heartbeat::Heartbeat;
use crate::fleet::link::NodeId;
use crate::fleet::member::HostMember;
use crate::fleet::overrides::{Exchange, OverrideChange};
use crate::fleet::pending_requests::WaitingRequest;
use crate::fleet::reserve::Reserves;
use crate::fleet::rng::drawn;
use crate::fleet::sync::{BUCKETS, SyncOptions};
use pause::pause;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{info, warn};

pub(super) struct SyncLoop {
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    status: Arc<FleetStatus>,
    plan: SyncPlan,
    counters: Arc<FleetCounters>,
    member: HostMember,
    waiting: mpsc::Receiver<WaitingRequest>,
    reserves: Reserves,
    /// When the rules were last checked for a reserve, and the result.
    looked: Timestamp,
    keeps_reserve: bool,
    servers: Option<Servers>,
    pause: Duration,
    overrides: Exchange,
    changes: mpsc::Receiver<OverrideChange>,
    arrivals: mpsc::Receiver<Arrival>,
    arrives: mpsc::Sender<Arrival>,
    view: FleetView,
    /// When the view was last published, and the cells answered by then.
    published: Now,
    published_cells: u64,
}

impl SyncLoop {
    pub(super) fn new(
        engine: Arc<Engine>,
        clock: Arc<Clock>,
        status: Arc<FleetStatus>,
        plan: SyncPlan,
        (counters, changes, waiting): (
            Arc<FleetCounters>,
            mpsc::Receiver<OverrideChange>,
            mpsc::Receiver<WaitingRequest>,
        ),
    ) -> SyncLoop {
        let identity = &plan.identity;
        let many = plan.link.cluster || plan.link.urls.len() > 1;
        let options = SyncOptions {
            host: identity.host,
            buckets: if many { BUCKETS_SPREAD } else { BUCKETS },
            seed: seed(),
        };
        let (arrives, arrivals) = mpsc::channel(ARRIVALS_MAX);
        let known = engine.fleet_overrides();
        let overrides = Exchange::new(identity.host, plan.seal.clone(), &known, clock.now());
        let mut member = HostMember::new(Arc::clone(&engine), Arc::clone(&status), options);
        member.expect(identity.hosts, clock.now().at);
        SyncLoop {
            member,
            waiting,
            engine,
            clock,
            status,
            plan,
            counters,
            reserves: Reserves::default(),
            looked: Timestamp::ORIGIN,
            keeps_reserve: false,
            servers: None,
            pause: pause::SHORT,
            overrides,
            changes,
            arrivals,
            arrives,
            view: FleetView::new(),
            published: Now::default(),
            published_cells: 0,
        }
    }

    /// Runs until `stop`. May be called again after a panic; it then makes new connections.
    pub(super) async fn run(&mut self, stop: &mut oneshot::Receiver<()>) {
        self.servers = None;
        self.member.forget_commands(self.clock.now().at);
        let mut tick = interval(pause::SHORT);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.is_needed() {
                tokio::select! {
                    biased;
                    _ = &mut *stop => break,
                    Some(request) = self.waiting.recv() => self.start_checks(request),
                    Some(arrival) = self.arrivals.recv() => self.apply_arrival(arrival),
                    Some(change) = self.changes.recv() => self.overrides.change(change, self.clock.now().at),
                    _ = tick.tick() => {
                        self.tick();
                        tick.reset_after(self.pause);
                    }
                }
            } else {
                self.tick_overrides();
                tokio::select! {
                    biased;
                    _ = &mut *stop => break,
                    Some(arrival) = self.arrivals.recv() => self.apply_arrival(arrival),
                    Some(change) = self.changes.recv() => self.overrides.change(change, self.clock.now().at),
                    () = sleep(IDLE) => {}
                }
            }
        }
        // Tokens not returned in time expire.
        let is_all_confirmed = timeout(LEAVE_MAX, self.leave()).await.unwrap_or(false);
        self.log_end(is_all_confirmed);
    }

    /// Whether a shared budget or reserve exists. Without one nothing is sent, not even heartbeats.
    fn is_needed(&mut self) -> bool {
        self.member.take_budgets();
        let now = self.clock.now().at;
        if now.since(self.looked) >= IDLE {
            (self.looked, self.keeps_reserve) = (now, self.engine.has_fleet_reserve());
        }
        self.member.has_budgets() || self.keeps_reserve || !self.reserves.is_empty()
    }

    fn tick(&mut self) {
        let now = self.clock.now();
        if !self.connect(now) {
            return;
        }
        let timeout = self.member.sync().timeout();
        let due = self.servers.as_mut().map(|servers| {
            servers.look(timeout, now.at);
            servers.due(now.at)
        });
        self.relink(now);
        let due = due.into_iter().flatten();
        let mut out: Vec<(Option<NodeId>, ScriptCommand)> =
            due.map(|server| (server, ScriptCommand::Beat(self.beat(server, now)))).collect();
        let mut commands = Vec::new();
        self.member.ask_versions(&mut commands);
        self.member.tick(now, &mut commands);
        let is_waited_for = self.member.remote_checks().has_commands();
        self.pause = pause(commands.iter().map(ScriptCommand::cells).sum(), self.pause, is_waited_for);
        out.extend(commands.into_iter().map(|command| (None, command)));
        let overrides = self.ask_for_overrides(!out.is_empty(), now);
        out.extend(overrides.map(|command| (None, command)));
        self.send(out, now);
        if now.at.since(self.published.at) >= PUBLISH_EVERY {
            self.publish_view(now);
        }
    }

    /// Only syncs fleet overrides: there is no budget to share.
    fn tick_overrides(&mut self) {
        let now = self.clock.now();
        if self.connect(now) {
            let overrides = self.ask_for_overrides(false, now);
            self.send(overrides.map(|command| (None, command)).into_iter().collect(), now);
        }
        self.publish_view(now);
    }

    /// Begins to connect, once. Returns whether servers are configured.
    fn connect(&mut self, now: Now) -> bool {
        if self.servers.is_none() {
            match Servers::connect(&self.plan.link, self.arrives.clone(), seed(), now.at) {
                Ok(servers) => self.servers = Some(servers),
                // The options were checked before the thread started.
                Err(error) => warn!(%error, "no budget is shared"),
            }
        }
        self.servers.is_some()
    }

    fn ask_for_overrides(&mut self, with_others: bool, now: Now) -> Option<ScriptCommand> {
        let after_step = self.overrides.after_step(now);
        after_step.iter().for_each(|overrides| self.engine.apply_fleet_overrides(overrides));
        self.overrides.due(with_others, now).map(ScriptCommand::Overrides)
    }

    fn beat(&mut self, server: Option<NodeId>, now: Now) -> Heartbeat {
        let keeps_pools = self.servers.as_ref().is_some_and(|servers| servers.keeps_pools(server));
        let (seq, pools) =
            if keeps_pools { self.reserves.report(&self.engine, now.at) } else { (0, Vec::new()) };
        let (host, epoch) = (self.member.sync().host(), self.plan.identity.epoch);
        Heartbeat { host, epoch, seq, pools, secret: self.plan.secret }
    }

    /// Sends the remote checks of all pending requests that have arrived by now, in one write.
    fn start_checks(&mut self, first: WaitingRequest) {
        let now = self.clock.now();
        let mut commands = Vec::new();
        let mut next = Some(first);
        while let Some(request) = next {
            self.member.start_check(request, now, &mut commands);
            next = if commands.len() < CHECKS_AT_ONCE { self.waiting.try_recv().ok() } else { None };
        }
        self.member.tend_permits(now, &mut commands);
        self.send(commands.into_iter().map(|command| (None, command)).collect(), now);
    }

    fn send(&mut self, commands: Vec<(Option<NodeId>, ScriptCommand)>, now: Now) {
        if let Some(servers) = self.servers.as_mut().filter(|_| !commands.is_empty()) {
            servers.send(commands, now.at);
        }
    }

    /// Applies a change of whether Redis is reachable.
    fn relink(&mut self, now: Now) {
        let is_heard = self.servers.as_ref().is_some_and(Servers::are_heard);
        if !self.member.set_heard(is_heard, now.at) {
            return;
        }
        let hosts = self.status.hosts();
        if self.status.is_redis_reachable() {
            info!(hosts, "budgets are shared with the other hosts");
        } else {
            self.view.outages += 1;
            warn!(hosts, "Redis is not heard: rules of the fleet go by `on_redis_down` until it is");
        }
        self.publish_view(now);
    }

    /// Sends the final commands. Returns whether Redis has confirmed all of them.
    async fn leave(&mut self) -> bool {
        loop {
            let now = self.clock.now();
            let mut commands = Vec::new();
            if !self.member.leave(now, &mut commands) {
                return self.status.is_redis_reachable();
            }
            self.send(commands.into_iter().map(|command| (None, command)).collect(), now);
            tokio::select! {
                Some(arrival) = self.arrivals.recv() => self.apply_arrival(arrival),
                () = sleep(pause::SHORT) => {}
            }
        }
    }
}

/// Draws a seed, so that hosts that start together differ.
fn seed() -> u64 {
    u64::from_le_bytes(drawn())
}

/// How often to check for shared budgets.
const IDLE: Duration = Duration::from_millis(500);

const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// Cell buckets if several servers share them.
const BUCKETS_SPREAD: u16 = 256;

/// The most remote checks in one write.
const CHECKS_AT_ONCE: usize = 64;

/// The queue of replies.
const ARRIVALS_MAX: usize = 1_024;
