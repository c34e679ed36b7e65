//! Draws the load of each host over time: by the shape of a plan, or as pages of callers.

use crate::host::FleetRequest;
use crate::plan::{Plan, Shape};
use crate::random::Random;

pub(crate) struct Load {
    plan: Plan,
    random: Random,
    /// Cumulative weights of the hosts.
    sums: Vec<f64>,
    /// For `OnOff`: state of each host, and when it ends.
    phases: Vec<(bool, u64)>,
    /// For `Cold`: current bursts, by host and end.
    bursts: Vec<(u32, u64)>,
    hot: u32,
}

impl Load {
    pub(crate) fn new(plan: &Plan) -> Load {
        let mut load = Load {
            plan: plan.clone(),
            random: Random::new(plan.seed, 1),
            sums: Vec::new(),
            phases: vec![(false, 0); plan.hosts as usize],
            bursts: Vec::new(),
            hot: 0,
        };
        load.weigh();
        load
    }

    /// Draws the host of each request of a millisecond.
    pub(crate) fn at(&mut self, ms: u64, into: &mut Vec<u32>) {
        into.clear();
        match self.plan.shape {
            Shape::Cold => return self.cold(ms, into),
            Shape::OnOff => self.turn(ms),
            Shape::Moving if ms.is_multiple_of(5_000) => {
                self.hot = (ms / 5_000) as u32 % self.plan.hosts;
                self.weigh();
            }
            _ => {}
        }
        let flash = self.plan.shape == Shape::Flash && (self.plan.ms / 3..self.plan.ms / 2).contains(&ms);
        let mean = self.plan.per_ms() * if flash { 10.0 } else { 1.0 } * self.part();
        for _ in 0..poisson(&mut self.random, mean) {
            into.push(self.draw());
        }
    }

    /// Returns the active share of the load: for `OnOff`, each active host counts twice.
    fn part(&self) -> f64 {
        if self.plan.shape == Shape::OnOff {
            2.0 * self.sums.last().unwrap() / f64::from(self.plan.hosts)
        } else {
            1.0
        }
    }

    fn cold(&mut self, ms: u64, into: &mut Vec<u32>) {
        self.bursts.retain(|(_, until)| ms < *until);
        let each = (f64::from(self.plan.burst) / 2.0).max(1.0);
        for _ in 0..poisson(&mut self.random, self.plan.per_ms() / each) {
            let host = self.random.below(self.plan.hosts);
            self.bursts.push((host, ms + 100));
        }
        for number in 0..self.bursts.len() {
            let host = self.bursts[number].0;
            for _ in 0..poisson(&mut self.random, each / 100.0) {
                into.push(host);
            }
        }
    }

    fn turn(&mut self, ms: u64) {
        let mut turned = false;
        for number in 0..self.phases.len() {
            let (on, until) = self.phases[number];
            if ms >= until {
                let on = if until == 0 { self.random.below(2) == 1 } else { !on };
                self.phases[number] = (on, ms + 1 + (self.random.exponential() * 1_000.0) as u64);
                turned = true;
            }
        }
        if turned {
            self.weigh();
        }
    }

    fn weigh(&mut self) {
        let hosts = self.plan.hosts;
        let mut sum = 0.0;
        self.sums = (0..hosts)
            .map(|host| {
                sum += match self.plan.shape {
                    Shape::Zipf => 1.0 / f64::from(host + 1),
                    Shape::OneHot | Shape::Moving if hosts > 1 && host == self.hot => 0.9,
                    Shape::OneHot | Shape::Moving if hosts > 1 => 0.1 / f64::from(hosts - 1),
                    Shape::OnOff => f64::from(u8::from(self.phases[host as usize].0)),
                    _ => 1.0,
                };
                sum
            })
            .collect();
    }

    fn draw(&mut self) -> u32 {
        let at = self.random.share() * self.sums.last().unwrap();
        (self.sums.partition_point(|sum| *sum <= at) as u32).min(self.plan.hosts - 1)
    }
}

/// Draws by Knuth's product of uniform draws, in steps small enough for it.
pub(crate) fn poisson(random: &mut Random, mean: f64) -> u32 {
    let (mut left, mut count) = (mean, 0);
    loop {
        let end = (-left.min(30.0)).exp();
        let mut product = random.share();
        while product > end {
            count += 1;
            product *= random.share();
        }
        left -= 30.0;
        if left <= 0.0 {
            return count;
        }
    }
}

/// Pages of simultaneous requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pages {
    /// Requests of a page.
    pub(crate) page: u32,
    pub(crate) costs: Costs,
    pub(crate) routing: Routing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Costs {
    Always(u32),
    /// One in `.0` requests costs `.1`, the others one.
    OneIn(u32, u32),
    /// With this median, at most the burst.
    Lognormal(f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Routing {
    /// Each caller has one host.
    Sticky,
    /// Each page goes to a random host.
    Pages,
    /// Each request goes to a random host.
    Requests,
}

impl Pages {
    /// Draws all requests of a run: their times, callers, hosts and costs.
    pub(crate) fn draw(&self, plan: &Plan, random: &mut Random) -> Vec<(u64, FleetRequest, u32)> {
        let per_us = f64::from(plan.rate) * plan.load as f64 / 1e9;
        let every_us = f64::from(self.page) * self.costs.mean() / per_us;
        let (begins_us, ends_us) = (plan.begins_us(), plan.ends_us() - 100_000);
        let mut requests = Vec::new();
        for tenant in 0..plan.tenants {
            let mut at = begins_us as f64 + random.share() * every_us;
            while at < ends_us as f64 {
                let host = random.below(plan.hosts);
                for number in 0..self.page {
                    let cost = self.costs.draw(plan.burst, random);
                    let host = match self.routing {
                        Routing::Sticky => tenant % plan.hosts,
                        Routing::Pages => host,
                        Routing::Requests => random.below(plan.hosts),
                    };
                    // Requests of a page follow 20 µs apart.
                    let us = at as u64 + u64::from(number) * 20;
                    requests.push((us, FleetRequest { cost, ..FleetRequest::new(tenant) }, host));
                }
                at += every_us * (0.5 + random.share());
            }
        }
        requests.sort_unstable();
        requests
    }
}

impl Costs {
    fn mean(self) -> f64 {
        match self {
            Costs::Always(cost) => f64::from(cost),
            Costs::OneIn(many, cost) => f64::from(many - 1 + cost) / f64::from(many),
            Costs::Lognormal(median) => median * 1.65,
        }
    }

    fn draw(self, burst: u32, random: &mut Random) -> u32 {
        match self {
            Costs::Always(cost) => cost,
            Costs::OneIn(many, cost) => [1, cost][usize::from(random.below(many) == 0)],
            Costs::Lognormal(median) => ((median * random.lognormal()) as u32).clamp(1, burst),
        }
    }
}
