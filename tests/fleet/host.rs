//! Simulates one host: its engine, its part in the fleet and its clock.

use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{
    Cost, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, FleetStatus, HashKey, Op,
    RemoteCheckResult, Request, Shortfalls, Verdict, WorkOutcome,
};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::heartbeat::Heartbeat;
use tidegate::fleet::link_state::LinkState;
use tidegate::fleet::member::HostMember;
use tidegate::fleet::reply::ScriptReply;
use tidegate::fleet::reserve::Reserves;
use tidegate::fleet::secrets::SecretDigest;
use tidegate::fleet::sync;

use crate::engines::options;
use crate::leases::LeaseSession;
use crate::pending::Waiting;
use crate::plan::Plan;
use crate::rules::{Kind, RULE, domain};

/// A request of a tenant, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FleetRequest {
    pub(crate) tenant: u32,
    pub(crate) cost: u32,
    /// The caller's own request number.
    pub(crate) number: u64,
    /// A rule of its host refuses it too, for an additional attribute.
    pub(crate) is_held: bool,
    /// Duration of its lease.
    pub(crate) lasts_us: u64,
}

impl FleetRequest {
    pub(crate) fn new(tenant: u32) -> FleetRequest {
        FleetRequest { tenant, cost: 1, number: 0, is_held: false, lasts_us: 0 }
    }
}

/// Whether a request may start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    pub(crate) passed: bool,
    pub(crate) lease: Option<u64>,
    /// The host has more leases than permits.
    pub(crate) is_beyond_hand: bool,
}

/// Start of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Birth {
    pub(crate) number: u32,
    pub(crate) epoch: u64,
    pub(crate) secret: u8,
    pub(crate) drift_ppm: i64,
    pub(crate) us: u64,
}

pub(crate) struct Host {
    pub(crate) engine: Arc<Engine>,
    decider: Decider,
    pub(crate) member: HostMember,
    pub(crate) reserves: Reserves,
    /// `None`: it is linked all the time and sends no heartbeats.
    link: Option<LinkState>,
    pub(crate) fleet_status: Arc<FleetStatus>,
    name: [u8; 16],
    pub(crate) birth: Birth,
    /// Offset of its wall clock, ns.
    pub(crate) utc: i64,
    has_counted: bool,
    /// Another daemon uses its name.
    pub(crate) is_name_taken: bool,
    /// Unanswered commands, by a number that is never reused.
    pending: HashMap<u64, ScriptCommand>,
    /// Time of the next due tick, unless a request or reply arrives earlier.
    next: Timestamp,
    pub(crate) out: Vec<ScriptCommand>,
    tenants: Arc<[String]>,
    waiting: Waiting,
    plan: Arc<Plan>,
    leases: Option<LeaseSession>,
    /// When the next connection is open, if none is.
    opens_us: Option<u64>,
    /// The round trip when it last connected.
    pub(crate) connected_us: u64,
}

impl Host {
    pub(crate) fn new(plan: &Arc<Plan>, tenants: &Arc<[String]>, birth: Birth) -> Host {
        let Birth { number, epoch, secret, drift_ppm, us } = birth;
        let hash_key = HashKey::from_bytes([number as u8; 16]);
        let engine = Arc::new(Engine::new(EngineOptions { hash_key, ..options() }));
        let fleet_status = engine.join_fleet(HashKey::from_bytes([secret; 16]));
        engine.install_rules(vec![domain(plan)]);
        let decider = engine.decider();
        let mut name = [0; 16];
        name[..4].copy_from_slice(&(number + 1).to_le_bytes());
        let seed = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(number) << 32) ^ epoch;
        let seed = crate::random::mixed(seed);
        let options = sync::SyncOptions { host: name, buckets: plan.buckets, seed };
        let mut member = HostMember::new(Arc::clone(&engine), Arc::clone(&fleet_status), options);
        let at = local(drift_ppm, us);
        if plan.linked {
            fleet_status.set_hosts(plan.hosts);
            member.set_reachable(true, at);
        }
        let now = Now { at, utc_offset_nanos: 0 };
        let leases = (plan.kind == Kind::Permits).then(|| LeaseSession::new(&engine, tenants, now));
        Host {
            engine,
            decider,
            member,
            reserves: Reserves::default(),
            link: (!plan.linked).then(|| LinkState::new(seed, at)),
            fleet_status,
            name,
            birth,
            utc: 0,
            has_counted: plan.linked,
            is_name_taken: false,
            pending: HashMap::default(),
            next: Timestamp::ORIGIN,
            out: Vec::new(),
            tenants: Arc::clone(tenants),
            waiting: Waiting::default(),
            plan: Arc::clone(plan),
            leases,
            opens_us: None,
            connected_us: plan.round_trip_us,
        }
    }

    pub(crate) fn now(&self, us: u64) -> Now {
        Now { at: local(self.birth.drift_ppm, us), utc_offset_nanos: self.utc }
    }

    pub(crate) fn set_wall_clock(&mut self, utc: i64) {
        self.acts();
        self.utc = utc;
    }

    pub(crate) fn is_linked(&self) -> bool {
        self.fleet_status.is_redis_reachable()
    }

    /// Returns the host count by which it divides the budget.
    pub(crate) fn counts(&self) -> u32 {
        self.fleet_status.hosts()
    }

    /// Returns whether the host accepts requests: only once it knows the other hosts.
    pub(crate) fn is_up(&self) -> bool {
        self.has_counted
    }

    /// Returns the tokens that it holds of the first tenant's budget.
    pub(crate) fn held(&self, us: u64) -> u64 {
        let rule = self.engine.find_rule_name(RULE).unwrap();
        let share = self.engine.find_share(&rule, &[("tenant", "t0")], self.now(us)).unwrap().unwrap();
        share.report.map_or(0, |report| report.borrowed.into())
    }

    /// Makes the next tick due, since something happens.
    fn acts(&mut self) {
        self.next = Timestamp::ORIGIN;
    }

    /// Decides a request that does not wait.
    pub(crate) fn hit(&mut self, tenant: u32, us: u64) -> bool {
        let judged = self.judge(&FleetRequest::new(tenant), None, false, us);
        judged.expect("it does not wait").passed
    }

    /// Decides a request that may wait; returns `None` while it is pending.
    pub(crate) fn ask(&mut self, request: FleetRequest, us: u64) -> Option<Judged> {
        let judged = self.judge(&request, None, self.plan.asks(), us);
        judged.map_err(|shortfalls| self.add_pending(shortfalls, request, false, us)).ok()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the pending requests that are decided. `leaves`: whether a client closes its connection.
    pub(crate) fn answers(&mut self, us: u64, leaves: impl FnMut() -> bool) -> Vec<(FleetRequest, Judged)> {
        let mut answers = Vec::new();
        if !self.has_waiting() {
            return answers;
        }
        self.waiting.forget(leaves);
        for (pending, reply) in self.waiting.take_ready(self.now(us)) {
            let (request, shortfalls) = (pending.request, pending.shortfalls);
            let (result, may_wait) = match reply {
                Some(reply) => (RemoteCheckResult::Borrowed(reply), !pending.is_second),
                None => (RemoteCheckResult::TimedOut(&shortfalls), false),
            };
            match self.judge(&request, Some(result), may_wait, us) {
                Ok(judged) => answers.push((request, judged)),
                Err(shortfalls) => self.add_pending(shortfalls, request, true, us),
            }
        }
        answers
    }

    fn judge(
        &mut self,
        asked: &FleetRequest,
        result: Option<RemoteCheckResult<'_>>,
        may_wait: bool,
        us: u64,
    ) -> Result<Judged, Arc<Shortfalls>> {
        let now = self.now(us);
        self.acts();
        let attributes = [("tenant", self.tenants[asked.tenant as usize].as_str()), ("job", "j")];
        let attributes = if asked.is_held { &attributes[..] } else { &attributes[..1] };
        let op = if self.leases.is_some() { Op::Acquire } else { Op::Hit };
        let mut request = Request {
            may_wait,
            cost: Cost::Requests(asked.cost),
            ..Request::new(op, "api", Descriptors::from_attributes(attributes))
        };
        if let Some(leases) = &mut self.leases {
            leases.last_id += 1;
            (request.session, request.id) = (Some(&leases.session), leases.last_id);
        }
        let answer = match result {
            None => self.decider.decide(&request, now),
            Some(result) => self.decider.resume(&request, result, now),
        };
        let refused = Judged { passed: false, lease: None, is_beyond_hand: false };
        match answer {
            EngineAnswer::Decided(decision) => {
                let lease = decision.lease.filter(|_| decision.verdict == Verdict::Allow);
                Ok(Judged {
                    passed: decision.verdict == Verdict::Allow,
                    lease,
                    // Checked immediately: the next decision may change it.
                    is_beyond_hand: lease.is_some() && self.is_beyond_hand(asked.tenant, us),
                })
            }
            EngineAnswer::RemoteCheck(shortfalls) => Err(shortfalls),
            // A flash under `allow` exceeds the lease limit of a session.
            EngineAnswer::TooManyLeases => Ok(refused),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn decide(&mut self, request: &Request<'_>, us: u64) -> EngineAnswer<'_> {
        let now = self.now(us);
        self.decider.decide(request, now)
    }

    /// Parks a pending request.
    fn add_pending(&mut self, shortfalls: Arc<Shortfalls>, request: FleetRequest, is_second: bool, us: u64) {
        let now = self.now(us);
        self.waiting.add_pending((shortfalls, request, is_second), &mut self.member, now, &mut self.out);
    }

    /// Closes the connections of all waiting clients.
    pub(crate) fn close_connections(&mut self) {
        self.waiting.forget(|| true);
    }

    pub(crate) fn end_lease(&self, lease: u64, us: u64) {
        let session = &self.leases.as_ref().unwrap().session;
        assert!(self.engine.release_lease(session, lease, WorkOutcome::Ok, self.now(us)));
    }

    /// Returns whether a key had no reply for the lifetime of a hold.
    pub(crate) fn has_lapsed(&self, tenant: u32, us: u64) -> bool {
        let leases = self.leases.as_ref().unwrap();
        let counted = leases.counted.get(&leases.keys[tenant as usize]);
        counted.is_none_or(|at| self.now(us).at >= at.after(Duration::from_millis(1_900)))
    }

    /// Returns whether the permits of other hosts are unknown for a key.
    pub(crate) fn is_cut_off(&self, tenant: u32, us: u64) -> bool {
        self.has_lapsed(tenant, us) || !self.is_linked()
    }

    /// Returns whether the key has more leases than permits here.
    fn is_beyond_hand(&self, tenant: u32, us: u64) -> bool {
        let (leases, tenant) = (self.leases.as_ref().unwrap(), self.tenants[tenant as usize].as_str());
        let here = self.engine.find_permits(&leases.rule, &[("tenant", tenant)], self.now(us));
        here.unwrap().is_some_and(|here| here.in_use > here.held)
    }

    /// Returns whether a tick would change anything. A daemon ticks anyway; most ticks of a simulation would
    /// do nothing.
    pub(crate) fn is_due(&self, us: u64) -> bool {
        // Each tick checks the timeouts of pending requests.
        let is_always = self.plan.asks() || self.plan.kind == Kind::Permits;
        is_always || self.reports_pools(us) || self.now(us).at >= self.next
    }

    /// Returns whether pools are read now: as by the sync task, every 10 ms.
    fn reports_pools(&self, us: u64) -> bool {
        self.plan.kind == Kind::Reserve && us.is_multiple_of(10_000)
    }

    pub(crate) fn tick(&mut self, us: u64) {
        let now = self.now(us);
        self.tend_link(us, now);
        // The daemon leaves out this part while nothing is due.
        let (is_quiet, before) = (self.member.is_quiet(now.at), self.out.len());
        self.member.tick(now, &mut self.out);
        assert!(!is_quiet || self.out.len() == before, "a command was due");
        let timeout = self.member.sync.timeout();
        let (link, sync) = (self.link.as_ref(), self.member.sync.next());
        self.next = link.map_or(sync, |link| sync.min(link.next(self.is_connected(), timeout)));
    }

    /// Detects outages, and sends a heartbeat if one is due.
    fn tend_link(&mut self, us: u64, now: Now) {
        let is_opened = self.opens_us.take_if(|opens_us| *opens_us <= us).is_some();
        let (timeout, is_connected) = (self.member.sync.timeout(), self.is_connected());
        let is_reporting = self.reports_pools(us);
        let Some(link) = &mut self.link else { return };
        if is_opened {
            link.connected(now.at);
        }
        link.detect_outage(is_connected, timeout, now.at);
        self.member.set_reachable(link.is_linked(), now.at);
        if is_reporting && self.reserves.is_urgent(&self.engine, now.at) {
            link.hasten(now.at);
        }
        if link.accepts_heartbeat(now.at) {
            let (seq, pools) = self.reserves.report(&self.engine, now.at);
            let (host, epoch) = (self.name, self.birth.epoch);
            let secret = SecretDigest::of_secret(&[self.birth.secret]);
            self.out.push(ScriptCommand::Heartbeat(Heartbeat { host, epoch, seq, pools, secret, rules: 0 }));
        }
    }

    /// Takes the commands that are due.
    pub(crate) fn take_commands(&mut self) -> Vec<ScriptCommand> {
        std::mem::take(&mut self.out)
    }

    /// Returns the reply timeout of the link, in µs: four round trips, measured on connect, or that of the
    /// sync.
    pub(crate) fn timeout_us(&self) -> u64 {
        (self.member.sync.timeout().as_micros() as u64).max((4 * self.connected_us).min(2_000_000))
    }

    pub(crate) fn sent(&mut self, number: u64, command: ScriptCommand, us: u64) {
        let now = self.now(us);
        self.acts();
        if let Some(link) = &mut self.link {
            link.sent(now.at);
        }
        self.pending.insert(number, command);
    }

    pub(crate) fn answered(&mut self, number: u64, command: &ScriptCommand, reply: ScriptReply, us: u64) {
        let now = self.now(us);
        self.acts();
        // The connection of a command that timed out was closed.
        if self.pending.remove(&number).is_none() {
            return;
        }
        if let Some(link) = &mut self.link {
            link.record_reply(now.at);
        }
        let before = (self.member.sync.counts, self.out.len());
        match (command, reply) {
            (ScriptCommand::Heartbeat(heartbeat), ScriptReply::Heartbeat(reply)) => {
                self.member.apply_heartbeat(&reply, now.at);
                self.reserves.apply_reply(heartbeat, &reply, &self.engine);
                self.is_name_taken |= reply.is_name_taken;
            }
            (ScriptCommand::Sync(_), reply @ ScriptReply::Sync(_))
            | (ScriptCommand::Exact(_), reply @ ScriptReply::Exact(_)) => {
                self.member.answered(command, reply, now, &mut self.out);
                assert_eq!(self.out.len(), before.1, "no answer makes a host ask at once");
            }
            (ScriptCommand::Permits(permits), reply @ ScriptReply::Permits(_)) => {
                let counted = &mut self.leases.as_mut().unwrap().counted;
                for request in permits.requests.iter().filter(|request| request.is_whole) {
                    let counted = counted.entry(request.key).or_insert(permits.head.sent_at);
                    *counted = permits.head.sent_at.max(*counted);
                }
                self.member.answered(command, reply, now, &mut self.out);
            }
            (command, reply) => panic!("{reply:?} to {command:?}"),
        }
        let (counts, before) = (self.member.sync.counts, before.0);
        let batches = u64::from(matches!(command, ScriptCommand::Sync(_)));
        let counted = (counts.batches - before.batches, counts.cells - before.cells);
        assert_eq!(counted, (batches, command.cells() as u64));
        if let Some(link) = &self.link {
            self.member.set_reachable(link.is_linked(), now.at);
        }
        self.has_counted |= self.is_linked();
    }

    /// Handles the timeout of a command if it is still pending.
    pub(crate) fn timed_out(&mut self, number: u64, us: u64) {
        if let Some(command) = self.pending.remove(&number) {
            self.failed(&command, us);
        }
    }

    fn failed(&mut self, command: &ScriptCommand, us: u64) {
        let now = self.now(us);
        self.acts();
        let before = self.member.sync.counts.unanswered;
        match (command, &mut self.link) {
            (ScriptCommand::Heartbeat(heartbeat), Some(link)) => {
                link.heartbeat_failed(now.at);
                self.reserves.failed(heartbeat);
            }
            (command, _) => self.member.failed(command, now.at),
        }
        let unanswered = self.member.sync.counts.unanswered - before;
        assert_eq!(unanswered, u64::from(matches!(command, ScriptCommand::Sync(_))));
    }

    pub(crate) fn pending(&self) -> impl Iterator<Item = (&u64, &ScriptCommand)> {
        self.pending.iter()
    }

    /// Closes the connection with all pending commands, if this one has no reply yet, until another one is open.
    pub(crate) fn reconnect(&mut self, number: u64, round_trip_us: u64, us: u64) {
        if !self.pending.contains_key(&number) {
            return;
        }
        // The next connection takes a handshake and two greetings, and measures anew.
        self.connected_us = round_trip_us;
        self.opens_us = Some(us + BACKOFF_US + 3 * round_trip_us);
        let mut pending: Vec<_> = self.pending.drain().collect();
        pending.sort_unstable_by_key(|(number, _)| *number);
        pending.iter().for_each(|(_, command)| self.failed(command, us));
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.opens_us.is_none()
    }

    /// Refuses a command without a connection.
    pub(crate) fn refuse(&mut self, command: &ScriptCommand, us: u64) {
        let now = self.now(us);
        if let Some(link) = &mut self.link {
            link.sent(now.at);
        }
        self.failed(command, us);
    }
}

fn local(drift_ppm: i64, us: u64) -> Timestamp {
    // Each clock has its own origin.
    let nanos = us * u64::try_from(1_000_000 + drift_ppm).unwrap() / 1_000;
    Timestamp::from_nanos(nanos + 1_000_000_000)
}

/// Before a host connects again, µs.
const BACKOFF_US: u64 = 150_000;
