//! Tests one reserve over many hosts in virtual time: slots, leases of two priorities, and their reports in heartbeats.

mod cases;

use std::collections::VecDeque;

use tidegate::engine::{Descriptors, EngineAnswer, Op, PoolView, Request, Session, Verdict, WorkOutcome};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::heartbeat::Heartbeat;

use crate::engines::open;
use crate::host::Host;
use crate::load::poisson;
use crate::plan::{Faults, Plan, Shape};
use crate::random::Random;
use crate::rules::Kind;
use crate::world::World;

/// Mean and maximum duration of a lease, ms.
const TAKES: f64 = 200.0;
const TAKES_MAX: u64 = 1_500;

/// Critical load, as a portion of the capacity of the slots.
const CRITICAL: f64 = 0.08;

/// The leases of one host.
struct Worker {
    slots: u32,
    session: Session,
    /// Leases by the millisecond in which they end, from the next one on.
    ends: VecDeque<Vec<(u64, bool)>>,
    /// Critical leases, and others.
    at_work: [u32; 2],
    /// When it last refused another lease.
    refused_at: u64,
}

/// A world and the workers of its hosts.
struct Pool {
    world: World,
    workers: Vec<Option<Worker>>,
    /// Slots of crashed hosts, and when they crashed.
    dead: Vec<(u64, u32)>,
    random: Random,
    /// Critical requests: offered, and admitted to a free slot.
    critical: (u64, u64),
    /// Other leases of all hosts by millisecond, as a portion of their slots.
    others: Vec<f64>,
}

impl Worker {
    fn new(host: &Host, slots: u32, us: u64) -> Worker {
        let session = open(&host.engine, 1, slots, host.now(us));
        Worker { slots, session, ends: VecDeque::new(), at_work: [0; 2], refused_at: 0 }
    }

    fn acquire(&mut self, host: &mut Host, is_critical: bool, takes: u64, us: u64) -> bool {
        let mut request = Request::new(Op::Acquire, "api", Descriptors::from_attributes(&[]));
        request.session = Some(&self.session);
        request.priority = Some(if is_critical { "critical" } else { "other" });
        let EngineAnswer::Decided(decision) = host.decide(&request, us) else { panic!() };
        let Some(lease) = decision.lease.filter(|_| decision.verdict == Verdict::Allow) else {
            self.refused_at = if is_critical { self.refused_at } else { us / 1_000 };
            return false;
        };
        self.at_work[usize::from(!is_critical)] += 1;
        let takes = takes.clamp(1, TAKES_MAX) as usize;
        if self.ends.len() < takes {
            self.ends.resize_with(takes, Vec::new);
        }
        self.ends[takes - 1].push((lease, is_critical));
        true
    }

    fn end_some(&mut self, host: &Host, us: u64) {
        for (lease, is_critical) in self.ends.pop_front().unwrap_or_default() {
            assert!(host.engine.release_lease(&self.session, lease, WorkOutcome::Ok, host.now(us)));
            self.at_work[usize::from(!is_critical)] -= 1;
        }
    }

    /// Returns its limit of other leases or the leases in progress, whichever is larger.
    fn reach(&self, host: &Host, us: u64) -> u32 {
        let limit = view(host, us).reserve.unwrap().noncritical_max.unwrap();
        limit.max(self.at_work[1])
    }
}

fn view(host: &Host, us: u64) -> PoolView {
    host.engine.pools(host.now(us)).remove(0)
}

/// Returns whether a host counts the slots of other hosts.
fn goes_by_the_fleet(host: &Host, us: u64) -> bool {
    view(host, us).reserve.unwrap().shared
}

fn plan(seed: u64, hosts: usize, round_trip_us: u64, faults: Faults) -> Plan {
    let faults = Faults { strays: 100, ..faults };
    let plan = Plan { seed, round_trip_us, faults, ..Plan::cell(hosts as u32, Shape::Even, 1) };
    Plan { kind: Kind::Reserve, tick_us: 1_000, ..plan }
}

impl Pool {
    /// Starts hosts with these slots within a second, one by one, without load.
    fn new(seed: u64, round_trip_us: u64, faults: Faults, slots: &[u32]) -> Pool {
        let mut world = World::new(&plan(seed, slots.len(), round_trip_us, faults));
        world.log = Some(Vec::new());
        let (random, others) = (Random::new(seed, 1), Vec::new());
        let mut pool =
            Pool { world, workers: Vec::new(), dead: Vec::new(), random, critical: (0, 0), others };
        for (number, slots) in (0..).zip(slots) {
            pool.world.join(number);
            let us = pool.world.us;
            pool.workers.push(Some(Worker::new(pool.world.host(number), *slots, us)));
            let wait = u64::from(pool.random.below(1_000 / (number + 1) + 1));
            pool.run(wait, |_| 0.0);
        }
        pool
    }

    fn ms(&self) -> u64 {
        self.world.us / 1_000
    }

    fn kill(&mut self, number: usize) {
        if let Some(worker) = self.workers[number].take() {
            self.world.crash(number as u32);
            self.dead.push((self.ms(), worker.slots));
        }
    }

    /// Runs for `ms`; `load` returns the other load of each host as a portion of its slots' capacity.
    fn run(&mut self, ms: u64, load: impl Fn(usize) -> f64) {
        let Pool { world, workers, random, critical, others, .. } = self;
        world.advance(ms, |world| {
            let us = world.us;
            let (mut slots, mut at_work) = (0, 0);
            for (number, worker) in workers.iter_mut().enumerate() {
                let (Some(worker), Some(host)) = (worker, &mut world.hosts[number]) else { continue };
                worker.end_some(host, us);
                if us.is_multiple_of(250_000) {
                    host.engine.tick(host.now(us));
                }
                for (is_critical, load) in [(true, CRITICAL), (false, load(number))] {
                    for _ in 0..poisson(random, load * f64::from(worker.slots) / TAKES) {
                        let takes = (random.exponential() * TAKES) as u64;
                        let has_slot = worker.at_work.iter().sum::<u32>() < worker.slots;
                        let passes = worker.acquire(host, is_critical, takes, us);
                        if is_critical {
                            critical.0 += 1;
                            critical.1 += u64::from(passes && has_slot);
                        }
                    }
                }
                (slots, at_work) = (slots + worker.slots, at_work + worker.at_work[1]);
            }
            others.push(f64::from(at_work) / f64::from(slots.max(1)));
        });
    }

    /// Runs for `ms` and checks each millisecond that the limits of all hosts together leave the reserve
    /// free.
    fn run_strictly(&mut self, ms: u64, load: impl Fn(usize) -> f64) {
        for _ in 0..ms {
            self.run(1, &load);
            let (reach, most) = (self.reach(), self.allowed(0));
            assert!(reach <= most, "{reach} of {most} after {} ms", self.ms());
        }
    }

    /// Returns the hosts with their workers.
    fn hosts(&self) -> impl Iterator<Item = (&Host, &Worker)> {
        self.world.hosts.iter().flatten().zip(self.workers.iter().flatten())
    }

    fn slots(&self) -> u32 {
        self.hosts().map(|(_, worker)| worker.slots).sum()
    }

    /// Returns the limit of all hosts together, including hosts that crashed within the last `dead_ms`.
    fn allowed(&self, dead_ms: u64) -> u32 {
        let dead = self.dead.iter().filter(|(at, _)| self.ms() < at + dead_ms);
        (self.slots() + dead.map(|(_, slots)| slots).sum::<u32>()) * 4 / 5
    }

    fn reach(&self) -> u32 {
        self.hosts().map(|(host, worker)| worker.reach(host, self.world.us)).sum()
    }

    /// Returns how many hosts count the slots of others.
    fn count_by_the_fleet(&self) -> usize {
        self.hosts().filter(|(host, _)| goes_by_the_fleet(host, self.world.us)).count()
    }

    /// Returns the slots of all hosts known to this host.
    fn slots_known(&self, number: usize) -> u64 {
        let (host, worker) = (self.world.hosts[number].as_ref(), self.workers[number].as_ref());
        let elsewhere = view(host.unwrap(), self.world.us).reserve.unwrap().elsewhere;
        elsewhere.map_or(0, |sums| sums.slots) + u64::from(worker.unwrap().slots)
    }

    /// Returns the heartbeats that a host sent.
    fn sent(&self, number: u32) -> impl Iterator<Item = &Heartbeat> {
        self.world.log.iter().flatten().filter_map(move |(host, command)| match command {
            ScriptCommand::Heartbeat(heartbeat) if *host == number => Some(heartbeat),
            _ => None,
        })
    }

    /// Returns the peak of other leases in the last milliseconds, as a portion of the slots.
    fn most(&self, last: u64) -> f64 {
        self.others.iter().rev().take(last as usize).copied().fold(0.0, f64::max)
    }

    fn mean(&self, last: u64) -> f64 {
        self.others[self.others.len() - last as usize..].iter().sum::<f64>() / last as f64
    }
}
