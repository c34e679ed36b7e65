//! Simulates hosts, Redis and the network between them in small steps of time.

use std::collections::VecDeque;
use std::sync::Arc;

use tidegate::fleet::command::ScriptCommand;

use crate::host::{Birth, FleetRequest, Host, Judged};
use crate::leases::Leases;
use crate::load::Load;
use crate::measure::Measure;
use crate::network::{Event, Network, STRAY, To};
use crate::plan::Plan;
use crate::random::Random;
use crate::rules::Kind;
use crate::store::Store;

pub(crate) struct World {
    plan: Arc<Plan>,
    tenants: Arc<[String]>,
    pub(crate) hosts: Vec<Option<Host>>,
    epochs: Vec<u64>,
    /// By host.
    secrets: Vec<u8>,
    pub(crate) store: Store,
    /// Redis clock at the start, µs.
    pub(crate) store_us: u64,
    pub(crate) network: Network,
    pub(crate) random: Random,
    pub(crate) us: u64,
    /// Redis is unreachable, beside the outages of the plan.
    pub(crate) is_out: bool,
    load: Load,
    pub(crate) measure: Measure,
    pub(crate) leases: Option<Leases>,
    /// Requests of pages to come, with their times and hosts.
    pages: VecDeque<(u64, FleetRequest, u32)>,
    /// Requests of pages, by number.
    pub(crate) sent: Vec<Sent>,
    /// Commands that hosts sent, if they are kept.
    pub(crate) log: Option<Vec<(u32, ScriptCommand)>>,
}

/// A request of a page, and the time and result of its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) request: FleetRequest,
    pub(crate) us: u64,
    pub(crate) answer: Option<(u64, bool)>,
}

/// Runs a plan. Hosts tick only when due: the same results as of a daemon, in a fraction of the time.
pub(crate) fn run(plan: &Plan) -> World {
    let mut world = World::started(plan);
    world.advance(plan.ends_us() / 1_000 + plan.rest_ms, World::serve);
    world
}

impl World {
    /// Makes a world in which no host has started.
    pub(crate) fn new(plan: &Plan) -> World {
        let mut random = Random::new(plan.seed, 3);
        let store_us = 1_700_000_000_000_000 + u64::from(random.below(10_000_000));
        let hosts = plan.hosts as usize;
        let mut paging = Random::new(plan.seed, 11);
        let pages = plan.pages.iter().flat_map(|pages| pages.draw(plan, &mut paging));
        World {
            tenants: (0..plan.tenants).map(|tenant| format!("t{tenant}")).collect(),
            hosts: (0..hosts).map(|_| None).collect(),
            epochs: vec![0; hosts],
            secrets: vec![SECRET; hosts],
            store: Store::default(),
            store_us,
            network: Network::new(plan),
            random,
            us: 0,
            is_out: false,
            load: Load::new(plan),
            measure: Measure::new(plan),
            leases: (plan.kind == Kind::Permits).then(|| Leases::new(plan)),
            pages: pages.collect(),
            sent: Vec::new(),
            log: None,
            plan: Arc::new(plan.clone()),
        }
    }

    /// Makes a world in which all hosts have just started.
    pub(crate) fn started(plan: &Plan) -> World {
        let mut world = World::new(plan);
        (0..plan.hosts).for_each(|host| world.join(host));
        world
    }

    /// Runs for this time; in each step `serve` follows the delivery of messages, and ticks follow it.
    pub(crate) fn advance(&mut self, ms: u64, mut serve: impl FnMut(&mut World)) {
        for _ in 0..ms * 1_000 / self.plan.step_us {
            if !self.plan.then_us.is_empty() {
                self.network.round_trip_us = self.plan.round_trip_at(self.us);
            }
            self.deliver();
            serve(self);
            self.tick();
            self.us += self.plan.step_us;
        }
    }

    pub(crate) fn host(&mut self, number: u32) -> &mut Host {
        self.hosts[number as usize].as_mut().unwrap()
    }

    pub(crate) fn join(&mut self, number: u32) {
        let epoch = &mut self.epochs[number as usize];
        *epoch += 1;
        let secret = self.secrets[number as usize];
        let most = self.plan.faults.drift_ppm;
        let drift_ppm = i64::from(self.random.below(2 * most + 1)) - i64::from(most);
        let birth = Birth { number, epoch: *epoch, secret, drift_ppm, us: self.us };
        self.hosts[number as usize] = Some(Host::new(&self.plan, &self.tenants, birth));
    }

    pub(crate) fn crash(&mut self, number: u32) {
        self.hosts[number as usize] = None;
        if let Some(leases) = &mut self.leases {
            leases.crash(number);
        }
    }

    /// The requests and faults of the plan.
    pub(crate) fn serve(&mut self) {
        let (begins_us, ends_us) = (self.plan.begins_us(), self.plan.ends_us());
        if let Some(leases) = &mut self.leases {
            leases.end(&self.hosts, self.us);
        }
        if self.us == begins_us {
            cut_off(&self.hosts).for_each(|hosts| self.measure.cut_off(hosts));
        }
        if !(begins_us..ends_us).contains(&self.us) {
            self.network.lost = if self.us < begins_us { self.plan.faults.lost } else { 0 };
            return self.resume_all();
        }
        let since_us = self.us - begins_us;
        let is_full = since_us.is_multiple_of(1_000);
        if is_full {
            self.faults(since_us / 1_000);
        }
        match self.plan.pages {
            Some(_) => self.serve_pages(),
            None if is_full => self.serve_load(since_us / 1_000),
            None => {}
        }
        self.resume_all();
        if is_full {
            if let Some(leases) = &mut self.leases {
                leases.check(self.us);
            }
            self.measure.goes_on_alone(cut_off(&self.hosts));
        }
    }

    fn faults(&mut self, ms: u64) {
        let plan = Arc::clone(&self.plan);
        let faults = &plan.faults;
        for crash in &faults.crashes {
            if crash.from_ms == ms {
                self.crash(crash.host);
            }
            if crash.to_ms == ms {
                self.join(crash.host);
            }
        }
        for rollout in faults.rollouts.iter().filter(|rollout| rollout.at_ms == ms) {
            self.secrets[rollout.host as usize] = rollout.secret;
            self.join(rollout.host);
        }
        if faults.flushes_ms.contains(&ms) {
            self.store.flush();
        }
        if faults.steps && ms.is_multiple_of(500) {
            let host = self.random.below(self.plan.hosts) as usize;
            let step = i64::from(self.random.below(60_000)) * 1_000_000_000 - 30_000_000_000_000;
            if let Some(host) = &mut self.hosts[host] {
                host.set_wall_clock(step);
            }
        }
    }

    fn serve_load(&mut self, ms: u64) {
        let mut arrivals = Vec::new();
        self.load.at(ms, &mut arrivals);
        arrivals.into_iter().for_each(|number| self.serve_one(number));
    }

    /// Draws a request to a host.
    fn serve_one(&mut self, number: u32) {
        let tenant = if self.plan.tenants > 1 { self.random.below(self.plan.tenants) } else { 0 };
        let mut request = FleetRequest::new(tenant);
        if self.plan.held > 0 {
            request.is_held = self.random.below(1_000) < self.plan.held;
        }
        if self.leases.is_some() {
            let mean_us = f64::from(self.plan.service_ms) * 1_000.0;
            request.lasts_us = ((self.random.exponential() * mean_us) as u64).max(1);
        }
        self.ask(number, request);
    }

    fn serve_pages(&mut self) {
        let us = self.us;
        while let Some((_, request, host)) = self.pages.pop_front_if(|(at, ..)| *at <= us) {
            let request = FleetRequest { number: self.sent.len() as u64, ..request };
            self.sent.push(Sent { request, us, answer: None });
            self.ask(host, request);
        }
    }

    /// Sends a request to a host that is up.
    fn ask(&mut self, number: u32, request: FleetRequest) {
        let us = self.us;
        let Some(host) = self.hosts[number as usize].as_mut().filter(|host| host.is_up()) else { return };
        let judged = host.ask(request, us);
        let is_due = !host.out.is_empty();
        match judged {
            Some(judged) => self.settle(number, request, judged, us),
            None => self.measure.waited += 1,
        }
        if is_due {
            self.flush(number, us);
        }
    }

    fn resume_all(&mut self) {
        if self.plan.asks() {
            for number in 0..self.plan.hosts {
                if self.hosts[number as usize].as_ref().is_some_and(Host::has_waiting) {
                    self.resume(number, self.plan.leaves, self.us);
                }
            }
        }
    }

    /// Decides the pending requests of a host whose checks have ended.
    fn resume(&mut self, number: u32, leaves: u32, us: u64) {
        let random = &mut self.random;
        let Some(host) = &mut self.hosts[number as usize] else { return };
        for (request, judged) in host.answers(us, || leaves > 0 && random.below(1_000) < leaves) {
            self.settle(number, request, judged, us);
        }
        self.flush(number, us);
    }

    fn settle(&mut self, number: u32, request: FleetRequest, judged: Judged, us: u64) {
        self.measure.request(number, (request.tenant, request.cost), us, judged.passed);
        if let (Some(leases), Some(host)) = (&mut self.leases, &self.hosts[number as usize]) {
            leases.judged(number, host, &request, judged, us);
        }
        if let Some(sent) = self.sent.get_mut(request.number as usize) {
            sent.answer = Some((us, judged.passed));
        }
    }

    fn is_out(&self, host: u32, us: u64) -> bool {
        let since_us = us.checked_sub(self.plan.begins_us());
        self.is_out || since_us.is_some_and(|since_us| self.plan.faults.is_out(host, since_us))
    }

    fn deliver(&mut self) {
        while let Some((us, to, event)) = self.network.next(self.us) {
            let is_out = self.is_out(to.host, us);
            let epoch = self.epochs[to.host as usize];
            let host = self.hosts[to.host as usize].as_mut().filter(|_| epoch == to.epoch);
            match event {
                Event::TimedOut { number } => match host {
                    Some(host) if self.plan.reconnects => {
                        host.reconnect(number, self.network.round_trip_us, us);
                    }
                    Some(host) => host.timed_out(number, us),
                    None => {}
                },
                _ if is_out => {}
                // The connections of a host close with it.
                Event::AtStore { number: STRAY, .. } if host.is_none() => {}
                Event::AtStore { number, command } => self.at_store(number, command, to, us),
                Event::AtHost { number, command, reply } => {
                    let Some(host) = host else { continue };
                    host.answered(number, &command, reply, us);
                    assert!(!host.is_name_taken, "no other host has its name");
                    self.resume(to.host, 0, us);
                }
            }
        }
    }

    fn at_store(&mut self, number: u64, command: ScriptCommand, to: To, us: u64) {
        let reply = self.store.execute(&command, self.store_us + us);
        self.measure.command(command.cells(), us);
        if number == STRAY {
            return;
        }
        self.network.reply(to, number, command, reply, us);
    }

    fn tick(&mut self) {
        let us = self.us;
        // Hosts tick at different moments.
        let slots = self.plan.tick_us / self.plan.step_us;
        let first = (us / self.plan.step_us % slots) as u32;
        for number in (first..self.plan.hosts).step_by(slots as usize) {
            let Some(host) = self.hosts[number as usize].as_mut().filter(|host| host.is_due(us)) else {
                continue;
            };
            let was_linked = host.is_linked();
            host.tick(us);
            let is_loaded = (self.plan.begins_us()..self.plan.ends_us()).contains(&us);
            if is_loaded && was_linked && !host.is_linked() {
                self.measure.cut_off(host.counts());
            }
            self.flush(number, us);
        }
    }

    /// Sends the commands of a host that are due.
    fn flush(&mut self, number: u32, us: u64) {
        let to = To { host: number, epoch: self.epochs[number as usize] };
        let Some(host) = self.hosts[number as usize].as_mut().filter(|host| !host.out.is_empty()) else {
            return;
        };
        for command in host.take_commands() {
            if !host.is_connected() {
                host.refuse(&command, us);
                continue;
            }
            self.log.iter_mut().for_each(|log| log.push((number, command.clone())));
            let sent = self.network.send(to, command.clone(), us, host.timeout_us());
            host.sent(sent, command, us);
        }
    }
}

/// Returns the host count known by each host in an outage.
fn cut_off(hosts: &[Option<Host>]) -> impl Iterator<Item = u32> + '_ {
    hosts.iter().flatten().filter(|host| host.is_up() && !host.is_linked()).map(Host::counts)
}

/// Default secret of a host.
const SECRET: u8 = 9;
