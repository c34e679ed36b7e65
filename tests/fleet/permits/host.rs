//! One host: its engine, its talk with Redis, its clock, and the work in progress on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{
    ConnectionParams, Decider, Descriptors, Engine, EngineAnswer, EngineOptions, FleetStatus, HashKey, Mode,
    Op, RemoteCheckResult, Request, Session, Verdict, WorkOutcome,
};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::heartbeat::Heartbeat;
use tidegate::fleet::link_state::LinkState;
use tidegate::fleet::member::HostMember;
use tidegate::fleet::reply::ScriptReply;
use tidegate::fleet::secrets::SecretDigest;
use tidegate::fleet::sync;
use tidegate::limit::concurrency::ConcurrencyQuota;
use tidegate::limit::{Quota, Rate, token_bucket};
use tidegate::rules::{Domain, KeyPart, Limit, Position, Rule};

use super::world::WorkPlan;
use crate::waiting::Waiting;

pub(crate) struct Host {
    engine: Arc<Engine>,
    decider: Decider,
    session: Session,
    pub(crate) member: HostMember,
    waiting: Waiting<Wanted>,
    link: LinkState,
    standing: Arc<FleetStatus>,
    name: [u8; 16],
    drift_ppm: i64,
    has_heard: bool,
    pending: HashMap<u64, ScriptCommand>,
    /// When the last call was sent that was answered, by key.
    heard: HashMap<[u8; 16], Timestamp>,
    /// What the keys are known by.
    keys: Vec<[u8; 16]>,
    next_id: u64,
    out: Vec<ScriptCommand>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) tenant: u32,
    /// How long it takes once it has begun.
    pub(crate) lasts_us: u64,
    /// A rule of this host refuses it, too.
    pub(crate) is_held: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// The lease.
    Begun {
        lease: u64,
        /// More is in progress than there are places for.
        is_beyond_hand: bool,
    },
    Refused,
    Waits,
}

impl Host {
    pub(crate) fn new(plan: &WorkPlan, number: u32, life: u64, drift_ppm: i64, at_us: u64) -> Host {
        let hash_key = HashKey::from_bytes([number as u8; 16]);
        let options = EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 64 << 20 };
        let engine = Arc::new(Engine::new(options));
        let standing = engine.join_fleet(HashKey::from_bytes([9; 16]));
        engine.install_rules(vec![Domain::new("api", vec![rule(plan), own_rule()])]);
        let mut name = [0; 16];
        name[..4].copy_from_slice(&(number + 1).to_le_bytes());
        let seed = plan.base.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(number) << 32) ^ life;
        let seed = crate::random::mixed(seed);
        let options = sync::SyncOptions { host: name, buckets: plan.base.buckets, seed };
        let member = HostMember::new(Arc::clone(&engine), Arc::clone(&standing), options);
        let opening =
            ConnectionParams { name: None, user: 1, pool: "web", slots: 64, connection: 1, pid: None };
        let at = Now { at: local(drift_ppm, at_us), utc_offset_nanos: 0 };
        let session = engine.open_session(&opening, at).unwrap();
        let rule = engine.find_rule_name("api/exports").unwrap();
        let key = |tenant: u32| {
            let tenant = format!("t{tenant}");
            engine.find_permits(&rule, &[("tenant", &tenant)], at).unwrap().unwrap().name
        };
        let keys = (0..plan.base.tenants).map(key).collect();
        let decider = engine.decider();
        let link = LinkState::new(seed, at.at);
        Host {
            engine,
            decider,
            session,
            member,
            waiting: Waiting::new(),
            link,
            standing,
            name,
            drift_ppm,
            has_heard: false,
            pending: HashMap::new(),
            heard: HashMap::new(),
            keys,
            next_id: 0,
            out: Vec::new(),
        }
    }

    fn now(&self, us: u64) -> Now {
        Now { at: local(self.drift_ppm, us), utc_offset_nanos: 0 }
    }

    /// Places that it has.
    pub(crate) fn held(&self, us: u64) -> u64 {
        self.engine.sum_permits(self.now(us)).values().map(|sum| sum.held).sum()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.has_heard
    }

    /// Whether it was not answered about a key for as long as a hold lasts.
    pub(crate) fn has_lapsed(&self, tenant: u32, us: u64) -> bool {
        let heard = self.heard.get(&self.keys[tenant as usize]);
        heard.is_none_or(|at| self.now(us).at >= at.after(Duration::from_millis(1_900)))
    }

    pub(crate) fn is_linked(&self) -> bool {
        self.standing.is_redis_reachable()
    }

    /// Whether more of a key is in progress than it has places for.
    fn is_beyond_hand(&self, tenant: u32, us: u64) -> bool {
        let rule = self.engine.find_rule_name("api/exports").unwrap();
        let tenant = format!("t{tenant}");
        let here = self.engine.find_permits(&rule, &[("tenant", &tenant)], self.now(us)).unwrap().unwrap();
        here.in_use > here.held
    }

    /// Whether it cannot know any more what others may have of a key.
    pub(crate) fn is_cut_off(&self, tenant: u32, us: u64) -> bool {
        self.has_lapsed(tenant, us) || !self.is_linked()
    }

    /// A piece of work, or one that has waited.
    pub(crate) fn begin(&mut self, work: Wanted, us: u64) -> Came {
        self.judge(work, None, true, us)
    }

    fn judge(
        &mut self,
        work: Wanted,
        result: Option<RemoteCheckResult<'_>>,
        may_wait: bool,
        us: u64,
    ) -> Came {
        let now = self.now(us);
        let tenant = format!("t{}", work.tenant);
        // One that its own host refuses has an attribute more.
        let attributes = [("tenant", tenant.as_str()), ("job", "j")];
        let attributes = if work.is_held { &attributes[..] } else { &attributes[..1] };
        self.next_id += 1;
        let request = Request {
            session: Some(&self.session),
            id: self.next_id,
            may_wait,
            ..Request::new(Op::Acquire, "api", Descriptors::from_attributes(attributes))
        };
        let is_second = result.is_some();
        // As it is judged: what is judged next may change it.
        let answer = match result {
            None => self.decider.decide(&request, now),
            Some(result) => self.decider.resume(&request, result, now),
        };
        let shortfalls = match answer {
            EngineAnswer::Decided(decision) if decision.verdict == Verdict::Allow => {
                let lease = decision.lease.unwrap();
                let is_beyond_hand = self.is_beyond_hand(work.tenant, us);
                return Came::Begun { lease, is_beyond_hand };
            }
            // A flash under `allow` is more than one session may hold.
            EngineAnswer::Decided(_) | EngineAnswer::TooManyLeases => return Came::Refused,
            EngineAnswer::RemoteCheck(shortfalls) => shortfalls,
            other => panic!("{other:?}"),
        };
        self.waiting.park((shortfalls, work, is_second), &mut self.member, now, &mut self.out);
        Came::Waits
    }

    /// What comes of those that wait for nothing any more. `leaves`: those whose clients have gone.
    pub(crate) fn resume(&mut self, us: u64, leaves: impl FnMut() -> bool) -> Vec<(Wanted, Came)> {
        let mut came = Vec::new();
        self.waiting.forget(leaves);
        for (parked, brought) in self.waiting.take_ready(self.now(us)) {
            let (result, may_wait) = match brought {
                Some(brought) => (RemoteCheckResult::Borrowed(brought), !parked.is_second),
                None => (RemoteCheckResult::TimedOut(&parked.shortfalls), false),
            };
            let what = self.judge(parked.what, Some(result), may_wait, us);
            if what != Came::Waits {
                came.push((parked.what, what));
            }
        }
        came
    }

    /// What is to be sent although it is nobody's turn.
    pub(crate) fn out(&mut self) -> &mut Vec<ScriptCommand> {
        &mut self.out
    }

    pub(crate) fn end(&self, lease: u64, us: u64) {
        assert!(self.engine.release_lease(&self.session, lease, WorkOutcome::Ok, self.now(us)));
    }

    /// What is to be sent now.
    pub(crate) fn tick(&mut self, us: u64) {
        let now = self.now(us);
        if self.link.is_cut_off(true, self.member.sync().timeout(), now.at) {
            self.member.set_heard(false, now.at);
        }
        if self.link.takes_beat(now.at) {
            self.out.push(ScriptCommand::Beat(Heartbeat {
                host: self.name,
                epoch: 1,
                seq: 0,
                pools: Vec::new(),
                secret: SecretDigest::default(),
            }));
        }
        self.member.tick(now, &mut self.out);
    }

    pub(crate) fn sent(&mut self, call_number: u64, call: ScriptCommand, us: u64) {
        let now = self.now(us);
        self.link.sent(now.at);
        self.pending.insert(call_number, call);
    }

    pub(crate) fn answered(&mut self, call_number: u64, call: &ScriptCommand, reply: ScriptReply, us: u64) {
        let now = self.now(us);
        // The connection of a command that timed out was closed.
        if self.pending.remove(&call_number).is_none() {
            return;
        }
        self.has_heard = true;
        if self.link.heard(now.at) {
            self.member.set_heard(true, now.at);
        }
        match (call, reply) {
            (ScriptCommand::Permits(command), reply @ ScriptReply::Permits(_)) => {
                let whole = command.requests.iter().filter(|request| request.is_whole);
                for request in whole {
                    let heard = self.heard.entry(request.key).or_insert(command.head.sent_at);
                    *heard = command.head.sent_at.max(*heard);
                }
                self.member.answered(call, reply, now, &mut self.out);
            }
            (_, ScriptReply::Beat(reply)) => self.member.apply_heartbeat(&reply, now.at),
            (call, reply) => panic!("{reply:?} to {call:?}"),
        }
    }

    /// Nothing has come for the call, if nothing has.
    pub(crate) fn timed_out(&mut self, call_number: u64, us: u64) {
        let now = self.now(us);
        match self.pending.remove(&call_number) {
            Some(ScriptCommand::Beat(_)) => self.link.beat_failed(now.at),
            Some(call) => self.member.failed(&call, now.at),
            None => {}
        }
    }
}

fn local(drift_ppm: i64, us: u64) -> Timestamp {
    let nanos = i128::from(us) * i128::from(1_000_000 + drift_ppm) / 1_000;
    Timestamp::from_nanos(u64::try_from(nanos).unwrap() + 1_000_000_000)
}

fn rule(plan: &WorkPlan) -> Rule {
    let max = plan.base.burst.try_into().unwrap();
    let quota = ConcurrencyQuota::new(max).shared(plan.when_down);
    let quota = Quota::Concurrency(if plan.asks { quota } else { quota.without_remote_checks() });
    let position = Position { file: "simulation".into(), line: 1, column: 1 };
    let key = vec![KeyPart::plain("tenant")];
    Rule {
        key,
        expires: Some(Duration::from_secs(3_600)),
        ..Rule::new("exports", position, Limit::new(quota))
    }
}

/// One an hour on each host: of those that ask for it nearly all are refused, after a call or before.
fn own_rule() -> Rule {
    let bucket = token_bucket::TokenBucketQuota::new(Rate::new(1, 3_600_000_000_000).unwrap(), 1).unwrap();
    let position = Position { file: "simulation".into(), line: 1, column: 1 };
    Rule {
        key: vec![KeyPart::plain("job")],
        ..Rule::new("own", position, Limit::new(Quota::TokenBucket(bucket)))
    }
}
