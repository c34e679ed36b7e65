//! What happens to a host in one run: its workers, their work, its load. It runs nothing.

use crate::random::Random;

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MILLI: u64 = 1_000_000;

/// One run as it is planned.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) workers: u32,
    pub(crate) service: Service,
    /// Offered load as a share of the capacity of all workers at their usual speed, each until a second.
    pub(crate) load: Vec<(u64, f64)>,
    /// When work takes longer, in seconds, and how many times as long.
    pub(crate) slower: Option<(u64, u64, f64)>,
    /// Shares of the arrivals: critical, POST, GET, test.
    pub(crate) mix: [f64; 4],
    /// How often a client tries again after a refusal, a lost connection or a timeout.
    pub(crate) retries: u32,
    /// The share of the arrivals that comes from one caller, and the priority of them all.
    pub(crate) greedy: Option<(f64, usize)>,
    /// Whether the processes that ask stand still for a while now and then.
    pub(crate) pauses: bool,
}

/// How long work takes, with a mean of [`SERVICE_NANOS`].
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

    /// Its last second.
    pub(crate) fn end(&self) -> u64 {
        self.load.last().map_or(0, |(until, _)| *until)
    }

    /// Requests a second that all workers together can serve.
    pub(crate) fn capacity(&self) -> f64 {
        f64::from(self.workers) * SECOND as f64 / SERVICE_NANOS
    }

    /// How long a piece of work takes that starts now.
    pub(crate) fn service_nanos(&self, random: &mut Random, at: u64) -> u64 {
        let draw = match self.service {
            Service::Exponential => random.exponential(),
            Service::Lognormal => random.lognormal(),
        };
        let slow = self.slower.filter(|(from, until, _)| (from * SECOND..until * SECOND).contains(&at));
        (draw * SERVICE_NANOS * slow.map_or(1.0, |(_, _, times)| times)) as u64
    }

    /// Which priority an arrival has.
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
/// What a piece of work takes on average.
pub(crate) const SERVICE_NANOS: f64 = 1e8;
/// What a refusal costs a worker.
pub(crate) const REFUSAL_NANOS: u64 = MILLI;
/// How long a client waits for its answer.
pub(crate) const PATIENCE_NANOS: u64 = 5 * SECOND;
/// Connections that wait to be accepted; the next is lost.
pub(crate) const BACKLOG_MAX: usize = 1_024;
/// Callers, all alike: so many that the share of them that is refused is the share of requests, within 1 %.
pub(crate) const CALLERS: u32 = 10_000;
/// How long a process stands still, once a second on average.
pub(crate) const PAUSE_NANOS: u64 = 50 * MILLI;
