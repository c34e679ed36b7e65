//! Simulates one host and its leases.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Timestamp;
use tidegate::engine::{
    Descriptors, EngineAnswer, Op, RemoteCheckResult, Request, RuleName, Session, Verdict, WorkOutcome,
};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::reply::ScriptReply;
use tidegate::limit::Quota;
use tidegate::limit::concurrency::ConcurrencyQuota;
use tidegate::limit::share::{FleetTerms, REMOTE_CHECK_WAIT_DEFAULT, RemoteCheckWait};
use tidegate::rules::{Domain, KeyPart, Limit, Rule};

use super::world::WorkPlan;
use crate::engines::open;
use crate::host::{Host, own_rule, position};
use crate::pending::Waiting;
use crate::world::SECRET;

pub(crate) struct WorkHost {
    pub(crate) host: Host,
    session: Session,
    waiting: Waiting<Wanted>,
    /// Send time of the last answered command, by key.
    counted: HashMap<[u8; 16], Timestamp>,
    /// Names of the tenants, and their hashed keys.
    tenants: Vec<String>,
    keys: Vec<[u8; 16]>,
    rule: RuleName,
    next_id: u64,
}

/// A requested lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) tenant: u32,
    /// Duration of the lease, µs.
    pub(crate) lasts_us: u64,
    /// A rule of this host refuses it too.
    pub(crate) is_held: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// The lease.
    Begun {
        lease: u64,
        /// The host has more leases than permits.
        is_beyond_hand: bool,
    },
    Refused,
    Waits,
}

impl WorkHost {
    pub(crate) fn new(plan: &WorkPlan, number: u32, epoch: u64, drift_ppm: i64, at_us: u64) -> WorkHost {
        let domain = Arc::new(Domain::new("api", vec![rule(plan), own_rule()]));
        let host =
            Host::with_rules((domain, plan.asks), SECRET, &plan.base, (number, epoch), drift_ppm, at_us);
        let now = host.now(at_us);
        let session = open(&host.engine, 1, 64, now);
        let rule = host.engine.find_rule_name("api/exports").unwrap();
        let tenants: Vec<_> = (0..plan.base.tenants).map(|tenant| format!("t{tenant}")).collect();
        let key = |tenant: &String| {
            host.engine.find_permits(&rule, &[("tenant", tenant.as_str())], now).unwrap().unwrap().name
        };
        let keys = tenants.iter().map(key).collect();
        let (waiting, counted) = (Waiting::new(), HashMap::new());
        WorkHost { host, session, waiting, counted, tenants, keys, rule, next_id: 0 }
    }

    /// Returns whether a key had no reply for the lifetime of a hold.
    pub(crate) fn has_lapsed(&self, tenant: u32, us: u64) -> bool {
        let counted = self.counted.get(&self.keys[tenant as usize]);
        counted.is_none_or(|at| self.host.now(us).at >= at.after(Duration::from_millis(1_900)))
    }

    /// Returns whether the key has more leases than permits here.
    fn is_beyond_hand(&self, tenant: u32, us: u64) -> bool {
        let tenant = &self.tenants[tenant as usize];
        let here =
            self.host.engine.find_permits(&self.rule, &[("tenant", tenant.as_str())], self.host.now(us));
        let here = here.unwrap().unwrap();
        here.in_use > here.held
    }

    /// Returns whether the permits of other hosts are unknown for a key.
    pub(crate) fn is_cut_off(&self, tenant: u32, us: u64) -> bool {
        self.has_lapsed(tenant, us) || !self.host.is_linked()
    }

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
        let now = self.host.now(us);
        // A request that its own host refuses has an additional attribute.
        let attributes = [("tenant", self.tenants[work.tenant as usize].as_str()), ("job", "j")];
        let attributes = if work.is_held { &attributes[..] } else { &attributes[..1] };
        self.next_id += 1;
        let request = Request {
            session: Some(&self.session),
            id: self.next_id,
            may_wait,
            ..Request::new(Op::Acquire, "api", Descriptors::from_attributes(attributes))
        };
        let is_second = result.is_some();
        // Checked immediately: the next decision may change it.
        let shortfalls = match self.host.decide(&request, result, now) {
            EngineAnswer::Decided(decision) if decision.verdict == Verdict::Allow => {
                let lease = decision.lease.unwrap();
                let is_beyond_hand = self.is_beyond_hand(work.tenant, us);
                return Came::Begun { lease, is_beyond_hand };
            }
            // A flash under `allow` exceeds the lease limit of a session.
            EngineAnswer::Decided(_) | EngineAnswer::TooManyLeases => return Came::Refused,
            EngineAnswer::RemoteCheck(shortfalls) => shortfalls,
            other => panic!("{other:?}"),
        };
        self.waiting.add_pending(
            (shortfalls, work, is_second),
            &mut self.host.member,
            now,
            &mut self.host.out,
        );
        Came::Waits
    }

    /// Returns the outcomes of pending requests that are decided. `leaves`: whether a client closed its
    /// connection.
    pub(crate) fn resume(&mut self, us: u64, leaves: impl FnMut() -> bool) -> Vec<(Wanted, Came)> {
        let mut came = Vec::new();
        if self.waiting.is_empty() {
            return came;
        }
        self.waiting.forget(leaves);
        for (pending, reply) in self.waiting.take_ready(self.host.now(us)) {
            let (result, may_wait) = match reply {
                Some(reply) => (RemoteCheckResult::Borrowed(reply), !pending.is_second),
                None => (RemoteCheckResult::TimedOut(&pending.shortfalls), false),
            };
            let what = self.judge(pending.what, Some(result), may_wait, us);
            if what != Came::Waits {
                came.push((pending.what, what));
            }
        }
        came
    }

    pub(crate) fn end(&self, lease: u64, us: u64) {
        let now = self.host.now(us);
        assert!(self.host.engine.release_lease(&self.session, lease, WorkOutcome::Ok, now));
    }

    pub(crate) fn answered(&mut self, number: u64, command: &ScriptCommand, reply: ScriptReply, us: u64) {
        // The connection of a command that timed out was closed.
        if let ScriptCommand::Permits(permits) = command
            && self.host.is_pending(number)
        {
            for request in permits.requests.iter().filter(|request| request.is_whole) {
                let counted = self.counted.entry(request.key).or_insert(permits.head.sent_at);
                *counted = permits.head.sent_at.max(*counted);
            }
        }
        self.host.answered(number, command, reply, us);
    }
}

fn rule(plan: &WorkPlan) -> Rule {
    let max = plan.base.burst.try_into().unwrap();
    let asks = if plan.asks { RemoteCheckWait::OnMiss } else { RemoteCheckWait::Never };
    let terms = FleetTerms::new(plan.base.when_down, asks, REMOTE_CHECK_WAIT_DEFAULT);
    let quota = Quota::Concurrency(ConcurrencyQuota::new(max).shared(terms));
    let key = vec![KeyPart::plain("tenant")];
    Rule {
        key,
        expires: Some(Duration::from_secs(3_600)),
        ..Rule::new("exports", position(), Limit::new(quota))
    }
}
