//! Audits the leases of all hosts: only those that an outage interrupted exceed the maximum.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foldhash::HashMap;
use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{Engine, RuleName, Session};
use tidegate::limit::share::Fallback;

use crate::engines::open;
use crate::host::{FleetRequest, Host, Judged};
use crate::plan::Plan;
use crate::rules::RULE;

/// A lease in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Work {
    ends_us: u64,
    host: u32,
    epoch: u64,
    lease: u64,
    tenant: u32,
    /// Linked period of the host in which it began.
    stretch: u64,
}

/// Leases of one key on one host.
#[derive(Clone, Copy, Debug, Default)]
struct There {
    stretch: u64,
    /// Leases of the current linked period, and of earlier ones.
    counted: u32,
    loose: u32,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    there: Vec<Vec<There>>,
    works: BinaryHeap<Reverse<Work>>,
    max: u32,
    /// Leases begin without a permit, which is reported later.
    has_fallback: bool,
    ends_us: u64,
    pub(crate) begun: u64,
    /// Sums over milliseconds.
    in_flight: u64,
    allowed: u64,
    /// Peak concurrency of one key, and that in the last second.
    pub(crate) most: u32,
    pub(crate) most_at_end: u32,
    /// Peak of leases that an outage of their host interrupted.
    pub(crate) most_loose: u32,
}

impl Leases {
    pub(crate) fn new(plan: &Plan) -> Leases {
        let (hosts, tenants) = (plan.hosts as usize, plan.tenants as usize);
        Leases {
            there: vec![vec![There::default(); tenants]; hosts],
            max: plan.burst,
            has_fallback: plan.when_down != Fallback::Refuse || !plan.asks(),
            ends_us: plan.ends_us(),
            ..Leases::default()
        }
    }

    /// Returns the mean concurrency as a portion of the maximum.
    pub(crate) fn used(&self) -> f64 {
        self.in_flight as f64 / self.allowed.max(1) as f64
    }

    pub(crate) fn crash(&mut self, host: u32) {
        self.there[host as usize].iter_mut().for_each(There::cut);
    }

    /// Ends leases. Those on a host in an outage no longer count as linked.
    pub(crate) fn end(&mut self, hosts: &[Option<Host>], us: u64) {
        for (host, there) in hosts.iter().zip(&mut self.there) {
            for (tenant, there) in (0..).zip(there) {
                if there.counted > 0 && host.as_ref().is_none_or(|host| host.is_cut_off(tenant, us)) {
                    there.cut();
                }
            }
        }
        while let Some(Reverse(work)) = self.works.peek().copied().filter(|Reverse(work)| work.ends_us <= us)
        {
            self.works.pop();
            let there = &mut self.there[work.host as usize][work.tenant as usize];
            match there.stretch == work.stretch {
                true => there.counted -= 1,
                false => there.loose -= 1,
            }
            let host = hosts[work.host as usize].as_ref();
            if let Some(host) = host.filter(|host| host.birth.epoch == work.epoch) {
                host.end_lease(work.lease, us);
            }
        }
    }

    pub(crate) fn judged(&mut self, number: u32, host: &Host, request: &FleetRequest, it: Judged, us: u64) {
        let Some(lease) = it.lease else { return };
        self.begun += 1;
        let (tenant, ends_us, epoch) = (request.tenant, us + request.lasts_us, host.birth.epoch);
        let there = &mut self.there[number as usize][tenant as usize];
        let is_cut_off = host.is_cut_off(tenant, us);
        let mut stretch = there.stretch;
        if is_cut_off || it.is_beyond_hand {
            // A request whose remote check timed out uses the fallback too.
            let may = is_cut_off && !host.has_lapsed(tenant, us) || self.has_fallback;
            assert!(may, "host {number} starts a lease after {us} us on a permit that it does not have");
            if is_cut_off {
                there.cut();
            }
            there.loose += 1;
            stretch = u64::MAX;
        } else {
            there.counted += 1;
        }
        self.works.push(Reverse(Work { ends_us, host: number, epoch, lease, tenant, stretch }));
    }

    /// Checks each millisecond that only leases interrupted by an outage exceed the maximum.
    pub(crate) fn check(&mut self, us: u64) {
        for tenant in 0..self.there[0].len() {
            let counted: u32 = self.there.iter().map(|there| there[tenant].counted).sum();
            let loose: u32 = self.there.iter().map(|there| there[tenant].loose).sum();
            assert!(
                counted <= self.max || self.has_fallback,
                "{counted} at once after {us} us, and {loose} under hosts cut off"
            );
            self.most_loose = self.most_loose.max(loose);
            self.most = self.most.max(counted + loose);
            let is_end = us + 1_000_000 >= self.ends_us;
            self.most_at_end = self.most_at_end.max(if is_end { counted + loose } else { 0 });
            self.in_flight += u64::from(counted + loose);
            self.allowed += u64::from(self.max);
        }
    }
}

impl There {
    fn cut(&mut self) {
        self.loose += std::mem::take(&mut self.counted);
        self.stretch += 1;
    }
}

/// The session whose requests begin leases, and the shared permits of its host.
pub(crate) struct LeaseSession {
    pub(crate) session: Session,
    pub(crate) rule: RuleName,
    /// By tenant.
    pub(crate) keys: Vec<[u8; 16]>,
    /// Send time of the last answered command, by key.
    pub(crate) counted: HashMap<[u8; 16], Timestamp>,
    pub(crate) last_id: u64,
}

impl LeaseSession {
    pub(crate) fn new(engine: &Engine, tenants: &[String], now: Now) -> LeaseSession {
        let rule = engine.find_rule_name(RULE).unwrap();
        let key = |tenant: &String| {
            engine.find_permits(&rule, &[("tenant", tenant.as_str())], now).unwrap().unwrap().name
        };
        let keys = tenants.iter().map(key).collect();
        let session = open(engine, 1, 64, now);
        LeaseSession { session, rule, keys, counted: HashMap::default(), last_id: 0 }
    }
}
