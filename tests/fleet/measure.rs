//! Measures the results of a run.

use crate::plan::Plan;

/// A token bucket beside the hosts, which sees each request immediately.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    per_ms: f64,
    burst: f64,
    pub(crate) level: f64,
    at_us: u64,
}

impl Bucket {
    pub(crate) fn new(plan: &Plan, leak: f64) -> Bucket {
        let (per_ms, burst) = (plan.budget_per_ms() * (1.0 + leak), f64::from(plan.burst));
        Bucket { per_ms, burst, level: burst, at_us: 0 }
    }

    /// Returns its level at this time.
    pub(crate) fn refill(&mut self, us: u64) -> f64 {
        let ms = us.saturating_sub(self.at_us) as f64 / 1e3;
        self.level = self.burst.min(self.level + ms * self.per_ms);
        self.at_us = self.at_us.max(us);
        self.level
    }
}

/// Buckets charged with the admissions of a tenant: their deepest debt is the excess over the budget in the worst
/// window of any length.
#[derive(Clone, Debug)]
struct Charged {
    bucket: Bucket,
    excess: f64,
}

impl Charged {
    fn charge(&mut self, cost: u32, us: u64) {
        self.bucket.level = self.bucket.refill(us) - f64::from(cost);
        self.excess = self.excess.max(-self.bucket.level);
    }
}

/// Counts of a running simulation.
pub(crate) struct Measure {
    rate_ms: f64,
    ms: u64,
    begins_us: u64,
    /// By tenant.
    charged: Vec<Charged>,
    /// The same, with a rate that includes the untracked requests that hosts may admit.
    charged_leaking: Vec<Charged>,
    perfect: Vec<Bucket>,
    /// By millisecond.
    pub(crate) admitted: Vec<u32>,
    pub(crate) offered: Vec<u32>,
    pub(crate) ideal: Vec<u32>,
    /// Requests, admissions and those of a perfect bucket.
    by_host: Vec<[u64; 3]>,
    /// Cells synced, by second.
    pub(crate) cells: Vec<u64>,
    /// Commands, and those under load.
    pub(crate) commands: u64,
    pub(crate) commands_loaded: u64,
    /// Requests that waited for a command.
    pub(crate) waited: u64,
    /// Host count of each host that entered an outage under load.
    alone: Vec<u32>,
    /// Milliseconds of outages, each weighted by the host's share of the budget.
    alone_ms: f64,
}

impl Measure {
    pub(crate) fn new(plan: &Plan) -> Measure {
        let tenants = plan.tenants as usize;
        let ms = (plan.ms + plan.rest_ms) as usize + 1;
        let charged = |leak| vec![Charged { bucket: Bucket::new(plan, leak), excess: 0.0 }; tenants];
        Measure {
            rate_ms: plan.budget_per_ms(),
            ms: plan.ms,
            begins_us: plan.begins_us(),
            charged: charged(0.0),
            charged_leaking: charged(plan.leak()),
            perfect: vec![Bucket::new(plan, 0.0); tenants],
            admitted: vec![0; ms],
            offered: vec![0; ms],
            ideal: vec![0; ms],
            by_host: vec![[0; 3]; plan.hosts as usize],
            cells: vec![0; ms / 1_000 + 1],
            commands: 0,
            commands_loaded: 0,
            waited: 0,
            alone: Vec::new(),
            alone_ms: 0.0,
        }
    }

    pub(crate) fn command(&mut self, cells: usize, us: u64) {
        self.commands += 1;
        self.commands_loaded += u64::from(us >= self.begins_us);
        let second = (us / 1_000_000).saturating_sub(self.begins_us / 1_000_000) as usize;
        if let Some(all) = self.cells.get_mut(second) {
            *all += cells as u64;
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

    /// Records a decision.
    pub(crate) fn request(&mut self, host: u32, (tenant, cost): (u32, u32), us: u64, passed: bool) {
        let (tenant, at) = (tenant as usize, ((us - self.begins_us) / 1_000) as usize);
        self.offered[at] += 1;
        let by_host = &mut self.by_host[host as usize];
        by_host[0] += 1;
        let perfect = &mut self.perfect[tenant];
        if perfect.refill(us) >= f64::from(cost) {
            perfect.level -= f64::from(cost);
            self.ideal[at] += 1;
            by_host[2] += 1;
        }
        if passed {
            by_host[1] += 1;
            self.admitted[at] += 1;
            self.charged[tenant].charge(cost, us);
            self.charged_leaking[tenant].charge(cost, us);
        }
    }

    pub(crate) fn seen(&self) -> Seen {
        let sum = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum::<u64>();
        let (offered, admitted, ideal) = (sum(&self.offered), sum(&self.admitted), sum(&self.ideal));
        let most = |charged: &[Charged]| charged.iter().map(|charged| charged.excess).fold(0.0, f64::max);
        Seen {
            offered,
            admitted,
            excess: most(&self.charged),
            excess_leaking: most(&self.charged_leaking),
            used: admitted as f64 / (ideal as f64).max(1.0),
            jain: self.jain(1),
            jain_ideal: self.jain(2),
            cells: self.cells.iter().sum::<u64>() as f64 * 1_000.0 / self.ms as f64,
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
    fn part(&self, from_ms: u64, to_ms: u64) -> f64 {
        let sum = |counts: &[u32]| {
            counts[from_ms as usize..to_ms as usize].iter().map(|n| f64::from(*n)).sum::<f64>()
        };
        sum(&self.admitted) / sum(&self.ideal).max(1.0)
    }

    /// Returns the seconds until sums over a second stay within 10 % of a perfect bucket.
    pub(crate) fn settled_after(&self, from_ms: u64) -> f64 {
        let bad = |at: &u64| (self.part(*at, at + 1_000) - 1.0).abs() > 0.1;
        let last = (from_ms..self.ms - 1_000).step_by(100).filter(bad).last();
        last.map_or(0.0, |last| (last + 100 - from_ms) as f64 / 1_000.0)
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
