//! Draws the load of each host over time.

use crate::plan::{Plan, Shape};
use crate::random::Random;

pub(crate) struct Load {
    per_ms: f64,
    burst: f64,
    shape: Shape,
    ms: u64,
    hosts: u32,
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
            per_ms: plan.per_ms(),
            burst: f64::from(plan.burst),
            shape: plan.shape,
            ms: plan.ms,
            hosts: plan.hosts,
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
        match self.shape {
            Shape::Cold => return self.cold(ms, into),
            Shape::OnOff => self.turn(ms),
            Shape::Moving if ms.is_multiple_of(5_000) => {
                self.hot = (ms / 5_000) as u32 % self.hosts;
                self.weigh();
            }
            _ => {}
        }
        let flash = self.shape == Shape::Flash && (self.ms / 3..self.ms / 2).contains(&ms);
        let mean = self.per_ms * if flash { 10.0 } else { 1.0 } * self.part();
        for _ in 0..poisson(&mut self.random, mean) {
            into.push(self.draw());
        }
    }

    /// Returns the active share of the load: for `OnOff`, each active host counts twice.
    fn part(&self) -> f64 {
        if self.shape == Shape::OnOff { 2.0 * self.sums.last().unwrap() / f64::from(self.hosts) } else { 1.0 }
    }

    fn cold(&mut self, ms: u64, into: &mut Vec<u32>) {
        self.bursts.retain(|(_, until)| ms < *until);
        let each = (self.burst / 2.0).max(1.0);
        for _ in 0..poisson(&mut self.random, self.per_ms / each) {
            let host = self.random.below(self.hosts);
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
        let hosts = self.hosts;
        let mut sum = 0.0;
        self.sums = (0..hosts)
            .map(|host| {
                sum += match self.shape {
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
        (self.sums.partition_point(|sum| *sum <= at) as u32).min(self.hosts - 1)
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
