//! The daemon and other servers in turn, in one run: one request at a time, many in flight, blocking workers.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::machine::Machine;
use crate::measure::{Latency, Streams};
use crate::peers::{self, PEERS, RATE_LIMIT_SERVICE, REDIS_GCRA, REDIS_INCR};
use crate::report::{self, Bound, Row, Spread};
use crate::servers::{Daemon, Server, fill};
use crate::workload::USERS;

/// The result of a race, as written for its chart.
#[derive(Debug, Serialize)]
pub(crate) struct Race {
    machine: String,
    rounds: usize,
    entries: Vec<Entry>,
    missing: Vec<Missing>,
    #[serde(skip)]
    rows: Vec<Row>,
}

/// A server and its figures, in the order of [`FIGURES`].
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    figures: Vec<Figure>,
}

#[derive(Debug, Serialize)]
struct Figure {
    name: &'static str,
    measured: Spread,
    /// The daemon's ÷ this server's.
    ratio: Spread,
}

/// A server that did not take part, and the reason.
#[derive(Debug, Serialize)]
struct Missing {
    name: String,
    reason: String,
}

/// A server that takes part.
struct Runner<'a> {
    name: &'static str,
    start: Box<dyn Fn() -> io::Result<Server> + 'a>,
    figures: Figures,
}

/// By load.
#[derive(Debug, Default)]
struct Figures {
    one: Latency,
    sixteen: Streams,
    sixty_four: Streams,
    workers: Streams,
}

impl Race {
    /// Starts all servers anew in each round and measures them in turn under each load, another one first each
    /// time. A server that fails takes no further part.
    pub(crate) fn run(
        machine: &Machine,
        daemon: &Daemon,
        directory: &Path,
        rounds: usize,
        nanos: u64,
    ) -> io::Result<Race> {
        let mut race =
            Race { machine: machine.describe(), rounds, entries: vec![], missing: vec![], rows: vec![] };
        let mut runners = runners(daemon, directory)?;
        for round in 0..rounds {
            eprintln!("race: round {} of {rounds}", round + 1);
            let mut turns = Vec::new();
            for runner in &mut runners {
                if let Some(server) = race.unless_failed(runner.name, || (runner.start)()) {
                    turns.push((runner, server));
                }
            }
            for load in LOADS {
                turns.rotate_left(1);
                for (runner, server) in &mut turns {
                    race.unless_failed(runner.name, || {
                        runner.figures.measure(load, machine, server, round, nanos)
                    });
                }
            }
        }
        runners.retain(|runner| !race.has_failed(runner.name));
        let Some(daemon) = runners.first().filter(|runner| runner.name == TIDEGATE) else {
            return Err(io::Error::other(format!("the daemon failed: {:?}", race.missing)));
        };
        race.entries = runners.iter().map(|runner| Entry::new(runner, daemon)).collect();
        race.rows = rows(&runners);
        Ok(race)
    }

    fn has_failed(&self, name: &str) -> bool {
        self.missing.iter().any(|missing| missing.name == name)
    }

    /// Does it unless this server failed before; notes the reason of a failure.
    fn unless_failed<T>(&mut self, name: &str, work: impl FnOnce() -> io::Result<T>) -> Option<T> {
        if self.has_failed(name) {
            return None;
        }
        work()
            .map_err(|error| self.missing.push(Missing { name: name.to_owned(), reason: error.to_string() }))
            .ok()
    }

    /// Prints the ratios and medians of all servers.
    pub(crate) fn print(&self) {
        for (title, cell) in [
            ("tidegate ÷", (|figure| figure.ratio.to_string()) as fn(&Figure) -> String),
            ("measured", |figure| figure.measured.to_string()),
        ] {
            let head = std::iter::once(title).chain(FIGURES.map(|(_, words)| words));
            let mut table = vec![head.map(str::to_owned).collect::<Vec<String>>()];
            table.extend(self.entries.iter().map(|entry| {
                std::iter::once(entry.name.clone()).chain(entry.figures.iter().map(cell)).collect()
            }));
            report::print_table(&table);
            println!();
        }
        for Missing { name, reason } in &self.missing {
            println!("without {name}: {reason}");
        }
    }

    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        fs::write(path, serde_json::to_vec_pretty(self)?)
    }

    /// The rows that have a bound.
    pub(crate) fn into_rows(self) -> Vec<Row> {
        self.rows
    }
}

/// The daemon first: with its own number of threads, with one, and by its adapters.
fn runners<'a>(daemon: &'a Daemon, directory: &'a Path) -> io::Result<Vec<Runner<'a>>> {
    let runner = |name, start: Box<dyn Fn() -> io::Result<Server> + 'a>| Runner {
        name,
        start,
        figures: Figures::default(),
    };
    let filled = |server: Server| fill(&server, u64::from(USERS)).map(|()| server);
    // The echo server repeats one of the daemon's replies: of the same size, and valid for the client.
    let (request, reply) = daemon.start(&[])?.connect(0)?.sample()?;
    let mut runners = vec![
        runner(TIDEGATE, Box::new(move || daemon.start_by_default().and_then(filled))),
        runner(ONE_THREAD, Box::new(move || daemon.start(&[]).and_then(filled))),
        runner(ENVOY, Box::new(move || peers::envoy_adapter(daemon, directory))),
        runner(RESP, Box::new(move || peers::resp_adapter(daemon, directory))),
        runner(ECHO, Box::new(move || peers::echo(directory, &request, &reply))),
    ];
    runners.extend(PEERS.map(|peer| runner(peer.name, Box::new(move || (peer.start)(directory)))));
    Ok(runners)
}

impl Figures {
    fn measure(
        &mut self,
        load: Load,
        machine: &Machine,
        server: &Server,
        round: usize,
        nanos: u64,
    ) -> io::Result<()> {
        match load {
            Load::One => {
                machine.pin(machine.server_cpu())?;
                machine.pin_threads(&server.threads()?, &[machine.server_cpu()])?;
                let done = self.one.measure(server, round, nanos);
                machine.pin_threads(&server.threads()?, machine.cpus())?;
                machine.unpin()?;
                done
            }
            Load::Sixteen => self.sixteen.measure(server, 16, nanos),
            Load::SixtyFour => self.sixty_four.measure(server, 64, nanos),
            Load::Workers => self.workers.measure_workers(server, nanos),
        }
    }

    /// In the order of [`FIGURES`].
    fn all(&self) -> [&[f64]; FIGURES.len()] {
        let Figures { one, sixteen, sixty_four, workers } = self;
        [
            &one.p50_us,
            &one.cpu_us,
            &sixteen.per_second,
            &sixteen.cpu_us,
            &sixty_four.per_second,
            &sixty_four.cpu_us,
            &workers.per_second,
            &workers.cpu_us,
        ]
    }
}

impl Entry {
    fn new(runner: &Runner<'_>, daemon: &Runner<'_>) -> Entry {
        let figures = FIGURES.iter().zip(runner.figures.all()).zip(daemon.figures.all());
        let figures = figures.filter_map(|(((name, _), measured), daemon)| {
            let ratio = Spread::of_ratios(daemon, measured)?;
            Some(Figure { name, measured: Spread::of(measured)?, ratio })
        });
        Entry { name: runner.name.to_owned(), figures: figures.collect() }
    }
}

/// The figures that have a bound, beside a server that took part.
fn rows(runners: &[Runner<'_>]) -> Vec<Row> {
    let row = |figure: &str, unit, own: &str, peer: &str, of: fn(&Figures) -> &Vec<f64>, must| {
        let figures =
            |name: &str| runners.iter().find(|runner| runner.name == name).map(|found| &found.figures);
        match (figures(own), figures(peer)) {
            (Some(measured), Some(other)) => Row::beside(figure, unit, of(measured), peer, of(other)),
            (None, _) => Row::skipped(figure, &format!("without {own}")),
            (_, None) => Row::skipped(figure, &format!("without {peer}")),
        }
        .must(must)
    };
    let (p50, cpu) = ("p50 of one hit, one CPU", "server CPU per decision");
    let (sixteen, workers) = ("decisions per second, 8 × 16 in flight", "decisions per second, 64 × 1");
    let (grpc_p50, grpc_cpu) = ("p50 of one gRPC request, one CPU", "server CPU per gRPC request");
    let cpu_sixteen = "server CPU per decision, 8 × 16 in flight";
    vec![
        row(p50, "µs", TIDEGATE, ECHO, |of| &of.one.p50_us, Bound::AtMost(1.12)),
        row(p50, "µs", TIDEGATE, REDIS_GCRA, |of| &of.one.p50_us, Bound::AtMost(0.62)),
        row(cpu, "µs", TIDEGATE, ECHO, |of| &of.one.cpu_us, Bound::AtMost(1.12)),
        row(sixteen, "", TIDEGATE, REDIS_GCRA, |of| &of.sixteen.per_second, Bound::AtLeast(13.0)),
        row(workers, "", TIDEGATE, ONE_THREAD, |of| &of.workers.per_second, Bound::AtLeast(0.95)),
        row(workers, "", TIDEGATE, REDIS_INCR, |of| &of.workers.per_second, Bound::AtLeast(1.2)),
        row(cpu_sixteen, "µs", TIDEGATE, ONE_THREAD, |of| &of.sixteen.cpu_us, Bound::AtMost(1.05)),
        row(grpc_p50, "µs", ENVOY, RATE_LIMIT_SERVICE, |of| &of.one.p50_us, Bound::AtMost(0.6)),
        row(grpc_cpu, "µs", ENVOY, RATE_LIMIT_SERVICE, |of| &of.one.cpu_us, Bound::AtMost(0.5)),
    ]
}

/// A load that each server gets in turn.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// One connection, one request at a time; client and server on one CPU.
    One,
    /// Eight connections with 16 requests in flight on each; no pinning, here and below.
    Sixteen,
    SixtyFour,
    /// 64 blocking workers.
    Workers,
}

const LOADS: [Load; 4] = [Load::One, Load::Sixteen, Load::SixtyFour, Load::Workers];

/// Names for the chart, and for the table.
const FIGURES: [(&str, &str); 8] = [
    ("p50_us", "p50, 1 × 1 µs"),
    ("cpu_us", "CPU µs"),
    ("per_second_8x16", "8 × 16 a second"),
    ("cpu_us_8x16", "CPU µs"),
    ("per_second_8x64", "8 × 64 a second"),
    ("cpu_us_8x64", "CPU µs"),
    ("per_second_64x1", "64 × 1 a second"),
    ("cpu_us_64x1", "CPU µs"),
];

const TIDEGATE: &str = "tidegate";
const ONE_THREAD: &str = "tidegate, one thread";
const ENVOY: &str = "tidegate, Envoy's gRPC";
const RESP: &str = "tidegate, RESP";
const ECHO: &str = "echo";
