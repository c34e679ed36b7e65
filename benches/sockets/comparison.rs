//! The daemon beside an echo server and Redis: round trips on one CPU, throughput from another, batching.

use std::io;
use std::path::Path;

use crate::dialect::hex;
use crate::load::{Connection, Until, in_flight, one_by_one};
use crate::machine::Machine;
use crate::report::{Bound, Row};
use crate::servers::{Daemon, Server, fill, start_echo, start_redis};
use crate::workload::USERS;

/// The parts of this suite to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) p50: bool,
    pub(crate) throughput: bool,
    pub(crate) batching: bool,
}

/// All figures, one entry for each repetition.
#[derive(Debug, Default)]
struct Figures {
    echo: Latency,
    tidegate: Latency,
    redis: Latency,
    tidegate_stream: Streams,
    redis_stream: Streams,
    batched: Streams,
    unbatched: Streams,
}

/// Figures with many requests in flight, one entry for each repetition.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    per_second: Vec<f64>,
    pub(crate) cpu_ns: Vec<f64>,
}

/// Figures of one request at a time, one entry for each repetition.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    p50_us: Vec<f64>,
    pub(crate) p99_us: Vec<f64>,
    cpu_us: Vec<f64>,
}

/// Runs every repetition with new servers, so that the luck of a memory layout shows in the spread. Within
/// one, the servers take turns, and another goes first each time.
pub(crate) fn run(
    parts: Parts,
    machine: &Machine,
    daemon: &Daemon,
    directory: &Path,
    repetitions: usize,
    nanos: u64,
) -> io::Result<Vec<Row>> {
    let mut figures = Figures::default();
    for repetition in 0..repetitions {
        eprintln!("comparison: repetition {} of {repetitions}", repetition + 1);
        machine.pin(machine.server_cpu())?;
        let servers = Servers::start(parts, daemon, directory)?;
        if parts.p50 {
            servers.latencies(&mut figures, repetition, nanos)?;
        }
        if parts.throughput {
            machine.pin(machine.generator_cpu()?)?;
            servers.throughputs(&mut figures, repetition, nanos)?;
        }
        if parts.batching {
            machine.pin(machine.generator_cpu()?)?;
            servers.batching(&mut figures, nanos)?;
        }
        machine.unpin()?;
    }
    Ok(figures.rows(parts))
}

struct Servers {
    tidegate: Server,
    echo: Option<Server>,
    redis: Option<Server>,
}

impl Servers {
    fn start(parts: Parts, daemon: &Daemon, directory: &Path) -> io::Result<Servers> {
        let tidegate = daemon.start(&[])?;
        fill(&tidegate, u64::from(USERS))?;
        let echo = if parts.p50 {
            // The echo server repeats one of the daemon's replies: of the same size, and valid for the
            // client.
            let (request, reply) = tidegate.connect(0)?.sample()?;
            eprintln!("  {} bytes asked, {} answered: {}", request.len(), reply.len(), hex(&reply));
            Some(start_echo(directory, &request, &reply)?)
        } else {
            None
        };
        let redis = if parts.p50 || parts.throughput { Some(start_redis(directory)?) } else { None };
        Ok(Servers { tidegate, echo, redis })
    }

    fn latencies(&self, figures: &mut Figures, repetition: usize, nanos: u64) -> io::Result<()> {
        let mut turns: Vec<(&Server, &mut Latency)> = vec![(&self.tidegate, &mut figures.tidegate)];
        turns.extend(self.echo.iter().zip([&mut figures.echo]));
        turns.extend(self.redis.iter().zip([&mut figures.redis]));
        let first = repetition % turns.len();
        turns.rotate_left(first);
        for (server, latency) in turns {
            latency.measure(server, repetition, nanos)?;
        }
        Ok(())
    }

    fn throughputs(&self, figures: &mut Figures, repetition: usize, nanos: u64) -> io::Result<()> {
        let mut turns = vec![(&self.tidegate, &mut figures.tidegate_stream)];
        turns.extend(self.redis.iter().zip([&mut figures.redis_stream]));
        let first = repetition % turns.len();
        turns.rotate_left(first);
        for (server, streams) in turns {
            streams.measure(server, 16, nanos)?;
        }
        Ok(())
    }

    fn batching(&self, figures: &mut Figures, nanos: u64) -> io::Result<()> {
        figures.unbatched.measure(&self.tidegate, 1, nanos)?;
        figures.batched.measure(&self.tidegate, 64, nanos)
    }
}

impl Latency {
    pub(crate) fn measure(&mut self, server: &Server, seed: usize, nanos: u64) -> io::Result<()> {
        let mut connection = server.connect(seed as u64 + 1)?;
        one_by_one(&mut connection, WARM_UP_NANOS)?;
        let cpu_before = server.process.cpu_nanos()?;
        let times = one_by_one(&mut connection, nanos)?;
        // The connection is still open, so its server thread still counts.
        let cpu_nanos = server.process.cpu_nanos()? - cpu_before;
        self.p50_us.push(times.value_at_quantile(0.5) as f64 / 1e3);
        self.p99_us.push(times.value_at_quantile(0.99) as f64 / 1e3);
        self.cpu_us.push(cpu_nanos as f64 / 1e3 / times.len() as f64);
        Ok(())
    }
}

impl Streams {
    /// Eight connections with `depth` requests in flight on each.
    pub(crate) fn measure(&mut self, server: &Server, depth: u64, nanos: u64) -> io::Result<()> {
        let mut connections: Vec<Connection> =
            (1..=CONNECTIONS).map(|seed| server.connect(seed)).collect::<io::Result<_>>()?;
        in_flight(&mut connections, depth, Until::Nanos(WARM_UP_NANOS))?;
        let cpu_before = server.process.cpu_nanos()?;
        let flow = in_flight(&mut connections, depth, Until::Nanos(nanos))?;
        let cpu_nanos = server.process.cpu_nanos()? - cpu_before;
        self.per_second.push(flow.replies as f64 / (flow.nanos as f64 / 1e9));
        self.cpu_ns.push(cpu_nanos as f64 / flow.replies as f64);
        Ok(())
    }
}

impl Figures {
    fn rows(&self, parts: Parts) -> Vec<Row> {
        let mut rows = Vec::new();
        if parts.p50 {
            let (ours, echo, redis) = (&self.tidegate, &self.echo, &self.redis);
            rows.push(
                Row::beside("p50 of one hit, one CPU", "µs", &ours.p50_us, "echo", &echo.p50_us)
                    .must(Bound::AtMost(1.40))
                    .aim(Bound::AtMost(1.20)),
            );
            rows.push(
                Row::beside("server CPU per decision", "µs", &ours.cpu_us, "echo", &echo.cpu_us)
                    .must(Bound::AtMost(1.40))
                    .aim(Bound::AtMost(1.20)),
            );
            rows.push(
                Row::beside("p50 of one hit, one CPU", "µs", &ours.p50_us, "Redis script", &redis.p50_us)
                    .must(Bound::AtMost(0.62))
                    .aim(Bound::AtMost(0.52)),
            );
            rows.push(Row::beside("p99 of one hit, one CPU", "µs", &ours.p99_us, "echo", &echo.p99_us));
            rows.push(Row::beside(
                "server CPU per decision",
                "µs",
                &ours.cpu_us,
                "Redis script",
                &redis.cpu_us,
            ));
        }
        if parts.throughput {
            let (ours, redis) = (&self.tidegate_stream, &self.redis_stream);
            let figure = "decisions per second, 8 × 16 in flight";
            rows.push(
                Row::beside(figure, "", &ours.per_second, "Redis script", &redis.per_second)
                    .must(Bound::AtLeast(9.0))
                    .aim(Bound::AtLeast(13.0)),
            );
            let figure = "server CPU per decision, 8 × 16 in flight";
            rows.push(Row::beside(figure, "ns", &ours.cpu_ns, "Redis script", &redis.cpu_ns));
        }
        if parts.batching {
            let (batched, unbatched) = (&self.batched, &self.unbatched);
            let figure = "server CPU per decision, 8 × 64 in flight";
            rows.push(
                Row::beside(figure, "ns", &batched.cpu_ns, "8 × 1", &unbatched.cpu_ns)
                    .must(Bound::AtMost(0.20))
                    .aim(Bound::AtMost(0.12)),
            );
            let figure = "decisions per second, 8 × 64 in flight";
            rows.push(Row::beside(figure, "", &batched.per_second, "8 × 1", &unbatched.per_second));
        }
        rows
    }
}

const CONNECTIONS: u64 = 8;

const WARM_UP_NANOS: u64 = 300_000_000;
