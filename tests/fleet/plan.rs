//! Defines the plan of a run.

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{iter, thread};

use tidegate::limit::share::{Fallback, RemoteCheckWait};

use crate::load::Pages;
use crate::random::Random;
use crate::rules::Kind;

/// Distribution of requests over hosts and time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    Even,
    /// Host k receives 1/k of the first host's load.
    Zipf,
    /// One host receives nine of ten.
    OneHot,
    /// The host that receives nine of ten changes every five seconds.
    Moving,
    /// Ten times the load for a sixth of the time.
    Flash,
    /// Each host is on or off for a mean of one second, with twice the load when on.
    OnOff,
    /// Half a burst within 100 ms on a random host, and nothing else.
    Cold,
}

pub(crate) const SHAPES: [Shape; 7] =
    [Shape::Even, Shape::Zipf, Shape::OneHot, Shape::Moving, Shape::Flash, Shape::OnOff, Shape::Cold];

/// A span in which Redis is unreachable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outage {
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
    /// Delay between the reconnections of consecutive hosts.
    pub(crate) later_ms: u64,
}

/// A span in which a host is down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Crash {
    pub(crate) host: u32,
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
}

impl Outage {
    /// Draws an outage within `ms`, 0.1 s to `most_ms` long, without data loss.
    pub(crate) fn drawn(draw: &mut impl FnMut(u32, u32) -> u32, ms: u64, most_ms: u32) -> Outage {
        let (from_ms, to_ms) = span(draw, 0..ms, most_ms);
        Outage { from_ms, to_ms, later_ms: 0 }
    }
}

impl Crash {
    /// Draws a crash of one of `hosts`, beginning in `begins_ms`, 0.1 s to `most_ms` long.
    pub(crate) fn drawn(
        draw: &mut impl FnMut(u32, u32) -> u32,
        hosts: u32,
        begins_ms: Range<u64>,
        most_ms: u32,
    ) -> Crash {
        let (from_ms, to_ms) = span(draw, begins_ms, most_ms);
        Crash { host: draw(0, hosts - 1), from_ms, to_ms }
    }
}

/// A host that restarts with another secret.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rollout {
    pub(crate) host: u32,
    pub(crate) at_ms: u64,
    pub(crate) secret: u8,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Faults {
    /// Replies per thousand lost after the command was executed.
    pub(crate) lost: u32,
    /// Replies per thousand delayed by `late_us` of the plan.
    pub(crate) late: u32,
    /// Heartbeats per thousand that arrive once more within three seconds, from an abandoned connection.
    pub(crate) strays: u32,
    /// Maximum drift of host clocks, ppm.
    pub(crate) drift_ppm: u32,
    /// Wall clocks of hosts are set at random times.
    pub(crate) steps: bool,
    pub(crate) outages: Vec<Outage>,
    pub(crate) crashes: Vec<Crash>,
    pub(crate) flushes_ms: Vec<u64>,
    pub(crate) rollouts: Vec<Rollout>,
}

impl Faults {
    /// Returns whether a host cannot reach Redis, at this time since the load began.
    pub(crate) fn is_out(&self, host: u32, us: u64) -> bool {
        let is_out = |outage: &Outage| {
            let to_ms = outage.to_ms + u64::from(host) * outage.later_ms;
            (outage.from_ms * 1_000..to_ms * 1_000).contains(&us)
        };
        self.outages.iter().any(is_out)
    }

    /// Redis is unreachable for this time, and has lost its data afterwards if it is `empty`.
    pub(crate) fn outage(from_ms: u64, to_ms: u64, empty: bool) -> Faults {
        let flushes_ms = if empty { vec![to_ms] } else { Vec::new() };
        Faults { outages: vec![Outage { from_ms, to_ms, later_ms: 0 }], flushes_ms, ..Faults::default() }
    }

    /// Draws faults of commands and clocks; one in three loses `lost_most` replies per thousand.
    pub(crate) fn drawn(draw: &mut impl FnMut(u32, u32) -> u32, lost_most: u32) -> Faults {
        Faults {
            lost: [0, 10, lost_most][draw(0, 2) as usize],
            strays: [0, 50][draw(0, 1) as usize],
            late: [0, 50][draw(0, 1) as usize],
            drift_ppm: [0, 10_000][draw(0, 1) as usize],
            ..Faults::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) hosts: u32,

    /// What the hosts share.
    pub(crate) kind: Kind,
    pub(crate) rate: u32,
    /// Seconds in which `rate` tokens are earned.
    pub(crate) period_s: u64,
    pub(crate) burst: u32,
    /// Thousandths of the burst: 0, or 100 for `on_miss: admit`.
    pub(crate) credit: u16,
    /// When requests wait for a command, and how long at most.
    pub(crate) asks: RemoteCheckWait,
    pub(crate) wait_ms: u64,
    /// Admission by a host in an outage.
    pub(crate) when_down: Fallback,

    pub(crate) ms: u64,
    /// Time after the last request for all messages to arrive; no message is lost any more.
    pub(crate) rest_ms: u64,
    /// Requests offered, in thousandths of the rate.
    pub(crate) load: u64,
    pub(crate) shape: Shape,
    /// Requests come as these pages instead of by the shape.
    pub(crate) pages: Option<Pages>,
    pub(crate) tenants: u32,
    /// Mean duration of a lease.
    pub(crate) service_ms: u32,
    /// Requests per thousand that a rule of their own host refuses too.
    pub(crate) held: u32,
    /// Pending requests per thousand whose clients disconnect in each millisecond.
    pub(crate) leaves: u32,

    pub(crate) round_trip_us: u64,
    /// Further round trips, each for an equal part of the run.
    pub(crate) then_us: Vec<u64>,
    /// Delay of late replies.
    pub(crate) late_us: u64,
    /// A command without a reply closes its connection, with all others on it.
    pub(crate) reconnects: bool,
    /// Hosts know one another from the start, and send no heartbeats.
    pub(crate) linked: bool,
    /// Buckets over which keys are distributed.
    pub(crate) buckets: u16,
    /// Step of the simulation.
    pub(crate) step_us: u64,
    /// Interval of host ticks.
    pub(crate) tick_us: u64,
    pub(crate) faults: Faults,
}

impl Plan {
    /// Returns a cell of the table: R = B = 1 000, a minute.
    pub(crate) fn cell(hosts: u32, shape: Shape, load: u64) -> Plan {
        Plan {
            seed: seed(),
            hosts,
            kind: Kind::Bucket,
            rate: 1_000,
            period_s: 1,
            burst: 1_000,
            credit: 100,
            asks: RemoteCheckWait::Never,
            wait_ms: 5,
            when_down: Fallback::Share,
            ms: 60_000,
            rest_ms: 0,
            load,
            shape,
            pages: None,
            tenants: 1,
            service_ms: 0,
            held: 0,
            leaves: 0,
            round_trip_us: 500,
            then_us: Vec::new(),
            late_us: 1_000_000,
            reconnects: false,
            linked: false,
            buckets: tidegate::fleet::sync::BUCKETS,
            step_us: 1_000,
            tick_us: 2_000,
            faults: Faults::default(),
        }
    }

    /// Returns whether requests may wait for Redis.
    pub(crate) fn asks(&self) -> bool {
        self.asks != RemoteCheckWait::Never
    }

    /// Returns the time at which the load begins: hosts have counted one another by then.
    pub(crate) fn begins_us(&self) -> u64 {
        if self.linked { 0 } else { WARM_US }
    }

    /// Returns the time of the last request.
    pub(crate) fn ends_us(&self) -> u64 {
        self.begins_us() + self.ms * 1_000
    }

    /// Returns the round trip at this moment.
    pub(crate) fn round_trip_at(&self, us: u64) -> u64 {
        let parts = self.then_us.len() + 1;
        let part = (us as usize * parts / self.ends_us() as usize).min(parts - 1);
        part.checked_sub(1).map_or(self.round_trip_us, |part| self.then_us[part])
    }

    pub(crate) fn slowest_us(&self) -> u64 {
        self.then_us.iter().fold(self.round_trip_us, |slowest, then| slowest.max(*then))
    }

    pub(crate) fn per_ms(&self) -> f64 {
        self.budget_per_ms() * self.load as f64 / 1_000.0
    }

    pub(crate) fn budget_per_ms(&self) -> f64 {
        f64::from(self.rate) / 1_000.0 / self.period_s as f64
    }

    /// Returns the tokens that all hosts may admit beyond the budget.
    pub(crate) fn extra(&self) -> f64 {
        let credit = f64::from(self.burst) * f64::from(self.credit) / 1_000.0;
        let hosts = f64::from(self.hosts);
        if credit == 0.0 || credit >= hosts { credit } else { hosts }
    }

    /// Returns the untracked rate that hosts may admit, as a portion of the budget's rate.
    pub(crate) fn leak(&self) -> f64 {
        f64::from(self.credit) / 1_000.0
    }
}

/// Hosts start before the first request.
const WARM_US: u64 = 2_500_000;

/// Returns a generator of inclusive ranges for one purpose (`stream`) from a seed.
pub(crate) fn draws(seed: u64, stream: u64) -> impl FnMut(u32, u32) -> u32 {
    let mut random = Random::new(seed, stream);
    move |from, to| from + random.below(to - from + 1)
}

fn span(draw: &mut impl FnMut(u32, u32) -> u32, begins_ms: Range<u64>, most_ms: u32) -> (u64, u64) {
    let length = (begins_ms.end - begins_ms.start) as u32;
    let from_ms = begins_ms.start + u64::from(draw(0, length - 1));
    (from_ms, from_ms + u64::from(draw(100, most_ms)))
}

/// Returns the seed of all runs: `SEED` or 1.
pub(crate) fn seed() -> u64 {
    std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Draws a plan from each seed and runs them on all processors. A failure prints the plan and the seed.
pub(crate) fn each_seed<P: Debug, T: Send>(
    seeds: Range<u64>,
    draw: impl Fn(u64) -> P + Sync,
    run: impl Fn(&P) -> T + Sync,
) -> Vec<T> {
    let next = AtomicU64::new(seeds.start);
    let run_one = |seed| {
        let plan = draw(seed);
        let result = panic::catch_unwind(AssertUnwindSafe(|| run(&plan)));
        result.unwrap_or_else(|_| panic!("SEED={seed} RUNS=1 does it again: {plan:#?}"))
    };
    let run_some = || {
        let seeds =
            iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end));
        seeds.map(run_one).collect::<Vec<T>>()
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run_some)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a run failed: see above")).collect()
    })
}

/// Returns the number of small runs; the default is small enough for unoptimised builds.
pub(crate) fn runs() -> u64 {
    std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(12)
}

/// Returns whether `RUNS` is unset: runs are shorter then, with fewer hosts.
pub(crate) fn is_short() -> bool {
    std::env::var_os("RUNS").is_none()
}
