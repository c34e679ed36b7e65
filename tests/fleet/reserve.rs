//! Tests one reserve over many hosts in virtual time: real engines and heartbeats, a network that loses and
//! doubles messages, and a Redis model that runs the rules of the scripts.

mod cases;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{
    Decider, Descriptors, Engine, EngineAnswer, EngineOptions, HashKey, Op, PoolView, Request, Session,
    Verdict, WorkOutcome,
};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::heartbeat::Heartbeat;
use tidegate::fleet::link_state::LinkState;
use tidegate::fleet::reply::ScriptReply;
use tidegate::fleet::reserve::Reserves;
use tidegate::fleet::secrets::SecretDigest;

use crate::engines::{domains, open, options};
use crate::load::poisson;
use crate::network::{Event, Network, To};
use crate::plan::{Faults, Plan, Shape};
use crate::random::Random;
use crate::store::Store;

const RULES: &str = "
domain: api
priorities: [critical, other]
shed:
  - pool: web
    fleet: {reserve: 20%, for: critical}
";

/// Mean and maximum duration of a lease, ms.
const TAKES: f64 = 200.0;
const TAKES_MAX: u64 = 1_500;

/// One in this many heartbeats sent also arrives late, from an abandoned connection.
const STRAYS: u32 = 10;

/// Critical load, as a portion of the capacity of the slots.
const CRITICAL: f64 = 0.08;

/// Between heartbeats and replies a limit drops with time, and rises after ten seconds: it is read this often.
const LIMIT_READ_MS: u64 = 10;

/// Redis clock at the start, µs.
const EPOCH_US: u64 = 1_700_000_000_000_000;

struct Host {
    slots: u32,
    engine: Arc<Engine>,
    decider: Decider,
    session: Session,
    reserves: Reserves,
    link: LinkState,
    name: [u8; 16],
    epoch: u64,
    /// Offset of its wall clock.
    utc: i64,
    /// Leases by the millisecond in which they end, from the next one on.
    ends: VecDeque<Vec<(u64, bool)>>,
    /// Critical leases, and others.
    at_work: [u32; 2],
    /// When it last refused another lease.
    refused_at: u64,
    /// Unanswered heartbeats, by number.
    pending: Vec<(u64, Heartbeat)>,
    /// Heartbeats sent.
    sent: Vec<Heartbeat>,
    /// Its limit of other leases and when that was read, until its next heartbeat or reply.
    limit: Cell<Option<(u64, u32)>>,
}

struct World {
    hosts: Vec<Option<Host>>,
    /// Slots of crashed hosts, and when they crashed.
    dead: Vec<(u64, u32)>,
    store: Store,
    /// Offset of the Redis clock.
    store_ahead_us: i64,
    network: Network,
    /// Slots of all hosts in the last reply of Redis.
    answered: u64,
    /// Reply timeout of a host.
    timeout_us: u64,
    /// Late heartbeats, and when they reach Redis, in milliseconds.
    strays: Vec<(u64, Heartbeat)>,
    random: Random,
    is_out: bool,
    ms: u64,
    /// Critical requests: offered, and admitted to a free slot.
    critical: (u64, u64),
    /// Other leases of all hosts by millisecond, as a portion of their slots.
    others: Vec<f64>,
}

impl Host {
    fn new(number: usize, epoch: u64, slots: u32, ms: u64) -> Host {
        let hash_key = HashKey::from_bytes([number as u8; 16]);
        let engine = Arc::new(Engine::new(EngineOptions { hash_key, ..options() }));
        engine.install_rules(domains(RULES));
        let session = open(&engine, 1, slots, now(ms, 0));
        let decider = engine.decider();
        let link = LinkState::new(number as u64 + 77, now(ms, 0).at);
        Host {
            slots,
            engine,
            decider,
            session,
            reserves: Reserves::default(),
            link,
            name: [number as u8 + 1; 16],
            epoch,
            utc: 0,
            ends: VecDeque::new(),
            at_work: [0; 2],
            refused_at: 0,
            pending: Vec::new(),
            sent: Vec::new(),
            limit: Cell::new(None),
        }
    }

    fn acquire(&mut self, is_critical: bool, takes: u64, ms: u64) -> bool {
        let mut request = Request::new(Op::Acquire, "api", Descriptors::from_attributes(&[]));
        request.session = Some(&self.session);
        request.priority = Some(if is_critical { "critical" } else { "other" });
        let EngineAnswer::Decided(decision) = self.decider.decide(&request, now(ms, self.utc)) else {
            panic!()
        };
        let Some(lease) = decision.lease.filter(|_| decision.verdict == Verdict::Allow) else {
            self.refused_at = if is_critical { self.refused_at } else { ms };
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

    fn end_some(&mut self, ms: u64) {
        for (lease, is_critical) in self.ends.pop_front().unwrap_or_default() {
            assert!(self.engine.release_lease(&self.session, lease, WorkOutcome::Ok, now(ms, self.utc)));
            self.at_work[usize::from(!is_critical)] -= 1;
        }
    }

    fn view(&self, ms: u64) -> PoolView {
        self.engine.pools(now(ms, self.utc)).remove(0)
    }

    /// Returns its limit of other leases or the leases in progress, whichever is larger.
    fn reach(&self, ms: u64) -> u32 {
        let known = self.limit.get().filter(|(read, _)| ms < read + LIMIT_READ_MS);
        let (_, limit) = known.unwrap_or_else(|| {
            let limit = self.view(ms).reserve.unwrap().noncritical_max.unwrap();
            self.limit.set(Some((ms, limit)));
            (ms, limit)
        });
        limit.max(self.at_work[1])
    }

    /// Returns whether it counts the slots of other hosts.
    fn goes_by_the_fleet(&self, ms: u64) -> bool {
        self.view(ms).reserve.unwrap().shared
    }

    /// Returns a heartbeat if one is due.
    fn speak(&mut self, timeout: Duration, at: Timestamp) -> Option<Heartbeat> {
        self.link.detect_outage(true, timeout, at);
        // As the sync task, every 10 ms.
        if (at.as_nanos() / 1_000_000).is_multiple_of(10) && self.reserves.is_urgent(&self.engine, at) {
            self.link.hasten(at);
        }
        if !self.link.accepts_heartbeat(at) {
            return None;
        }
        self.limit.set(None);
        let (seq, pools) = self.reserves.report(&self.engine, at);
        let heartbeat =
            Heartbeat { host: self.name, epoch: self.epoch, seq, pools, secret: SecretDigest::default() };
        self.link.sent(at);
        self.sent.push(heartbeat.clone());
        Some(heartbeat)
    }
}

impl World {
    fn new(seed: u64, round_trip_us: u64, faults: Faults) -> World {
        let plan = Plan { seed, round_trip_us, faults, ..Plan::cell(1, Shape::Even, 1) };
        World {
            hosts: Vec::new(),
            dead: Vec::new(),
            store: Store::default(),
            store_ahead_us: 0,
            network: Network::new(&plan),
            answered: 0,
            timeout_us: (4 * round_trip_us).max(250_000),
            strays: Vec::new(),
            random: Random::new(seed, 1),
            is_out: false,
            ms: 0,
            critical: (0, 0),
            others: Vec::new(),
        }
    }

    /// Starts hosts within a second, one by one, without load.
    fn with_hosts(mut self, slots: &[u32]) -> World {
        for slots in slots {
            self.join(*slots);
            let wait = u64::from(self.random.below(1_000 / self.hosts.len().max(1) as u32 + 1));
            self.run(wait, |_| 0.0);
        }
        self
    }

    fn join(&mut self, slots: u32) {
        self.hosts.push(Some(Host::new(self.hosts.len(), 1, slots, self.ms)));
    }

    fn kill(&mut self, number: usize) {
        if let Some(host) = self.hosts[number].take() {
            // Its connections close with it.
            self.strays.retain(|(_, heartbeat)| heartbeat.host != host.name);
            self.dead.push((self.ms, host.slots));
        }
    }

    /// Runs for `ms`; `load` returns the other load of each host as a portion of its slots' capacity.
    fn run(&mut self, ms: u64, load: impl Fn(usize) -> f64) {
        for _ in 0..ms {
            self.ms += 1;
            self.deliver();
            for number in 0..self.hosts.len() {
                self.work(number, load(number));
                self.speak(number);
            }
            let others: u32 = self.hosts.iter().flatten().map(|host| host.at_work[1]).sum();
            self.others.push(f64::from(others) / f64::from(self.slots().max(1)));
        }
    }

    /// Runs for `ms` and checks each millisecond that the limits of all hosts together leave the reserve
    /// free.
    fn run_strictly(&mut self, ms: u64, load: impl Fn(usize) -> f64) {
        for _ in 0..ms {
            self.run(1, &load);
            let (reach, most) = (self.reach(), self.allowed(0));
            assert!(reach <= most, "{reach} of {most} after {} ms", self.ms);
        }
    }

    fn work(&mut self, number: usize, load: f64) {
        let Some(host) = &mut self.hosts[number] else { return };
        host.end_some(self.ms);
        if self.ms.is_multiple_of(250) {
            host.engine.tick(now(self.ms, host.utc));
        }
        for (is_critical, load) in [(true, CRITICAL), (false, load)] {
            for _ in 0..poisson(&mut self.random, load * f64::from(host.slots) / TAKES) {
                let takes = (self.random.exponential() * TAKES) as u64;
                let has_slot = host.at_work.iter().sum::<u32>() < host.slots;
                let passes = host.acquire(is_critical, takes, self.ms);
                if is_critical {
                    self.critical.0 += 1;
                    self.critical.1 += u64::from(passes && has_slot);
                }
            }
        }
    }

    fn speak(&mut self, number: usize) {
        let Some(host) = &mut self.hosts[number] else { return };
        let timeout = Duration::from_micros(self.timeout_us);
        let Some(heartbeat) = host.speak(timeout, now(self.ms, 0).at) else { return };
        if self.random.below(STRAYS) == 0 {
            self.strays.push((self.ms + u64::from(self.random.below(3_000)), heartbeat.clone()));
        }
        let to = To { host: number as u32, epoch: host.epoch };
        let sent = self.network.send(
            to,
            ScriptCommand::Heartbeat(heartbeat.clone()),
            self.ms * 1_000,
            self.timeout_us,
        );
        host.pending.push((sent, heartbeat));
    }

    fn stray(&mut self) {
        let store_us = self.store_us(self.ms * 1_000);
        for (_, heartbeat) in self.strays.extract_if(.., |(at, _)| *at <= self.ms) {
            if !self.is_out {
                self.store.execute(&ScriptCommand::Heartbeat(heartbeat), store_us);
            }
        }
    }

    fn store_us(&self, us: u64) -> u64 {
        (EPOCH_US + us).checked_add_signed(self.store_ahead_us).unwrap()
    }

    fn deliver(&mut self) {
        self.stray();
        while let Some((us, to, event)) = self.network.next(self.ms * 1_000) {
            let at = now(self.ms, 0).at;
            let host = self.hosts[to.host as usize].as_mut().filter(|host| host.epoch == to.epoch);
            match event {
                Event::AtStore { number, command } if !self.is_out => {
                    let store_us = self.store_us(us);
                    let reply = self.store.execute(&command, store_us);
                    if let ScriptReply::Heartbeat(reply) = &reply {
                        self.answered = reply.pools.first().map_or(self.answered, |sent| sent.load.slots);
                    }
                    self.network.reply(to, number, command, reply, us);
                }
                Event::AtHost { number, command, reply } if !self.is_out => {
                    let (Some(host), ScriptCommand::Heartbeat(heartbeat), ScriptReply::Heartbeat(reply)) =
                        (host, &command, reply)
                    else {
                        continue;
                    };
                    host.pending.retain(|(pending, _)| *pending != number);
                    host.link.record_reply(at);
                    host.limit.set(None);
                    let is_taken = host.reserves.apply_reply(heartbeat, &reply, &host.engine);
                    assert!(!is_taken, "nobody else goes by its name");
                }
                Event::TimedOut { number } => {
                    let Some(host) = host else { continue };
                    let found = host.pending.iter().position(|(pending, _)| *pending == number);
                    if let Some((_, heartbeat)) = found.map(|found| host.pending.remove(found)) {
                        host.link.heartbeat_failed(at);
                        host.reserves.failed(&heartbeat);
                    }
                }
                Event::AtStore { .. } | Event::AtHost { .. } => {}
            }
        }
    }

    fn slots(&self) -> u32 {
        self.hosts.iter().flatten().map(|host| host.slots).sum()
    }

    /// Returns the limit of all hosts together, including hosts that crashed within the last `dead_ms`.
    fn allowed(&self, dead_ms: u64) -> u32 {
        let dead = self.dead.iter().filter(|(at, _)| self.ms < at + dead_ms);
        (self.slots() + dead.map(|(_, slots)| slots).sum::<u32>()) * 4 / 5
    }

    fn reach(&self) -> u32 {
        self.hosts.iter().flatten().map(|host| host.reach(self.ms)).sum()
    }

    /// Returns the slots of all hosts known to this host.
    fn slots_known(&self, number: usize) -> u64 {
        let host = self.hosts[number].as_ref().unwrap();
        let elsewhere = host.view(self.ms).reserve.unwrap().elsewhere;
        elsewhere.map_or(0, |sums| sums.slots) + u64::from(host.slots)
    }

    /// Returns the peak of other leases in the last milliseconds, as a portion of the slots.
    fn most(&self, last: u64) -> f64 {
        self.others[self.others.len() - last as usize..].iter().copied().fold(0.0, f64::max)
    }

    fn mean(&self, last: u64) -> f64 {
        self.others[self.others.len() - last as usize..].iter().sum::<f64>() / last as f64
    }
}

fn now(ms: u64, utc: i64) -> Now {
    Now { at: Timestamp::from_nanos(ms * 1_000_000), utc_offset_nanos: utc }
}
