//! This host as a member of the fleet, without I/O: commands come out, replies go in, and time is an argument.
//! The sync task of the daemon and the simulation both run this code.

use super::command::ScriptCommand;
use super::heartbeat::HeartbeatReply;
use super::host_count::HostCount;
use super::permits::PermitSync;
use super::remote_checks::{PendingChecks, WaitingRequest};
use super::reply::ScriptReply;
use super::sync::{Sync, SyncOptions};
use super::tally::BudgetCounters;
use crate::clock::{Now, Timestamp};
use crate::engine::{Engine, FleetStatus};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

pub struct HostMember {
    engine: Arc<Engine>,
    status: Arc<FleetStatus>,
    pub sync: Sync,
    pub permits: PermitSync,
    pub remote_checks: PendingChecks,
    host_count: HostCount,
    /// When the loss of the data of Redis was last logged.
    loss_logged: Option<Timestamp>,
}

impl HostMember {
    /// Makes a member that has sent nothing yet, with the engine's rules.
    pub fn new(engine: Arc<Engine>, status: Arc<FleetStatus>, options: SyncOptions) -> HostMember {
        let mut member = HostMember {
            sync: Sync::new(Arc::clone(&engine), options, Arc::clone(&status)),
            permits: PermitSync::new(Arc::clone(&engine), options.buckets, options.seed.rotate_left(31)),
            remote_checks: PendingChecks::new(
                Arc::clone(&engine),
                Arc::clone(&status),
                options.buckets,
                options.seed.rotate_left(17),
            ),
            engine,
            status,
            host_count: HostCount::default(),
            loss_logged: None,
        };
        member.take_budgets();
        member
    }

    /// Sets the host count that holds until Redis reports another.
    pub fn expect(&mut self, hosts: u32, now: Timestamp) {
        self.status.set_hosts(hosts);
        self.host_count.update(hosts, now);
    }

    /// Adopts the budgets of the rules in force if they changed.
    pub fn take_budgets(&mut self) {
        let (budgets, limits) = (self.engine.fleet_budgets(), self.engine.fleet_concurrency_limits());
        if !Arc::ptr_eq(&budgets, &self.sync.budgets) {
            self.sync.set_budgets(budgets);
        }
        if !Arc::ptr_eq(&limits, &self.permits.limits) {
            self.permits.set_limits(limits);
        }
    }

    pub fn has_budgets(&self) -> bool {
        !self.sync.budgets.is_empty() || !self.permits.limits.is_empty()
    }

    /// The counters of every rule that was synced or whose version is known, by its number.
    pub fn counters(&self, now: Timestamp) -> HashMap<u64, BudgetCounters> {
        let synced = self.sync.tallies(now).chain(self.permits.tallies.each(now));
        let mut counters: HashMap<u64, BudgetCounters> = synced.collect();
        for (rule, version) in self.sync.versions.all() {
            let counters = counters.entry(rule).or_default();
            counters.is_outdated = counters.version > version;
            counters.version = counters.version.max(version);
        }
        counters
    }

    /// Asks for unknown versions of rules.
    pub fn ask_versions(&mut self, out: &mut Vec<ScriptCommand>) {
        if self.status.is_redis_reachable() {
            let due = std::iter::from_fn(|| self.sync.versions.next()).take(VERSIONS_AT_ONCE);
            out.extend(due.map(ScriptCommand::Version));
        }
    }

    /// Sets whether Redis answers. Returns whether that is a change.
    pub fn set_reachable(&mut self, is_reachable: bool, now: Timestamp) -> bool {
        if is_reachable == self.status.is_redis_reachable() {
            return false;
        }
        self.sync.set_linked(is_reachable, now);
        if is_reachable {
            self.permits.renew_soon(now);
            self.remote_checks.linked();
            // After an outage Redis may be another server or have lost its data.
            self.sync.versions.resend();
        }
        true
    }

    /// Whether a tick would make no command now and end no remote check.
    pub fn is_quiet(&self, now: Timestamp) -> bool {
        let is_due = || self.sync.next() <= now || self.permits.next() <= now;
        !self.engine.has_due_keys()
            && self.remote_checks.is_idle()
            && !(self.status.is_redis_reachable() && is_due())
    }

    pub fn tick(&mut self, now: Now, out: &mut Vec<ScriptCommand>) {
        self.sync.tick(now, out);
        self.remote_checks.tick(now);
        self.tend_permits(now, out);
    }

    /// Makes the commands of a remote check. Requests that wait for permits are [served](HostMember::tend_permits)
    /// after all waiting requests were taken.
    pub fn start_check(&mut self, request: WaitingRequest, now: Now, out: &mut Vec<ScriptCommand>) {
        for need in request.shortfalls.needs.iter().filter(|need| !need.is_permit) {
            self.sync.before_check(need, now, out);
        }
        self.remote_checks.start(request, &self.sync, now, out);
    }

    /// Grants permits to waiting requests, requests the missing ones from Redis, and returns idle ones.
    pub fn tend_permits(&mut self, now: Now, out: &mut Vec<ScriptCommand>) {
        self.remote_checks.tend_permits(&mut self.permits, now);
        if self.status.is_redis_reachable() {
            self.permits.tick(self.sync.host, now, out);
        }
    }

    /// Forgets the commands without a reply: their connections were closed.
    pub fn forget_commands(&mut self, now: Timestamp) {
        self.sync.forget_commands(now);
        self.permits.forget_commands(now);
        self.remote_checks.forget_commands();
        self.sync.versions.resend();
    }

    /// Handles the reply to a command about budgets or cells; ignores others.
    pub fn answered(
        &mut self,
        command: &ScriptCommand,
        reply: ScriptReply,
        now: Now,
        out: &mut Vec<ScriptCommand>,
    ) {
        let mut is_lost = false;
        match (command, reply) {
            (ScriptCommand::Sync(batch), ScriptReply::Sync(answer)) => {
                self.remote_checks.record_reply_after(now.at.since(batch.head.sent_at), now.at);
                is_lost = self.sync.answered(batch, &answer, now);
            }
            (ScriptCommand::Permits(command), ScriptReply::Permits(answer)) => {
                let took = now.at.since(command.head.sent_at);
                self.remote_checks.record_reply_after(took, now.at);
                self.sync.record_reply(took, now.at);
                self.permits.answered(command, answer, now);
                self.tend_permits(now, out);
            }
            (ScriptCommand::Exact(payment), ScriptReply::Exact(answer)) => {
                self.sync.clock.record_reply(answer.now_us, now.at);
                self.sync.record_versions(payment, &answer.results);
                self.remote_checks.answered(payment, &answer, now);
            }
            (ScriptCommand::Version(command), ScriptReply::Version(version)) => {
                self.sync.versions.answered(command, version);
            }
            _ => {}
        }
        if is_lost {
            self.sync.versions.resend();
            if self.loss_logged.is_none_or(|logged| now.at.since(logged) >= LOSS_LOGGED_EVERY) {
                self.loss_logged = Some(now.at);
                warn!(
                    "Redis HAS LOST ITS DATA: budgets start fresh. help: see whether it was flushed or restarted, evicts keys, \
                     or a replica was promoted"
                );
            }
        }
    }

    /// Takes the host count from the reply to a heartbeat.
    pub fn apply_heartbeat(&mut self, reply: &HeartbeatReply, now: Timestamp) {
        self.status.set_hosts(self.host_count.update(reply.hosts, now));
        self.sync.set_alive(reply.hosts, now);
    }

    /// Handles a command about budgets or cells whose outcome is unknown.
    pub fn failed(&mut self, command: &ScriptCommand, now: Timestamp) {
        match command {
            ScriptCommand::Sync(batch) => self.sync.failed(batch, now),
            ScriptCommand::Permits(command) => {
                self.sync.round_trip.missed(now);
                self.permits.failed(command, now);
            }
            ScriptCommand::Exact(payment) => self.remote_checks.failed(payment, now),
            ScriptCommand::Version(command) => self.sync.versions.failed(command),
            _ => {}
        }
    }

    /// Returns borrowed tokens before this host leaves. Returns whether commands are still due or unanswered.
    pub fn leave(&mut self, now: Now, out: &mut Vec<ScriptCommand>) -> bool {
        if !self.status.is_redis_reachable() {
            return false;
        }
        self.remote_checks.tick(now);
        let is_left = self.sync.leave(now, out);
        self.permits.tick(self.sync.host, now, out);
        is_left || self.permits.has_commands() || self.remote_checks.has_commands()
    }
}

/// Each bucket of cells finds the loss by itself.
const LOSS_LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Bounds the commands of one iteration of the sync task (about 10 ms) after many rules were loaded.
const VERSIONS_AT_ONCE: usize = 16;
