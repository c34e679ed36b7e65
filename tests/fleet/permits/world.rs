//! Simulates hosts, leases, Redis and the network in steps of a millisecond.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate::limit::share::Fallback;

use super::host::{Came, Wanted, WorkHost};
use crate::load::Load;
use crate::network::{Event, Network, To};
use crate::plan::Plan;
use crate::random::Random;
use crate::store::Store;
use crate::world::WARM_MS;

/// Plan of a run: `burst` of `base` is the maximum concurrency, `load` is in thousandths of full utilization.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkPlan {
    pub(crate) base: Plan,
    /// Mean duration of a lease.
    pub(crate) service_ms: u32,
    /// Whether requests wait for a permit.
    pub(crate) asks: bool,
    /// Requests per thousand that their own host refuses too.
    pub(crate) held: u32,
    /// Pending requests per thousand whose clients disconnect in each millisecond.
    pub(crate) leaves: u32,
}

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

pub(crate) struct World<'p> {
    plan: &'p WorkPlan,
    hosts: Vec<Option<WorkHost>>,
    epochs: Vec<u64>,
    there: Vec<Vec<There>>,
    store: Store,
    store_us: u64,
    network: Network,
    random: Random,
    works: BinaryHeap<Reverse<Work>>,
    /// The same requests under one global counter.
    perfect: BinaryHeap<Reverse<(u64, u32)>>,
    perfect_now: Vec<u32>,
    pub(crate) seen: Seen,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) asked: u64,
    pub(crate) begun: u64,
    /// Sums over milliseconds.
    pub(crate) in_flight: u64,
    pub(crate) perfect: u64,
    /// Peak concurrency of one key.
    pub(crate) most: u32,
    /// Peak concurrency of one key in the last second.
    pub(crate) most_at_end: u32,
    /// Peak of leases that an outage of their host interrupted.
    pub(crate) most_loose: u32,
    /// Requests that waited for a command.
    pub(crate) waited: u64,
}

impl Seen {
    pub(crate) fn used(&self) -> f64 {
        self.in_flight as f64 / self.perfect.max(1) as f64
    }
}

pub(crate) fn run(plan: &WorkPlan) -> Seen {
    let mut random = Random::new(plan.base.seed, 13);
    let hosts = plan.base.hosts as usize;
    let tenants = plan.base.tenants as usize;
    let mut world = World {
        plan,
        hosts: (0..hosts).map(|_| None).collect(),
        epochs: vec![0; hosts],
        there: vec![vec![There::default(); tenants]; hosts],
        store: Store::default(),
        store_us: 1_700_000_000_000_000 + u64::from(random.below(10_000_000)),
        network: Network::new(&plan.base),
        random,
        works: BinaryHeap::new(),
        perfect: BinaryHeap::new(),
        perfect_now: vec![0; tenants],
        seen: Seen::default(),
    };
    (0..plan.base.hosts).for_each(|host| world.join(host, 0));
    let mut load = Load::new(&plan.base);
    let mut arrivals = Vec::new();
    for step in 0..WARM_MS + plan.base.ms {
        let us = step * 1_000;
        world.deliver(us);
        world.cut_offs(us);
        world.ends(us);
        if step >= WARM_MS {
            let ms = step - WARM_MS;
            world.faults(ms, us);
            load.at(ms, &mut arrivals);
            arrivals.iter().for_each(|host| world.arrive(*host, us));
            world.resume_all(us);
            world.check(us);
        }
        world.tick(step, us);
    }
    world.seen
}

impl World<'_> {
    fn join(&mut self, number: u32, us: u64) {
        let epoch = &mut self.epochs[number as usize];
        *epoch += 1;
        let most = self.plan.base.faults.drift_ppm;
        let drift = i64::from(self.random.below(2 * most + 1)) - i64::from(most);
        self.hosts[number as usize] = Some(WorkHost::new(self.plan, number, *epoch, drift, us));
    }

    fn faults(&mut self, ms: u64, us: u64) {
        let plan = self.plan;
        for crash in &plan.base.faults.crashes {
            if crash.from_ms == ms {
                self.hosts[crash.host as usize] = None;
                self.there[crash.host as usize].iter_mut().for_each(There::cut);
            }
            if crash.to_ms == ms {
                self.join(crash.host, us);
            }
        }
        if plan.base.faults.flushes(ms) {
            self.store.flush();
        }
    }

    fn is_out(&self, us: u64) -> bool {
        self.plan.base.faults.is_out(0, us, WARM_MS)
    }

    fn deliver(&mut self, until_us: u64) {
        while let Some((us, to, event)) = self.network.next(until_us) {
            match event {
                Event::AtStore { number, command } => {
                    if !self.is_out(us) {
                        let reply = self.store.execute(&command, self.store_us + us);
                        self.network.reply(to, number, command, reply, us);
                    }
                }
                Event::AtHost { number, command, reply } => {
                    if !self.is_out(us)
                        && let Some(host) = self.found(to)
                    {
                        host.answered(number, &command, reply, us);
                        self.resume(to.host, us, 0);
                        self.send_out(to.host, us);
                    }
                }
                Event::TimedOut { number } => {
                    if let Some(host) = self.found(to) {
                        host.host.timed_out(number, us);
                    }
                }
            }
        }
    }

    fn found(&mut self, to: To) -> Option<&mut WorkHost> {
        let epoch = self.epochs[to.host as usize];
        self.hosts[to.host as usize].as_mut().filter(|_| epoch == to.epoch)
    }

    /// Leases on a host in an outage no longer count as linked.
    fn cut_offs(&mut self, us: u64) {
        for (host, there) in self.hosts.iter().zip(&mut self.there) {
            for (tenant, there) in (0..).zip(there) {
                if there.counted > 0 && host.as_ref().is_none_or(|host| host.is_cut_off(tenant, us)) {
                    there.cut();
                }
            }
        }
    }

    fn ends(&mut self, us: u64) {
        while let Some(Reverse(work)) = self.works.peek().copied().filter(|Reverse(work)| work.ends_us <= us)
        {
            self.works.pop();
            let there = &mut self.there[work.host as usize][work.tenant as usize];
            match there.stretch == work.stretch {
                true => there.counted -= 1,
                false => there.loose -= 1,
            }
            let is_same_epoch = self.epochs[work.host as usize] == work.epoch;
            if let Some(host) = self.hosts[work.host as usize].as_ref().filter(|_| is_same_epoch) {
                host.end(work.lease, us);
            }
        }
        while self.perfect.peek().is_some_and(|Reverse((ends, _))| *ends <= us) {
            let Reverse((_, tenant)) = self.perfect.pop().unwrap();
            self.perfect_now[tenant as usize] -= 1;
        }
    }

    fn arrive(&mut self, number: u32, us: u64) {
        let tenant = match self.plan.base.tenants {
            1 => 0,
            many => self.random.below(many),
        };
        let lasts = (self.random.exponential() * f64::from(self.plan.service_ms) * 1_000.0) as u64;
        let perfect = &mut self.perfect_now[tenant as usize];
        if *perfect < self.plan.base.burst {
            *perfect += 1;
            self.perfect.push(Reverse((us + lasts.max(1), tenant)));
        }
        let Some(host) = self.hosts[number as usize].as_mut().filter(|host| host.host.is_up()) else {
            return;
        };
        self.seen.asked += 1;
        let is_held = self.random.below(1_000) < self.plan.held;
        let work = Wanted { tenant, lasts_us: lasts.max(1), is_held };
        let came = host.begin(work, us);
        self.seen.waited += u64::from(came == Came::Waits);
        self.send_out(number, us);
        self.came(number, work, came, us);
    }

    fn resume(&mut self, number: u32, us: u64, leaves: u32) {
        let Some(host) = self.hosts[number as usize].as_mut() else { return };
        let random = &mut self.random;
        let came = host.resume(us, || leaves > 0 && random.below(1_000) < leaves);
        for (work, came) in came {
            self.came(number, work, came, us);
        }
    }

    fn resume_all(&mut self, us: u64) {
        for number in 0..self.plan.base.hosts {
            self.resume(number, us, self.plan.leaves);
            self.send_out(number, us);
        }
    }

    fn came(&mut self, number: u32, work: Wanted, came: Came, us: u64) {
        let Wanted { tenant, lasts_us, .. } = work;
        let Came::Begun { lease, is_beyond_hand } = came else { return };
        let Some(host) = &self.hosts[number as usize] else { return };
        let ends_us = us + lasts_us;
        self.seen.begun += 1;
        let there = &mut self.there[number as usize][tenant as usize];
        let epoch = self.epochs[number as usize];
        let may_unheard = self.plan.base.when_down != Fallback::Refuse;
        let is_cut_off = host.is_cut_off(tenant, us);
        if is_cut_off || is_beyond_hand {
            // A request whose remote check timed out uses the fallback too.
            let may = is_cut_off && !host.has_lapsed(tenant, us) || may_unheard || !self.plan.asks;
            assert!(may, "host {number} starts a lease after {us} us on a permit that it does not have");
            if is_cut_off {
                there.cut();
            }
            there.loose += 1;
            let stretch = u64::MAX;
            return self.works.push(Reverse(Work { ends_us, host: number, epoch, lease, tenant, stretch }));
        }
        there.counted += 1;
        let stretch = there.stretch;
        self.works.push(Reverse(Work { ends_us, host: number, epoch, lease, tenant, stretch }));
    }

    /// Checks that only leases interrupted by an outage exceed the maximum.
    fn check(&mut self, us: u64) {
        for tenant in 0..self.plan.base.tenants as usize {
            let counted: u32 = self.there.iter().map(|there| there[tenant].counted).sum();
            let loose: u32 = self.there.iter().map(|there| there[tenant].loose).sum();
            // Leases that began under a fallback are reported later.
            let has_fallback = self.plan.base.when_down != Fallback::Refuse || !self.plan.asks;
            assert!(
                counted <= self.plan.base.burst || has_fallback,
                "{counted} at once after {us} us, and {loose} under hosts cut off"
            );
            self.seen.most_loose = self.seen.most_loose.max(loose);
            self.seen.most = self.seen.most.max(counted + loose);
            let is_end = us >= (WARM_MS + self.plan.base.ms - 1_000) * 1_000;
            self.seen.most_at_end = self.seen.most_at_end.max(if is_end { counted + loose } else { 0 });
            self.seen.in_flight += u64::from(counted + loose);
            self.seen.perfect += u64::from(self.perfect_now[tenant]);
        }
    }

    fn tick(&mut self, step: u64, us: u64) {
        let every = self.plan.base.tick_ms;
        let first = (step % every) as u32;
        for number in (first..self.plan.base.hosts).step_by(every as usize) {
            let Some(host) = self.hosts[number as usize].as_mut() else { continue };
            host.host.tick(us);
            self.send_out(number, us);
        }
    }

    fn send_out(&mut self, number: u32, us: u64) {
        let Some(host) = self.hosts[number as usize].as_mut().filter(|host| !host.host.out.is_empty()) else {
            return;
        };
        let to = To { host: number, epoch: self.epochs[number as usize] };
        let timeout = self.plan.base.timeout_us(host.host.member.sync.timeout());
        for command in host.host.take_commands() {
            let number = self.network.send(to, command.clone(), us, timeout);
            host.host.sent(number, command, us);
        }
    }
}

impl There {
    fn cut(&mut self) {
        self.loose += std::mem::take(&mut self.counted);
        self.stretch += 1;
    }
}
