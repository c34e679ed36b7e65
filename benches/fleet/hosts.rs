//! Eight hosts with a fleet budget for each of a million callers: real engines, each with its own sync thread
//! and a real Redis. Requests are in process; the cost of synchronization is measured.

use std::fs;
use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use tidegate::clock::{Clock, read_boot_nanos};
use tidegate::engine::{
    Decider, Descriptors, Engine, EngineAnswer, EngineOptions, FleetStatus, HashKey, Mode, Op, Request,
    Verdict,
};
use tidegate::fleet::identity::Identity;
use tidegate::fleet::link;
use tidegate::fleet::secrets::{OverridesKey, SecretDigest};
use tidegate::fleet::task::{FleetHandle, SyncPlan};
use tidegate::rules::read_text;

use crate::machine::Machine;
use crate::report::{Bound, Row};
use crate::server::Server;
use crate::workload::{DOMAIN, Random, UserName};

/// The load with a bound, with a million keys, then loads for capacity planning.
pub(crate) fn run(machine: &Machine, reps: usize, seconds: u64) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for trial in TRIALS {
        let mut figures = Figures::default();
        for rep in 0..reps.min(REPS_MAX) {
            trial.measure(machine, rep as u64, seconds.max(SECONDS_MIN), &mut figures)?;
        }
        rows.extend(figures.rows(trial));
    }
    Ok(rows)
}

/// The callers and their limit.
pub(crate) struct Trial {
    pub(crate) callers: u32,
    /// Caller k sends 1/k of the requests of the first; else uniform.
    pub(crate) is_zipf: bool,
    pub(crate) limit: &'static str,
}

pub(crate) const TRIALS: &[Trial] = &[
    Trial { callers: 1_000_000, is_zipf: true, limit: "100/s" },
    Trial { callers: 33_333, is_zipf: false, limit: "10/s" },
    Trial { callers: 33_333, is_zipf: false, limit: "100/s" },
];

#[derive(Default)]
struct Figures {
    requests: Vec<f64>,
    refused: Vec<f64>,
    cells: Vec<f64>,
    cells_a_call: Vec<f64>,
    keys: Vec<f64>,
    talk: Vec<f64>,
    redis: Vec<f64>,
}

impl Figures {
    fn rows(&self, trial: &Trial) -> Vec<Row> {
        let of = |what: &str| format!("{what}, real Redis: {}", trial.text());
        vec![
            Row::alone(&of("requests"), "/s", &self.requests),
            Row::alone("of these refused", "%", &self.refused),
            trial.bound(Row::alone(&of("cells"), "/s", &self.cells)),
            Row::alone("cells of a call", "", &self.cells_a_call),
            Row::alone("keys that a host is in touch about", "", &self.keys),
            Row::alone("CPU of a host's talk with Redis, of one core", "%", &self.talk)
                .must(Bound::AtMost(5.0)),
            Row::alone("CPU of Redis, of one core", "%", &self.redis),
        ]
    }
}

impl Trial {
    pub(crate) fn text(&self) -> String {
        let spread = if self.is_zipf { "Zipf 1" } else { "each 3/s" };
        format!("{HOSTS} hosts, {} callers, {spread}, limit {}", self.callers, self.limit)
    }

    /// Only one load has a bound; the others are for capacity planning.
    pub(crate) fn bound(&self, cells: Row) -> Row {
        if self.is_zipf { cells.must(Bound::AtMost(60_000.0)) } else { cells }
    }

    fn measure(&self, machine: &Machine, seed: u64, seconds: u64, figures: &mut Figures) -> io::Result<()> {
        let server = Server::start(machine)?;
        let mut hosts = Vec::new();
        for number in 0..HOSTS {
            hosts.push(Host::start(&server, number, self.limit)?);
        }
        let give_up = read_boot_nanos() + 10 * NANOS_PER_SECOND;
        while hosts
            .iter()
            .any(|host| !host.standing.is_redis_reachable() || host.standing.hosts() < u32::from(HOSTS))
        {
            if read_boot_nanos() > give_up {
                return Err(io::Error::other("the hosts do not hear each other"));
            }
            sleep(Duration::from_millis(10));
        }
        let mut load = Load {
            zipf: self.is_zipf.then(|| Zipf::new(self.callers)),
            callers: self.callers,
            random: Random::new(seed + 1),
            hosts: &mut hosts,
            refused: 0,
        };
        // Until demand is known and the first bursts are spent.
        load.run(WARM_UP_SECONDS)?;
        let before = Counts::take(load.hosts, &server)?;
        load.refused = 0;
        let asked = load.run(seconds)?;
        let refused = load.refused;
        let after = Counts::take(load.hosts, &server)?;
        let nanos = (after.at - before.at) as f64;
        let a_second = |count: u64| count as f64 * 1e9 / nanos;
        figures.requests.push(a_second(asked));
        figures.refused.push(100.0 * refused as f64 / asked as f64);
        figures.cells.push(a_second(after.cells - before.cells));
        figures
            .cells_a_call
            .push((after.cells - before.cells) as f64 / (after.batches - before.batches) as f64);
        figures.talk.push(100.0 * (after.talk_nanos - before.talk_nanos) as f64 / nanos / f64::from(HOSTS));
        figures.redis.push(100.0 * (after.redis_nanos - before.redis_nanos) as f64 / nanos);
        let keys: usize = hosts.iter().map(|host| host.fleet.counters.read().keys).sum();
        figures.keys.push(keys as f64 / f64::from(HOSTS));
        hosts.into_iter().for_each(|host| host.fleet.finish());
        Ok(())
    }
}

struct Host {
    decider: Decider,
    clock: Arc<Clock>,
    standing: Arc<FleetStatus>,
    fleet: FleetHandle,
}

impl Host {
    fn start(server: &Server, number: u8, limit: &str) -> io::Result<Host> {
        let own = EngineOptions {
            hash_key: HashKey::from_bytes([number; 16]),
            mode: Mode::Enforce,
            memory_bytes_max: 1 << 30,
        };
        let engine = Arc::new(Engine::new(own));
        let standing = engine.join_fleet(HashKey::from_bytes([9; 16]));
        let loaded = read_text("benchmark.yaml", &rules(limit));
        assert!(!loaded.has_errors(), "the benchmark's own rules: {:?}", loaded.problems.first());
        engine.install_rules(loaded.domains);
        let clock = Arc::new(Clock::start());
        let url = format!("unix://{}", server.socket().display());
        let link = link::LinkOptions {
            urls: vec![url.parse().map_err(io::Error::other)?],
            user: None,
            password_file: None,
            ca_file: None,
            cluster: false,
        };
        let marks = Vec::new();
        let identity = Identity::fresh(&marks, ([number + 1; 16], [number + 1; 8]));
        let plan = SyncPlan {
            status: Arc::clone(&standing),
            link,
            identity,
            marks,
            secret: SecretDigest::default(),
            overrides_key: OverridesKey::of_secret(&[9; 32]),
            versions: None,
            keep: None,
        };
        let (fleet, work) = FleetHandle::new(Arc::clone(&engine), Arc::clone(&clock), plan);
        std::thread::Builder::new().name("sync".into()).spawn(work)?;
        Ok(Host { decider: engine.decider(), clock, standing, fleet })
    }

    fn is_let_through(&mut self, user: u32) -> bool {
        let user = UserName::new(user);
        let attributes = [("user", user.as_str())];
        let request = Request::new(Op::Hit, DOMAIN, Descriptors::from_attributes(&attributes));
        match self.decider.decide(&request, self.clock.now()) {
            EngineAnswer::Decided(decision) => decision.verdict == Verdict::Allow,
            _ => panic!("a conflict"),
        }
    }
}

fn rules(limit: &str) -> String {
    format!(
        "domain: {DOMAIN}\nlimits:\n- {{name: per-user, key: [user], rate: {limit}, scope: fleet, fleet: {{on_miss: admit}}}}\n"
    )
}

struct Counts {
    at: u64,
    cells: u64,
    batches: u64,
    talk_nanos: u64,
    redis_nanos: u64,
}

impl Counts {
    fn take(hosts: &[Host], server: &Server) -> io::Result<Counts> {
        let counts = hosts.iter().map(|host| host.fleet.counters.read().counts);
        let (cells, batches) =
            counts.fold((0, 0), |(cells, batches), more| (cells + more.cells, batches + more.batches));
        Ok(Counts {
            at: read_boot_nanos(),
            cells,
            batches,
            talk_nanos: talk_nanos()?,
            redis_nanos: server.cpu_nanos()?,
        })
    }
}

/// CPU nanoseconds of this process's sync threads.
fn talk_nanos() -> io::Result<u64> {
    let mut nanos = 0;
    // Skip the main thread, which is named after the program and so may be called `fleet` too.
    let first = std::process::id().to_string();
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?;
        let (is_first, task) = (task.file_name().to_string_lossy() == first, task.path());
        if !is_first && fs::read_to_string(task.join("comm"))?.trim() == "fleet" {
            let schedstat = fs::read_to_string(task.join("schedstat"))?;
            let on_cpu = schedstat.split_whitespace().next().and_then(|first| first.parse::<u64>().ok());
            nanos += on_cpu.ok_or_else(|| io::Error::other("schedstat is not as expected"))?;
        }
    }
    Ok(nanos)
}

/// Callers, each request at a random host.
struct Load<'h> {
    zipf: Option<Zipf>,
    callers: u32,
    random: Random,
    hosts: &'h mut [Host],
    refused: u64,
}

impl Load<'_> {
    /// Sends the wanted rate of requests, as far as the machine can; catches up on at most 0.1 s of delay.
    /// Returns the number of requests.
    fn run(&mut self, seconds: u64) -> io::Result<u64> {
        let begin = read_boot_nanos();
        let end = begin + seconds * NANOS_PER_SECOND;
        let (mut due, mut asked) = (begin, 0);
        loop {
            let now = read_boot_nanos();
            if now >= end {
                return Ok(asked);
            }
            due = due.max(now.saturating_sub(NANOS_PER_SECOND / 10));
            while due <= now {
                let user = match &self.zipf {
                    Some(zipf) => zipf.draw(&mut self.random),
                    None => self.random.below(self.callers),
                };
                let host = self.random.below(self.hosts.len() as u32) as usize;
                self.refused += u64::from(!self.hosts[host].is_let_through(user));
                asked += 1;
                due += NANOS_PER_SECOND / REQUESTS;
            }
            sleep(Duration::from_micros(500));
        }
    }
}

/// Caller k is drawn 1/k as often as the first.
pub(crate) struct Zipf(Vec<f64>);

impl Zipf {
    pub(crate) fn new(callers: u32) -> Zipf {
        let mut sum = 0.0;
        Zipf(
            (1..=callers)
                .map(|rank| {
                    sum += 1.0 / f64::from(rank);
                    sum
                })
                .collect(),
        )
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u32 {
        let chance = f64::from(random.below(u32::MAX)) / f64::from(u32::MAX);
        let at = chance * self.0.last().copied().unwrap_or_default();
        self.0.partition_point(|sum| *sum < at) as u32
    }
}

pub(crate) const HOSTS: u8 = 8;

pub(crate) const REQUESTS: u64 = 100_000;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Each takes half a minute, and the results hardly vary.
const REPS_MAX: usize = 3;

const SECONDS_MIN: u64 = 10;

const WARM_UP_SECONDS: u64 = 5;
