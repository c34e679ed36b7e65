//! Measures the results of a run.

use crate::plan::Plan;

/// A leaky bucket filled by all admissions: its level above the burst is the excess over the budget in the
/// worst window of any length.
#[derive(Clone, Debug)]
struct Poured {
    level: f64,
    at_ms: u64,
    most: f64,
}

/// A bucket that sees every request immediately.
#[derive(Clone, Debug)]
struct Perfect {
    level: f64,
    at_ms: u64,
}

/// Counts of a running simulation.
pub(crate) struct Measure {
    rate_ms: f64,
    burst: f64,
    leak: f64,
    poured: Vec<Poured>,
    poured_leaking: Vec<Poured>,
    perfect: Vec<Perfect>,
    /// By millisecond.
    pub(crate) admitted: Vec<u32>,
    pub(crate) offered: Vec<u32>,
    pub(crate) ideal: Vec<u32>,
    by_host: Vec<[u64; 3]>,
    /// Cells synced, by second.
    pub(crate) cells: Vec<u64>,
    pub(crate) commands: u64,
    /// Host count of each host that entered an outage under load.
    alone: Vec<u32>,
    /// Milliseconds of outages, each weighted by the host's share of the budget.
    alone_ms: f64,
}

impl Measure {
    pub(crate) fn new(plan: &Plan) -> Measure {
        let tenants = plan.tenants as usize;
        let ms = plan.ms as usize;
        let burst = f64::from(plan.burst);
        Measure {
            rate_ms: f64::from(plan.rate) / (1_000.0 * plan.period_s as f64),
            burst,
            leak: plan.leak(),
            poured: vec![Poured { level: 0.0, at_ms: 0, most: 0.0 }; tenants],
            poured_leaking: vec![Poured { level: 0.0, at_ms: 0, most: 0.0 }; tenants],
            perfect: vec![Perfect { level: burst, at_ms: 0 }; tenants],
            admitted: vec![0; ms],
            offered: vec![0; ms],
            ideal: vec![0; ms],
            by_host: vec![[0; 3]; plan.hosts as usize],
            cells: vec![0; ms / 1_000 + 1],
            commands: 0,
            alone: Vec::new(),
            alone_ms: 0.0,
        }
    }

    /// Records an outage of a host that knows this host count.
    pub(crate) fn cut_off(&mut self, hosts: u32) {
        self.alone.push(hosts);
    }

    /// Records a millisecond of outage for hosts that know these host counts.
    pub(crate) fn goes_on_alone(&mut self, hosts: impl Iterator<Item = u32>) {
        self.alone_ms += hosts.map(|hosts| 1.0 / f64::from(hosts)).sum::<f64>();
    }

    /// Returns the tokens earned by shares during outages.
    pub(crate) fn earned_alone(&self) -> f64 {
        self.alone_ms * self.rate_ms
    }

    /// Returns the excess over one budget of the shares of hosts that entered an outage before they knew the
    /// others.
    pub(crate) fn parts_too_large(&self) -> f64 {
        let part = |hosts: f64| 1.0 / hosts;
        let own = part(self.by_host.len() as f64);
        self.alone.iter().map(|hosts| (part(f64::from(*hosts)) - own).max(0.0)).sum()
    }

    pub(crate) fn request(&mut self, host: u32, tenant: u32, ms: u64, passed: bool) {
        let (tenant, at) = (tenant as usize, ms as usize);
        self.offered[at] += 1;
        let by_host = &mut self.by_host[host as usize];
        by_host[0] += 1;
        let perfect = &mut self.perfect[tenant];
        perfect.level = self.burst.min(perfect.level + (ms - perfect.at_ms) as f64 * self.rate_ms);
        perfect.at_ms = ms;
        if perfect.level >= 1.0 {
            perfect.level -= 1.0;
            self.ideal[at] += 1;
            by_host[2] += 1;
        }
        if passed {
            by_host[1] += 1;
            self.admitted[at] += 1;
            self.poured[tenant].pour(ms, self.rate_ms);
            self.poured_leaking[tenant].pour(ms, self.rate_ms * (1.0 + self.leak));
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        let sum = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
        let (offered, admitted, ideal) = (sum(&self.offered), sum(&self.admitted), sum(&self.ideal));
        let most = |poured: &[Poured]| poured.iter().map(|poured| poured.most).fold(0.0, f64::max);
        let seconds = self.admitted.len() as f64 / 1_000.0;
        Seen {
            offered,
            admitted,
            excess: (most(&self.poured) - self.burst).max(0.0),
            excess_leaking: (most(&self.poured_leaking) - self.burst).max(0.0),
            used: admitted as f64 / (ideal as f64).max(1.0),
            jain: self.jain(1),
            jain_ideal: self.jain(2),
            cells: self.cells.iter().sum::<u64>() as f64 / seconds,
            cut_offs: self.alone.len() as u64,
        }
    }

    /// Computes Jain's index of each host's served portion of its requests.
    fn jain(&self, of: usize) -> f64 {
        let asked = self.by_host.iter().filter(|counts| counts[0] > 0);
        let shares: Vec<f64> = asked.map(|counts| counts[of] as f64 / counts[0] as f64).collect();
        let (one, two) =
            shares.iter().fold((0.0, 0.0), |(one, two), share| (one + share, two + share * share));
        if two > 0.0 { one * one / (two * shares.len() as f64) } else { 1.0 }
    }

    /// Returns admissions as a portion of those of a perfect bucket in a span.
    pub(crate) fn part(&self, from_ms: u64, to_ms: u64) -> f64 {
        let sum = |counts: &[u32]| {
            counts[from_ms as usize..to_ms as usize].iter().map(|n| f64::from(*n)).sum::<f64>()
        };
        sum(&self.admitted) / sum(&self.ideal).max(1.0)
    }

    /// Returns the seconds until sums over a second stay within 10 % of a perfect bucket.
    pub(crate) fn settled_after(&self, from_ms: u64) -> f64 {
        let end = self.admitted.len() as u64;
        let bad = |at: &u64| (self.part(*at, at + 1_000) - 1.0).abs() > 0.1;
        let last = (from_ms..end - 1_000).step_by(100).filter(bad).last();
        last.map_or(0.0, |last| (last + 100 - from_ms) as f64 / 1_000.0)
    }
}

impl Poured {
    fn pour(&mut self, ms: u64, rate_ms: f64) {
        self.level = (self.level - (ms - self.at_ms) as f64 * rate_ms).max(0.0) + 1.0;
        self.at_ms = ms;
        self.most = self.most.max(self.level);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    /// Tokens beyond the budget, in the worst window.
    pub(crate) excess: f64,
    /// The same, less the untracked tokens that hosts may admit.
    pub(crate) excess_leaking: f64,
    /// Admissions as a portion of those of a perfect bucket.
    pub(crate) used: f64,
    /// Jain's index of each host's served portion.
    pub(crate) jain: f64,
    /// The same for a perfect bucket.
    pub(crate) jain_ideal: f64,
    pub(crate) cells: f64,
    pub(crate) cut_offs: u64,
}
