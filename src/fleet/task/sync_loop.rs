//! The loop of the sync task: sends due commands and applies replies.

use super::servers::{Arrival, Servers};
use super::{LEAVE_MAX, SyncPlan};
use crate::clock::{Clock, Micros, Now, Timestamp};
use crate::engine::Engine;
use crate::fleet::command::ScriptCommand;
use crate::fleet::counters::{FleetCounters, FleetView};
use crate::fleet::heartbeat::Heartbeat;
use crate::fleet::link::{NodeId, RedisLink};
use crate::fleet::member::HostMember;
use crate::fleet::remote_checks::WaitingRequest;
use crate::fleet::reply::ScriptReply;
use crate::fleet::reserve::Reserves;
use crate::fleet::rng::drawn;
use crate::fleet::sync::{BUCKETS, SyncOptions};
use crate::terms::without_number;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, info, warn};

pub(super) struct SyncLoop {
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    plan: SyncPlan,
    counters: Arc<FleetCounters>,
    member: HostMember,
    waiting: mpsc::Receiver<WaitingRequest>,
    reserves: Reserves,
    /// When the rules were last checked for a reserve, and the result.
    looked: Timestamp,
    keeps_reserve: bool,
    pause: Duration,
    ticked: Timestamp,
    view: FleetView,
    outage: Option<Timestamp>,
    /// When storing the identity and the versions was last tried, and whether they are stored.
    kept_at: Timestamp,
    is_kept: Arc<AtomicBool>,
    published: Timestamp,
    /// Notified once it is known whether Redis answers.
    contact: Option<SyncSender<()>>,
}

impl SyncLoop {
    pub(super) fn new(
        engine: Arc<Engine>,
        clock: Arc<Clock>,
        plan: SyncPlan,
        (counters, waiting): (Arc<FleetCounters>, mpsc::Receiver<WaitingRequest>),
        contact: SyncSender<()>,
    ) -> SyncLoop {
        let identity = &plan.identity;
        let many = plan.link.cluster || plan.link.urls.len() > 1;
        let options = SyncOptions {
            host: identity.host,
            buckets: if many { BUCKETS_SPREAD } else { BUCKETS },
            // Hosts that start together differ.
            seed: u64::from_le_bytes(drawn()),
        };
        let mut member = HostMember::new(Arc::clone(&engine), Arc::clone(&plan.status), options);
        member.expect(identity.hosts, clock.now().at);
        if plan.versions.as_ref().is_some_and(|stored| !member.sync.versions.restore(stored)) {
            info!(
                "the stored versions of rules are damaged: earlier numbers of a rule may hold until it is reloaded"
            );
        }
        SyncLoop {
            member,
            waiting,
            engine,
            clock,
            plan,
            counters,
            reserves: Reserves::default(),
            looked: Timestamp::ORIGIN,
            keeps_reserve: false,
            pause: PAUSE_SHORT,
            ticked: Timestamp::ORIGIN,
            view: FleetView::new(),
            published: Timestamp::ORIGIN,
            outage: None,
            kept_at: Timestamp::ORIGIN,
            is_kept: Arc::default(),
            contact: Some(contact),
        }
    }

    /// Runs until `stop`. May be called again after a panic, with new connections.
    pub(super) async fn run(&mut self, link: Arc<RedisLink>, stop: &mut oneshot::Receiver<()>) {
        let now = self.clock.now();
        let mut servers = Servers::new(link, self.plan.link.cluster, now.at);
        self.member.forget_commands(now.at);
        let mut tick = interval(PAUSE_SHORT);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_needed = self.is_needed();
            if !is_needed {
                self.publish_view(&servers, self.clock.now());
                tick.reset_after(IDLE);
            }
            if self.contact.is_some()
                && (!is_needed || self.plan.status.is_redis_reachable() || !servers.faults().is_empty())
                && let Some(contact) = self.contact.take()
            {
                // Nothing may wait for it any more.
                let _ = contact.try_send(());
            }
            tokio::select! {
                biased;
                _ = &mut *stop => break,
                Some(request) = self.waiting.recv() => self.start_checks(request, &mut servers),
                Some(arrival) = servers.arrivals.recv() => self.apply_arrival(arrival, &mut servers),
                _ = tick.tick() => if is_needed {
                    self.tick(&mut servers);
                    tick.reset_after(self.pause);
                }
            }
        }
        // Tokens not returned in time expire.
        let is_all_confirmed = timeout(LEAVE_MAX, self.leave(&mut servers)).await.unwrap_or(false);
        // For operators who miss tokens.
        let expired = self.member.sync.counts.expired;
        match (self.member.has_budgets(), is_all_confirmed) {
            (false, _) => {}
            (true, true) => info!(expired, "borrowed tokens were returned"),
            (true, false) => {
                info!(expired, "Redis did not answer at the end: borrowed tokens expire there");
            }
        }
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

    fn tick(&mut self, servers: &mut Servers) {
        let now = self.clock.now();
        // Most iterations have nothing to send.
        if now.at.since(self.ticked) < CHECK_EVERY && self.member.is_quiet(now.at) {
            return;
        }
        self.ticked = now.at;
        let timeout = self.member.sync.timeout();
        let is_urgent = self.keeps_reserve && self.reserves.is_urgent(&self.engine, now.at);
        servers.look(timeout, now.at);
        if is_urgent {
            servers.hasten_reports(now.at);
        }
        let due = servers.due(now.at);
        self.relink(servers, now);
        for server in due {
            let command = match servers.bucket_instead_of_heartbeat(server) {
                Some(bucket) => self.member.sync.command(bucket, Vec::new(), now.at),
                None => ScriptCommand::Heartbeat(self.heartbeat(servers.keeps_pools(server), now)),
            };
            servers.send_to(server, vec![command], now.at);
        }
        let mut commands = Vec::new();
        self.member.ask_versions(&mut commands);
        self.member.tick(now, &mut commands);
        let is_waited_for = self.member.remote_checks.has_commands();
        self.pause = pause(commands.iter().map(ScriptCommand::cells).sum(), is_waited_for);
        servers.send(commands, now.at);
        if now.at.since(self.published) >= PUBLISH_EVERY {
            self.publish_view(servers, now);
        }
    }

    fn heartbeat(&mut self, keeps_pools: bool, now: Now) -> Heartbeat {
        let (seq, pools) =
            if keeps_pools { self.reserves.report(&self.engine, now.at) } else { (0, Vec::new()) };
        let (host, epoch) = (self.member.sync.host, self.plan.identity.epoch);
        let rules = self.member.sync.versions.digest;
        Heartbeat { host, epoch, seq, pools, secret: self.plan.secret, rules }
    }

    /// Sends the remote checks of all pending requests that have arrived by now, in one write.
    fn start_checks(&mut self, first: WaitingRequest, servers: &mut Servers) {
        let now = self.clock.now();
        let mut commands = Vec::new();
        let mut next = Some(first);
        while let Some(request) = next {
            self.member.start_check(request, now, &mut commands);
            next = if commands.len() < CHECKS_AT_ONCE { self.waiting.try_recv().ok() } else { None };
        }
        self.member.tend_permits(now, &mut commands);
        servers.send(commands, now.at);
    }

    /// Applies a change of whether Redis is reachable.
    fn relink(&mut self, servers: &Servers, now: Now) {
        let is_reachable = servers.are_reachable();
        if !self.member.set_reachable(is_reachable, now.at) {
            return;
        }
        let hosts = self.plan.status.hosts();
        let outage = self.outage.take();
        if !is_reachable {
            self.view.outages += 1;
            self.outage = Some(now.at);
        }
        match (is_reachable, outage.map(|since| Micros::from(now.at.since(since)))) {
            (true, Some(after)) => {
                info!(hosts, %after, "Redis answers again: budgets are shared with the other hosts");
            }
            (true, None) => info!(hosts, "budgets are shared with the other hosts"),
            (false, _) => {
                let why = servers.faults();
                let why = if why.is_empty() { "no reply in time" } else { &why };
                let fault = if servers.refuse() { "refuses commands" } else { "does not answer" };
                warn!(hosts, why, "Redis {fault}: fleet rules follow `on_redis_down` until it runs commands");
            }
        }
        self.publish_view(servers, now);
    }

    /// Sends the final commands. Returns whether Redis has confirmed all of them.
    async fn leave(&mut self, servers: &mut Servers) -> bool {
        loop {
            let now = self.clock.now();
            let mut commands = Vec::new();
            if !self.member.leave(now, &mut commands) {
                return self.plan.status.is_redis_reachable();
            }
            servers.send(commands, now.at);
            tokio::select! {
                Some(arrival) = servers.arrivals.recv() => self.apply_arrival(arrival, servers),
                () = sleep(PAUSE_SHORT) => {}
            }
        }
    }

    fn apply_arrival(&mut self, arrival: Arrival, servers: &mut Servers) {
        let now = self.clock.now();
        let Arrival { node, command, reply } = arrival;
        let decoded = reply.map(|bytes| ScriptReply::decode(&command, &bytes));
        match decoded {
            Ok(Ok((reply, clamped))) => {
                self.view.clamped += u64::from(clamped);
                servers.record_reply(node, now.at);
                if servers.are_reachable() {
                    self.counters.record_reply(now.at);
                }
                self.answered(&command, reply, servers, now);
                self.relink(servers, now);
            }
            Ok(Err(fault)) => {
                self.view.undecodable += 1;
                debug!(%fault, "Redis sent an invalid reply: the command counts as unanswered");
                self.failed((node, &command), servers, now);
            }
            Err(error) => {
                servers.record_error(node, error);
                self.failed((node, &command), servers, now);
            }
        }
    }

    fn answered(&mut self, command: &ScriptCommand, reply: ScriptReply, servers: &mut Servers, now: Now) {
        match (command, reply) {
            (ScriptCommand::Heartbeat(heartbeat), ScriptReply::Heartbeat(reply)) => {
                self.reserves.apply_reply(heartbeat, &reply, &self.engine);
                if reply.is_name_taken && heartbeat.host == self.member.sync.host {
                    self.rename();
                }
                self.member.apply_heartbeat(&reply, now.at);
                self.view.alive = reply.hosts;
                let unlike = reply.hosts.saturating_sub(reply.same_secret);
                if unlike > 0 && self.view.unlike == 0 {
                    warn!(
                        hosts = unlike,
                        secret = %self.plan.secret,
                        "some hosts have ANOTHER FLEET SECRET, or an older version: this host shares no budget with the hosts of \
                         another secret. help: give all hosts the same file in `fleet_secret_files`"
                    );
                }
                self.view.unlike = unlike;
                self.view.other_rules = reply.hosts.saturating_sub(reply.same_rules);
                let hosts = self.plan.status.counted();
                let is_due =
                    !self.is_kept.load(Ordering::Relaxed) && now.at.since(self.kept_at) >= KEEP_AGAIN;
                let has_new_versions = std::mem::take(&mut self.member.sync.versions.is_changed);
                if self.plan.identity.hosts != hosts || has_new_versions || is_due {
                    self.plan.identity.hosts = hosts;
                    self.kept_at = now.at;
                    self.keep();
                }
            }
            (command, reply) => {
                let mut commands = Vec::new();
                self.member.answered(command, reply, now, &mut commands);
                servers.send(commands, now.at);
            }
        }
    }

    fn failed(&mut self, (node, command): (NodeId, &ScriptCommand), servers: &mut Servers, now: Now) {
        match command {
            ScriptCommand::Heartbeat(heartbeat) => {
                self.reserves.failed(heartbeat);
                servers.heartbeat_failed(node, now.at);
            }
            command => self.member.failed(command, now.at),
        }
    }

    fn publish_view(&mut self, servers: &Servers, now: Now) {
        let is_needed = self.member.has_budgets() || self.keeps_reserve;
        let sync = &self.member.sync;
        let view = &mut self.view;
        view.cells_per_second = sync.tallies(now.at).map(|(_, counters)| counters.cells_per_second).sum();
        view.host = sync.host;
        view.is_needed = is_needed;
        view.secret = self.plan.secret;
        view.is_linked = self.plan.status.is_redis_reachable();
        view.hosts = self.plan.status.hosts();
        view.counted = self.plan.status.counted();
        view.round_trip = sync.round_trip.took;
        view.counts = sync.counts;
        view.overrides = *self.counters.overrides.lock();
        view.remote_checks = self.member.remote_checks.counts;
        view.is_too_slow = view.is_linked && !self.plan.status.answers_in_time();
        view.keys = sync.keys() + self.member.permits.keys();
        view.rules = self.member.counters(now.at);
        (view.nodes, view.errors) = (servers.nodes(), servers.link.failures());
        self.published = now.at;
        self.counters.tell(view.clone());
    }

    /// Takes the new name after a later daemon has used this host's name.
    fn rename(&mut self) {
        warn!(
            "another daemon has this host's name, as happens when a state directory is copied: this one takes a new one"
        );
        self.member.sync.host = drawn();
        self.plan.identity = self.plan.identity.renamed(self.member.sync.host, &self.plan.marks);
        self.keep();
    }

    /// Stores the identity on a thread that may block on the disk.
    fn keep(&self) {
        let Some(keep) = self.plan.keep.clone() else { return };
        let (identity, versions) = (self.plan.identity.to_bytes(), self.member.sync.versions.to_bytes());
        let is_kept = Arc::clone(&self.is_kept);
        let keeping = std::thread::Builder::new().name("sync-keep".into()).spawn(move || {
            let kept = keep(&identity, &versions);
            is_kept.store(kept.is_ok(), Ordering::Relaxed);
            if let Err(error) = kept {
                let help = "see whether the disk is full, and remove what stands in place of these files";
                let error = without_number(&error);
                warn!(error, help, "`fleet-identity` and `fleet-versions` cannot be stored: a restart may count as another host, and \
                      not bring back earlier numbers of a rule");
            }
        });
        if let Err(error) = keeping {
            debug!(%error, "the identity of this host and the versions of its rules are not kept: no thread can be had");
        }
    }
}

/// Returns the pause after a tick that sent commands for `cells` cells. Under load it is longer, as ticks every 2 ms took
/// half of the task's time by themselves. A pending request keeps it short, since ticks enforce its deadline.
fn pause(cells: usize, is_waited_for: bool) -> Duration {
    if cells >= MUCH && !is_waited_for { PAUSE_LONG } else { PAUSE_SHORT }
}

/// The delay of a starting burst and of keys that need a sync; the simulation uses the same.
const PAUSE_SHORT: Duration = Duration::from_millis(2);

/// Less than the time that held tokens cover until a reply, and half of the margin that the simulation adds.
const PAUSE_LONG: Duration = Duration::from_millis(8);

/// The cells of a tick after which the pause is long: from 4 000 a second on, until they are fewer than 1 000.
const MUCH: usize = 8;

/// How often to check for shared budgets.
const IDLE: Duration = Duration::from_millis(500);

/// How often to check connections, heartbeats, versions and overrides while no key is due.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// How often to try again to store the identity.
const KEEP_AGAIN: Duration = Duration::from_secs(30);

const PUBLISH_EVERY: Duration = Duration::from_millis(250);

/// Cell buckets if several servers share them.
const BUCKETS_SPREAD: u16 = 256;

/// The most remote checks in one write.
const CHECKS_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    #[test]
    fn pauses_longer_after_many_cells_unless_a_request_waits() {
        let pauses = [(7, false), (8, false), (8, true)].map(|(cells, waits)| super::pause(cells, waits));
        assert_eq!(pauses, [super::PAUSE_SHORT, super::PAUSE_LONG, super::PAUSE_SHORT]);
    }
}
