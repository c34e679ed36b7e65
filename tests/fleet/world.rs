//! Simulates hosts, Redis and the network in steps of a millisecond.

use tidegate::fleet::command::ScriptCommand;
use tidegate::limit::share::RemoteCheckWait;

use crate::audit::Audit;
use crate::host::{FleetRequest, Host};
use crate::load::Load;
use crate::measure::Measure;
use crate::network::{Event, Network, To};
use crate::plan::Plan;
use crate::random::Random;
use crate::store::Store;

pub(crate) struct World<'p> {
    plan: &'p Plan,
    hosts: Vec<Option<Host>>,
    epochs: Vec<u64>,
    store: Store,
    /// Redis clock at the start, µs.
    pub(crate) store_us: u64,
    network: Network,
    random: Random,
    pub(crate) measure: Measure,
    pub(crate) audit: Option<Audit>,
    tenants: Vec<String>,
    /// By host.
    secrets: Vec<u8>,
    looks: Looks,
}

/// When hosts tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Looks {
    /// At every interval, as a daemon does.
    Always,
    /// Only when due: the same results in a fraction of the time.
    WhenDue,
}

/// Default secret of a host.
pub(crate) const SECRET: u8 = 9;

/// Hosts start before the first request.
pub(crate) const WARM_MS: u64 = 2_500;

/// Time after the last request for all messages to arrive.
const REST_MS: u64 = 8_000;

pub(crate) fn run(plan: &Plan) -> World<'_> {
    run_looking(plan, Looks::WhenDue)
}

pub(crate) fn run_looking(plan: &Plan, looks: Looks) -> World<'_> {
    let mut random = Random::new(plan.seed, 3);
    let store_us = 1_700_000_000_000_000 + u64::from(random.below(10_000_000));
    let mut world = World {
        plan,
        hosts: Vec::new(),
        epochs: vec![0; plan.hosts as usize],
        store: Store::default(),
        store_us,
        network: Network::new(plan),
        random,
        measure: Measure::new(plan),
        audit: plan.audited.then(Audit::default),
        secrets: vec![SECRET; plan.hosts as usize],
        tenants: (0..plan.tenants).map(|tenant| format!("t{tenant}")).collect(),
        looks,
    };
    world.hosts = (0..plan.hosts).map(|_| None).collect();
    (0..plan.hosts).for_each(|host| world.join(host, 0));
    let mut load = Load::new(plan);
    let mut arrivals = Vec::new();
    let rest = if plan.audited { REST_MS } else { 0 };
    for step in 0..WARM_MS + plan.ms + rest {
        let us = step * 1_000;
        world.deliver(us);
        if step == WARM_MS {
            cut_off(&world.hosts).for_each(|hosts| world.measure.cut_off(hosts));
        }
        if (WARM_MS..WARM_MS + plan.ms).contains(&step) {
            let ms = step - WARM_MS;
            world.faults(ms, us);
            world.resume(ms, us);
            load.at(ms, &mut arrivals);
            world.judge(&mut arrivals, ms, us);
            world.measure.goes_on_alone(cut_off(&world.hosts));
        }
        world.tick(step, us);
    }
    let end_us = (WARM_MS + plan.ms + rest) * 1_000;
    (0..plan.hosts).for_each(|host| world.look(host, end_us));
    world
}

impl World<'_> {
    fn join(&mut self, number: u32, us: u64) {
        let epoch = &mut self.epochs[number as usize];
        *epoch += 1;
        let secret = self.secrets[number as usize];
        let most = self.plan.faults.drift_ppm;
        let drift = i64::from(self.random.below(2 * most + 1)) - i64::from(most);
        self.hosts[number as usize] = Some(Host::with_secret(secret, self.plan, (number, *epoch), drift, us));
    }

    /// Audits the expired tokens of a host since its last action.
    fn look(&mut self, number: u32, us: u64) {
        if let Some(host) = &self.hosts[number as usize] {
            before(&mut self.audit, number, host, us);
        }
    }

    fn faults(&mut self, ms: u64, us: u64) {
        let faults = &self.plan.faults;
        for crash in &faults.crashes {
            if crash.from_ms == ms {
                self.look(crash.host, us);
                self.hosts[crash.host as usize] = None;
                if let Some(audit) = &mut self.audit {
                    audit.crash(crash.host);
                }
            }
            if crash.to_ms == ms {
                self.join(crash.host, us);
            }
        }
        for rollout in faults.rollouts.iter().filter(|rollout| rollout.at_ms == ms) {
            self.secrets[rollout.host as usize] = rollout.secret;
            self.join(rollout.host, us);
        }
        if faults.flushes(ms) {
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

    fn is_out(&self, host: u32, us: u64) -> bool {
        self.plan.faults.is_out(host, us, WARM_MS)
    }

    fn deliver(&mut self, until_us: u64) {
        while let Some((us, to, event)) = self.network.next(until_us) {
            match event {
                Event::AtStore { number, command } => self.at_store(number, command, to, us),
                Event::AtHost { number, command, reply } => {
                    if !self.is_out(to.host, us)
                        && let Some(host) = found(&mut self.hosts, &self.epochs, to)
                    {
                        before(&mut self.audit, to.host, host, us);
                        host.answered(number, &command, reply, us);
                        if let Some(audit) = &mut self.audit {
                            audit.record_reply(to.host, host.has(us));
                        }
                    }
                }
                Event::TimedOut { number } => {
                    if let Some(host) = found(&mut self.hosts, &self.epochs, to) {
                        host.timed_out(number, us);
                    }
                }
            }
        }
    }

    fn at_store(&mut self, number: u64, command: ScriptCommand, to: To, us: u64) {
        if self.is_out(to.host, us) {
            return;
        }
        let reply = self.store.execute(&command, self.store_us + us);
        if let Some(audit) = &mut self.audit {
            audit.done(&command, &reply);
        }
        self.measure.commands += 1;
        if let ScriptCommand::Sync(batch) = &command {
            let second = (us / 1_000_000).saturating_sub(WARM_MS / 1_000) as usize;
            if let Some(cells) = self.measure.cells.get_mut(second) {
                *cells += batch.asks.len() as u64;
            }
        }
        self.network.reply(to, number, command, reply, us);
    }

    fn judge(&mut self, arrivals: &mut [u32], ms: u64, us: u64) {
        let is_audited = self.audit.is_some();
        if is_audited {
            arrivals.sort_unstable();
        }
        for of_host in arrivals.chunk_by(|one, next| is_audited && one == next) {
            let number = of_host[0];
            let Some(host) = self.hosts[number as usize].as_mut().filter(|host| host.is_up()) else {
                continue;
            };
            before(&mut self.audit, number, host, us);
            let mut admitted = 0;
            for _ in of_host {
                let tenant = if self.plan.tenants > 1 { self.random.below(self.plan.tenants) } else { 0 };
                let request = FleetRequest { tenant, cost: 1, number: 0, is_held: false };
                if let Some(judged) = host.ask(request, &self.tenants, us) {
                    admitted += u64::from(judged.passed);
                    self.measure.request(number, tenant, ms, judged.passed);
                }
            }
            if let Some(audit) = &mut self.audit {
                audit.judged(number, admitted, host.has(us));
            }
        }
    }

    fn resume(&mut self, ms: u64, us: u64) {
        if self.plan.asks == RemoteCheckWait::Never {
            return;
        }
        for (number, host) in self.hosts.iter_mut().enumerate() {
            for (request, judged) in host.iter_mut().flat_map(|host| host.answers(&self.tenants, us)) {
                self.measure.request(number as u32, request.tenant, ms, judged.passed);
            }
        }
    }

    fn tick(&mut self, step: u64, us: u64) {
        // Hosts tick at different moments.
        let first = (step % self.plan.tick_ms) as u32;
        for number in (first..self.plan.hosts).step_by(self.plan.tick_ms as usize) {
            let looks = |host: &&mut Host| self.looks == Looks::Always || host.is_due(us);
            let Some(host) = self.hosts[number as usize].as_mut().filter(looks) else { continue };
            before(&mut self.audit, number, host, us);
            let was_linked = host.is_linked();
            let commands = std::mem::take(host.tick(us));
            let is_asked = (WARM_MS..WARM_MS + self.plan.ms).contains(&step);
            if is_asked && was_linked && !host.is_linked() {
                self.measure.cut_off(host.counts());
            }
            if let Some(audit) = &mut self.audit {
                audit.sent(number, &commands, host.has(us));
            }
            let to = To { host: number, epoch: self.epochs[number as usize] };
            let timeout = self.plan.timeout_us(host.member.sync.timeout());
            for command in commands {
                let number = self.network.send(to, command.clone(), us, timeout);
                host.sent(number, command, us);
            }
        }
    }

    pub(crate) fn counts(&self) -> Vec<tidegate::fleet::sync::SyncCounts> {
        self.hosts.iter().flatten().map(|host| host.member.sync.counts).collect()
    }
}

/// Returns the host count known by each host in an outage.
fn cut_off(hosts: &[Option<Host>]) -> impl Iterator<Item = u32> + '_ {
    hosts.iter().flatten().filter(|host| host.is_up() && !host.is_linked()).map(Host::counts)
}

fn found<'h>(hosts: &'h mut [Option<Host>], epochs: &[u64], to: To) -> Option<&'h mut Host> {
    hosts[to.host as usize].as_mut().filter(|_| epochs[to.host as usize] == to.epoch)
}

fn before(audit: &mut Option<Audit>, number: u32, host: &Host, us: u64) {
    if let Some(audit) = audit {
        audit.before(number, host.has(us));
    }
}
