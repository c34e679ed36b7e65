//! Defines one run of a host: its workers, their service times, its load. It runs nothing.

use crate::random::Random;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MILLI: u64 = 1_000_000;

/// The plan of one run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) workers: u32,
    pub(crate) service: Service,
    /// Offered load as a share of the capacity of all workers at their usual speed, each until a second.
    pub(crate) load: Vec<(u64, f64)>,
    /// Start and end of slow service, in seconds, and its factor.
    pub(crate) slower: Option<(u64, u64, f64)>,
    /// Shares of the arrivals: critical, POST, GET, test.
    pub(crate) mix: [f64; 4],
    /// Maximum retries after a refusal, a lost connection or a timeout.
    pub(crate) retries: u32,
    /// Share of the arrivals from one caller, and their priority.
    pub(crate) greedy: Option<(f64, usize)>,
    /// Whether client processes stall now and then.
    pub(crate) pauses: bool,
}

/// Distribution of service times, with a mean of [`SERVICE_NANOS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Exponential,
    Lognormal,
}

impl Plan {
    /// The base load for a minute, the event for `span` seconds, and the base again for `rest` seconds.
    pub(crate) fn step(base: f64, event: f64, span: u64, rest: u64) -> Plan {
        let load = vec![(EVENT, base), (EVENT + span, event), (EVENT + span + rest, base)];
        Plan { load, ..Plan::level(base, 0) }
    }

    /// The same load all the time.
    pub(crate) fn level(load: f64, span: u64) -> Plan {
        Plan {
            workers: 16,
            service: Service::Exponential,
            load: vec![(span, load)],
            slower: None,
            mix: [0.10, 0.20, 0.50, 0.20],
            retries: 0,
            greedy: None,
            pauses: false,
        }
    }

    /// Returns its last second.
    pub(crate) fn end(&self) -> u64 {
        self.load.last().map_or(0, |(until, _)| *until)
    }

    /// Returns the requests a second that all workers together can serve.
    pub(crate) fn capacity(&self) -> f64 {
        f64::from(self.workers) * SECOND as f64 / SERVICE_NANOS
    }

    /// Draws the service time of a request that starts now.
    pub(crate) fn service_nanos(&self, random: &mut Random, at: u64) -> u64 {
        let draw = match self.service {
            Service::Exponential => random.exponential(),
            Service::Lognormal => random.lognormal(),
        };
        let slow = self.slower.filter(|(from, until, _)| (from * SECOND..until * SECOND).contains(&at));
        (draw * SERVICE_NANOS * slow.map_or(1.0, |(_, _, times)| times)) as u64
    }

    /// Draws the priority of an arrival.
    pub(crate) fn priority(&self, random: &mut Random) -> usize {
        let share = random.share();
        let mut sum = 0.0;
        let least = self.mix.len() - 1;
        let place = self.mix.iter().position(|part| {
            sum += part;
            share < sum
        });
        place.unwrap_or(least)
    }
}

/// The four priorities, most important first.
pub(crate) const PRIORITIES: [&str; 4] = ["critical", "post", "get", "test"];
pub(crate) const CRITICAL: usize = 0;
pub(crate) const GET: usize = 2;
pub(crate) const TEST: usize = 3;

/// The second of the event.
pub(crate) const EVENT: u64 = 60;
/// Mean service time of a request.
pub(crate) const SERVICE_NANOS: f64 = 1e8;
/// Worker time for a refusal.
pub(crate) const REFUSAL_NANOS: u64 = MILLI;
/// Client timeout.
pub(crate) const PATIENCE_NANOS: u64 = 5 * SECOND;
/// Maximum connections in the backlog; the next is lost.
pub(crate) const BACKLOG_MAX: usize = 1_024;
/// Number of equal callers: enough that the share of callers refused is that of requests, within 1 %.
pub(crate) const CALLERS: u32 = 10_000;
/// Duration of a stall; each process has one a second on average.
pub(crate) const PAUSE_NANOS: u64 = 50 * MILLI;
