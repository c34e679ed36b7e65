//! Simulates one host: its engine, sync and clock.

use std::cell::Cell;
use std::sync::Arc;

use foldhash::HashMap;
use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{
    Cost, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, FleetStatus, HashKey, Op,
    RemoteCheckResult, Request, Shortfalls, Verdict,
};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::heartbeat::Heartbeat;
use tidegate::fleet::link_state::LinkState;
use tidegate::fleet::member::HostMember;
use tidegate::fleet::reply::ScriptReply;
use tidegate::fleet::secrets::SecretDigest;
use tidegate::fleet::sync;
use tidegate::limit::share::{self, RemoteCheckWait};
use tidegate::limit::{Quota, Rate, token_bucket};
use tidegate::rules::{Domain, KeyPart, Limit, Position, Rule};

use crate::engines::options;
use crate::pending::Waiting;
use crate::plan::Plan;
use crate::world::SECRET;

/// A request of a tenant, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FleetRequest {
    pub(crate) tenant: u32,
    pub(crate) cost: u32,
    /// The caller's own request number.
    pub(crate) number: u64,
    /// A rule of its host refuses it too: [`own_rule`].
    pub(crate) is_held: bool,
}

impl FleetRequest {
    fn named(self, tenants: &[String]) -> (&str, u32, bool) {
        (&tenants[self.tenant as usize], self.cost, self.is_held)
    }
}

/// Whether a request may start, and otherwise its retry time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    pub(crate) passed: bool,
    pub(crate) retry_us: Option<u64>,
}

pub(crate) struct Host {
    pub(crate) engine: Arc<Engine>,
    decider: Decider,
    pub(crate) member: HostMember,
    pub(crate) link: LinkState,
    pub(crate) fleet_status: Arc<FleetStatus>,
    name: [u8; 16],
    drift_ppm: i64,
    utc: i64,
    has_counted: bool,
    /// Unanswered commands, by a number that is never reused.
    pending: HashMap<u64, ScriptCommand>,
    /// Time of the next due tick, unless a request or reply arrives earlier.
    next: Timestamp,
    /// The last result of [`Host::has`] and its time, until the next action.
    known: Cell<Option<(u64, (u64, u64))>>,
    pub(crate) out: Vec<ScriptCommand>,
    secret: SecretDigest,
    /// Pending requests.
    waiting: Waiting<FleetRequest>,
    /// Whether requests may wait.
    asks: bool,
    /// When the next connection is open, if none is.
    opens_us: Option<u64>,
}

impl Host {
    pub(crate) fn new(plan: &Plan) -> Host {
        Host::with_secret(SECRET, plan, (0, 1), 0, 0)
    }

    /// Creates a host with this secret; `number` identifies it, `life` is its epoch.
    pub(crate) fn with_secret(
        secret: u8,
        plan: &Plan,
        (number, epoch): (u32, u64),
        drift_ppm: i64,
        at_us: u64,
    ) -> Host {
        let asks = plan.asks != RemoteCheckWait::Never;
        let domain = Arc::new(Domain::new("api", vec![rule(plan)]));
        Host::with_rules((domain, asks), secret, plan, (number, epoch), drift_ppm, at_us)
    }

    /// Creates a host with these rules; `asks`: requests may wait.
    pub(crate) fn with_rules(
        (domain, asks): (Arc<Domain>, bool),
        secret: u8,
        plan: &Plan,
        (number, epoch): (u32, u64),
        drift_ppm: i64,
        at_us: u64,
    ) -> Host {
        let hash_key = HashKey::from_bytes([number as u8; 16]);
        let engine = Arc::new(Engine::new(EngineOptions { hash_key, ..options() }));
        let fleet_status = engine.join_fleet(HashKey::from_bytes([secret; 16]));
        engine.install_rules(vec![domain]);
        let decider = engine.decider();
        let mut name = [0; 16];
        name[..4].copy_from_slice(&(number + 1).to_le_bytes());
        let seed = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(number) << 32) ^ epoch;
        let seed = crate::random::mixed(seed);
        let options = sync::SyncOptions { host: name, buckets: plan.buckets, seed };
        let member = HostMember::new(Arc::clone(&engine), Arc::clone(&fleet_status), options);
        let link = LinkState::new(seed, local(drift_ppm, at_us));
        Host {
            engine,
            decider,
            member,
            link,
            fleet_status,
            name,
            drift_ppm,
            utc: 0,
            has_counted: false,
            pending: HashMap::default(),
            next: Timestamp::ORIGIN,
            known: Cell::new(None),
            out: Vec::new(),
            secret: SecretDigest::of_secret(&[secret]),
            waiting: Waiting::new(),
            asks,
            opens_us: None,
        }
    }

    pub(crate) fn forget_rules(&mut self) {
        self.engine.install_rules(Vec::<Domain>::new());
        self.member.take_budgets();
    }

    pub(crate) fn now(&self, us: u64) -> Now {
        Now { at: local(self.drift_ppm, us), utc_offset_nanos: self.utc }
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

    /// Returns tokens held and tokens owed.
    pub(crate) fn has(&self, us: u64) -> (u64, u64) {
        if let Some((_, has)) = self.known.get().filter(|(at, _)| *at == us) {
            return has;
        }
        let has = self.member.sync.in_hand(self.now(us));
        self.known.set(Some((us, has)));
        has
    }

    /// Makes the next tick due, since something happens.
    fn acts(&mut self) {
        self.next = Timestamp::ORIGIN;
        self.known.set(None);
    }

    /// Decides a request; returns whether it may start.
    pub(crate) fn hit(&mut self, tenant: &str, us: u64) -> bool {
        self.judge((tenant, 1, false), None, false, us).expect("it does not wait").passed
    }

    /// Decides a request that may wait; returns `None` while it is pending.
    pub(crate) fn ask(&mut self, request: FleetRequest, tenants: &[String], us: u64) -> Option<Judged> {
        match self.judge(request.named(tenants), None, self.asks, us) {
            Ok(judged) => Some(judged),
            Err(shortfalls) => {
                self.add_pending(shortfalls, request, false, us);
                None
            }
        }
    }

    pub(crate) fn answers(&mut self, tenants: &[String], us: u64) -> Vec<(FleetRequest, Judged)> {
        let mut answers = Vec::new();
        if self.waiting.is_empty() {
            return answers;
        }
        for (pending, reply) in self.waiting.take_ready(self.now(us)) {
            let (request, shortfalls) = (pending.what, pending.shortfalls);
            let (result, may_wait) = match reply {
                Some(reply) => (RemoteCheckResult::Borrowed(reply), !pending.is_second),
                None => (RemoteCheckResult::TimedOut(&shortfalls), false),
            };
            match self.judge(request.named(tenants), Some(result), may_wait, us) {
                Ok(judged) => answers.push((request, judged)),
                Err(shortfalls) => self.add_pending(shortfalls, request, true, us),
            }
        }
        answers
    }

    fn judge(
        &mut self,
        (tenant, cost, is_held): (&str, u32, bool),
        result: Option<RemoteCheckResult<'_>>,
        may_wait: bool,
        us: u64,
    ) -> Result<Judged, Arc<Shortfalls>> {
        let now = self.now(us);
        self.acts();
        let attributes = [("tenant", tenant), ("job", "j")];
        let attributes = if is_held { &attributes[..] } else { &attributes[..1] };
        let request = Request {
            may_wait,
            cost: Cost::Requests(cost),
            ..Request::new(Op::Hit, "api", Descriptors::from_attributes(attributes))
        };
        match self.decide(&request, result, now) {
            EngineAnswer::Decided(decision) => Ok(Judged {
                passed: decision.verdict == Verdict::Allow,
                retry_us: decision.retry_after.map(|retry| retry.0),
            }),
            EngineAnswer::RemoteCheck(shortfalls) => Err(shortfalls),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn decide(
        &mut self,
        request: &Request<'_>,
        result: Option<RemoteCheckResult<'_>>,
        now: Now,
    ) -> EngineAnswer<'_> {
        match result {
            None => self.decider.decide(request, now),
            Some(result) => self.decider.resume(request, result, now),
        }
    }

    /// Parks a pending request; the next tick sends its commands.
    fn add_pending(&mut self, shortfalls: Arc<Shortfalls>, request: FleetRequest, is_second: bool, us: u64) {
        let now = self.now(us);
        self.waiting.add_pending((shortfalls, request, is_second), &mut self.member, now, &mut self.out);
    }

    /// Closes the connections of all waiting clients.
    pub(crate) fn close_connections(&mut self) {
        self.waiting.forget(|| true);
    }

    /// Returns the commands due before the next tick.
    pub(crate) fn take_commands(&mut self) -> Vec<ScriptCommand> {
        std::mem::take(&mut self.out)
    }

    /// Returns whether a tick would change anything. A daemon ticks anyway; most ticks of a simulation would
    /// do nothing.
    pub(crate) fn is_due(&self, us: u64) -> bool {
        // Each tick checks the timeouts of pending requests.
        self.asks || self.now(us).at >= self.next
    }

    pub(crate) fn tick(&mut self, us: u64) -> &mut Vec<ScriptCommand> {
        let now = self.now(us);
        self.known.set(None);
        let timeout = self.member.sync.timeout();
        if self.opens_us.take_if(|opens_us| *opens_us <= us).is_some() {
            self.link.connected(now.at);
        }
        self.link.detect_outage(self.is_connected(), timeout, now.at);
        self.member.set_reachable(self.link.is_linked(), now.at);
        if self.link.accepts_heartbeat(now.at) {
            let (host, secret, pools) = (self.name, self.secret, Vec::new());
            self.out.push(ScriptCommand::Heartbeat(Heartbeat { host, epoch: 0, seq: 0, pools, secret }));
        }
        // The daemon leaves out this part while nothing is due.
        let (is_quiet, before) = (self.member.is_quiet(now.at), self.out.len());
        self.member.tick(now, &mut self.out);
        assert!(!is_quiet || self.out.len() == before, "a command was due");
        self.next = self.member.sync.next().min(self.link.next(self.is_connected(), timeout));
        &mut self.out
    }

    pub(crate) fn is_pending(&self, number: u64) -> bool {
        self.pending.contains_key(&number)
    }

    pub(crate) fn sent(&mut self, number: u64, command: ScriptCommand, us: u64) {
        let now = self.now(us);
        self.acts();
        self.link.sent(now.at);
        self.pending.insert(number, command);
    }

    pub(crate) fn answered(&mut self, number: u64, command: &ScriptCommand, reply: ScriptReply, us: u64) {
        let now = self.now(us);
        self.acts();
        // The connection of a command that timed out was closed.
        if self.pending.remove(&number).is_none() {
            return;
        }
        self.link.record_reply(now.at);
        let before = self.member.sync.counts;
        match (command, reply) {
            (ScriptCommand::Heartbeat(_), ScriptReply::Heartbeat(reply)) => {
                self.member.apply_heartbeat(&reply, now.at);
            }
            (ScriptCommand::Sync(_), reply @ ScriptReply::Sync(_))
            | (ScriptCommand::Exact(_), reply @ ScriptReply::Exact(_))
            | (ScriptCommand::Permits(_), reply @ ScriptReply::Permits(_)) => {
                self.member.answered(command, reply, now, &mut self.out);
            }
            (command, reply) => panic!("{reply:?} to {command:?}"),
        }
        let counts = self.member.sync.counts;
        let counted =
            if let ScriptCommand::Sync(batch) = command { (1, batch.asks.len() as u64) } else { (0, 0) };
        assert_eq!((counts.batches - before.batches, counts.cells - before.cells), counted);
        self.member.set_reachable(self.link.is_linked(), now.at);
        self.has_counted |= self.fleet_status.is_redis_reachable();
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
        match command {
            ScriptCommand::Heartbeat(_) => self.link.heartbeat_failed(now.at),
            command => self.member.failed(command, now.at),
        }
        let unanswered = self.member.sync.counts.unanswered - before;
        assert_eq!(unanswered, u64::from(matches!(command, ScriptCommand::Sync(_))));
    }

    /// Closes the connection with all pending commands until another one is open.
    pub(crate) fn reconnect(&mut self, us: u64, opens_us: u64) {
        self.opens_us = Some(opens_us);
        let mut pending: Vec<_> = self.pending.drain().collect();
        pending.sort_unstable_by_key(|(number, _)| *number);
        pending.iter().for_each(|(_, command)| self.failed(command, us));
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.opens_us.is_none()
    }

    /// Refuses a command without a connection.
    pub(crate) fn refuse(&mut self, command: &ScriptCommand, us: u64) {
        self.link.sent(self.now(us).at);
        self.failed(command, us);
    }
}

fn local(drift_ppm: i64, us: u64) -> Timestamp {
    // Each clock has its own origin.
    let nanos = us * u64::try_from(1_000_000 + drift_ppm).unwrap() / 1_000;
    Timestamp::from_nanos(nanos + 1_000_000_000)
}

pub(crate) fn position() -> Position {
    Position { file: "simulation".into(), line: 1, column: 1 }
}

/// One an hour on each host: refuses nearly all matching requests, before or after a remote check.
pub(crate) fn own_rule() -> Rule {
    let bucket = token_bucket::TokenBucketQuota::new(Rate::new(1, 3_600_000_000_000).unwrap(), 1).unwrap();
    let key = vec![KeyPart::plain("job")];
    Rule { key, ..Rule::new("own", position(), Limit::new(Quota::TokenBucket(bucket))) }
}

pub(crate) fn rule(plan: &Plan) -> Rule {
    let position = position();
    let key = vec![KeyPart::plain("tenant")];
    if let Some(kind) = plan.window {
        let quota =
            Quota::FleetBudget(Box::new(crate::windows::quota(plan, kind).with_remote_checks(plan.asks)));
        return Rule { key, ..Rule::new("per-tenant", position, Limit::new(quota)) };
    }
    let rate = Rate::new(plan.rate, plan.period_s * 1_000_000_000).unwrap();
    let bucket = token_bucket::TokenBucketQuota::new(rate, plan.burst).unwrap();
    let quota = Quota::FleetBudget(Box::new(
        share::ShareQuota::new(bucket, plan.credit, plan.when_down).with_remote_checks(plan.asks),
    ));
    Rule { key, ..Rule::new("per-tenant", position, Limit::new(quota)) }
}
