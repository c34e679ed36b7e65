//! How many cells one Redis sustains with the current scripts: batches of 64 over several connections, each
//! of which is a host with the same keys.

use std::io;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use tidegate::clock::{Timestamp, read_boot_nanos};
use tidegate::fleet::cell::{CellQuota, CellRate, CellReport, CellRequest, TOKEN};
use tidegate::fleet::command::{Bucket, CELLS_MAX, CommandHead, ScriptCommand, SyncBatch};
use tidegate::fleet::reply::ScriptReply;
use tidegate::fleet::scripts;

use crate::client::Client;
use crate::machine::Machine;
use crate::report::{Bound, Row};
use crate::server::Server;

pub(crate) fn run(machine: &Machine, reps: usize, seconds: u64) -> io::Result<Vec<Row>> {
    let mut figures = Figures::default();
    for _ in 0..reps {
        let server = Server::start(machine)?;
        let empty = server.used_memory()?;
        let socket = server.socket();
        // Create every key before measuring.
        drive(machine, &socket, 1, &Pace::Rounds(1))?;
        let grown = server.used_memory()?.saturating_sub(empty);
        figures.bytes.push(grown as f64 / f64::from(CELLS));
        let span = Duration::from_secs(seconds);
        let (cpu, busy) = (server.cpu_nanos()?, read_boot_nanos());
        let flat_out = drive(machine, &socket, CONNECTIONS, &Pace::FlatOut(span))?;
        let (cpu, busy) = ((server.cpu_nanos()? - cpu) as f64, (read_boot_nanos() - busy) as f64);
        figures.cells.push(flat_out.cells_per_second());
        figures.core.push(100.0 * cpu / busy);
        figures.cpu_cells.push(flat_out.calls.len() as f64 * CELLS_MAX as f64 * 1e9 / cpu);
        figures.full_ms.push(flat_out.millis_at(0.99));
        let gap = Duration::from_secs_f64(2.0 * CELLS_MAX as f64 / flat_out.cells_per_second());
        let (waited, begin) = (server.waited_nanos()?, read_boot_nanos());
        let half = drive(machine, &socket, CONNECTIONS, &Pace::Every(gap, span))?;
        let (waited, took) = ((server.waited_nanos()? - waited) as f64, (read_boot_nanos() - begin) as f64);
        figures.waited.push(100.0 * waited / took);
        figures.half_ms.push(half.millis_at(0.99));
        figures.half_p50_ms.push(half.millis_at(0.5));
        figures.half_cells.push(half.cells_per_second());
        figures.ping_ms.push(drive(machine, &socket, CONNECTIONS, &Pace::Pings(gap, span))?.millis_at(0.99));
    }
    Ok(figures.rows())
}

#[derive(Default)]
struct Figures {
    cells: Vec<f64>,
    core: Vec<f64>,
    cpu_cells: Vec<f64>,
    waited: Vec<f64>,
    full_ms: Vec<f64>,
    half_cells: Vec<f64>,
    half_p50_ms: Vec<f64>,
    half_ms: Vec<f64>,
    ping_ms: Vec<f64>,
    bytes: Vec<f64>,
}

impl Figures {
    fn rows(&self) -> Vec<Row> {
        let calls = format!("{CELLS_MAX} a call, {CONNECTIONS} connections");
        vec![
            Row::alone(&format!("cells that one Redis carries, {calls}"), "/s", &self.cells)
                .must(Bound::AtLeast(150_000.0)),
            Row::alone("CPU of Redis meanwhile, of one core", "%", &self.core),
            Row::alone("cells a second of CPU of Redis", "/s", &self.cpu_cells),
            Row::alone("p99 of a call meanwhile", "ms", &self.full_ms),
            Row::alone("cells at half of that", "/s", &self.half_cells),
            Row::alone("p50 of a call at half of that", "ms", &self.half_p50_ms),
            Row::alone("p99 of a call at half of that", "ms", &self.half_ms).must(Bound::AtMost(1.0)),
            Row::alone(
                "p99 of an empty command in place of each: the part of this machine",
                "ms",
                &self.ping_ms,
            ),
            Row::alone("time in which Redis waited for a CPU meanwhile", "%", &self.waited),
            Row::alone("memory of a cell in Redis, of 100 000", "bytes", &self.bytes),
        ]
    }
}

/// The rate of calls.
enum Pace {
    /// All cells, this many times.
    Rounds(usize),
    /// For this long, each call right after the reply to the one before.
    FlatOut(Duration),
    /// One call per interval over all connections, for this long.
    Every(Duration, Duration),
    /// Like `Every`, with pings.
    Pings(Duration, Duration),
}

/// Duration and latencies of calls.
struct Took {
    nanos: u64,
    calls: Histogram<u64>,
}

impl Took {
    fn cells_per_second(&self) -> f64 {
        (self.calls.len() * CELLS_MAX as u64) as f64 * 1e9 / self.nanos as f64
    }

    fn millis_at(&self, quantile: f64) -> f64 {
        self.calls.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// Runs hosts, each on its own thread, away from the server's CPU.
fn drive(machine: &Machine, socket: &Path, hosts: u8, pace: &Pace) -> io::Result<Took> {
    let cpu = machine.generator_cpu()?;
    let together = Arc::new(Barrier::new(usize::from(hosts)));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..hosts)
            .map(|number| {
                let together = Arc::clone(&together);
                scope.spawn(move || -> io::Result<Took> {
                    machine.pin(cpu)?;
                    let host = Host::connect(socket)?;
                    together.wait();
                    host.ask(pace, u32::from(number), u32::from(hosts))
                })
            })
            .collect();
        let mut all = Took { nanos: 0, calls: histogram()? };
        for thread in threads {
            let took = thread.join().map_err(|_| io::Error::other("a host panicked"))??;
            all.nanos = all.nanos.max(took.nanos);
            all.calls.add(&took.calls).map_err(io::Error::other)?;
        }
        Ok(all)
    })
}

fn histogram() -> io::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1_000, 60_000_000_000, 3).map_err(io::Error::other)
}

struct Host {
    client: Client,
    batches: Vec<SyncBatch>,
}

impl Host {
    fn connect(socket: &Path) -> io::Result<Host> {
        let mut client = Client::connect(socket)?;
        client.load(&scripts::SYNC)?;
        let rate = CellRate::new(1_000, 1).ok_or_else(|| io::Error::other("a rate of 1000/s"))?;
        let cell_quota = CellQuota { version: 1, rate, burst: 1_000 * TOKEN };
        let batch = |turn: u32| {
            let bucket = (turn % u32::from(BUCKETS)) as u8;
            let asks =
                (0..CELLS_MAX as u32).map(|cell| ask(bucket, turn * CELLS_MAX as u32 + cell, cell_quota));
            let bucket = Bucket(bucket);
            let head = CommandHead { bucket, born_us: 0, sent_at: Timestamp::ORIGIN };
            let asks: Vec<CellRequest> = asks.collect();
            SyncBatch { head, numbers: vec![0; asks.len()], asks }
        };
        let batches = (0..CELLS / CELLS_MAX as u32).map(batch).collect();
        Ok(Host { client, batches })
    }

    fn ask(mut self, pace: &Pace, number: u32, hosts: u32) -> io::Result<Took> {
        let mut calls = histogram()?;
        let begin = read_boot_nanos();
        let nanos = |span: &Duration| span.as_nanos() as u64;
        let (end, gap) = match pace {
            Pace::Rounds(_) => (u64::MAX, 0),
            Pace::FlatOut(span) => (begin + nanos(span), 0),
            Pace::Every(gap, span) | Pace::Pings(gap, span) => {
                (begin + nanos(span), nanos(gap) * u64::from(hosts))
            }
        };
        let mut due = begin + gap * u64::from(number) / u64::from(hosts);
        let mut turn = number as usize * self.batches.len() / hosts as usize;
        let last =
            if let Pace::Rounds(rounds) = pace { turn + rounds * self.batches.len() } else { usize::MAX };
        while turn < last && read_boot_nanos() < end {
            if gap > 0 {
                let now = read_boot_nanos();
                if due > now {
                    thread::sleep(Duration::from_nanos(due - now));
                }
                // Skip calls that could not be made in time.
                due = (due + gap).max(read_boot_nanos().saturating_sub(gap));
            }
            let took = if matches!(pace, Pace::Pings(..)) { self.client.ping()? } else { self.one(turn)? };
            calls.saturating_record(took);
            turn += 1;
        }
        Ok(Took { nanos: read_boot_nanos() - begin, calls })
    }

    /// Sends one batch; returns its nanoseconds.
    fn one(&mut self, turn: usize) -> io::Result<u64> {
        let call = ScriptCommand::Sync(self.batches[turn % self.batches.len()].clone());
        let (reply, took) = self.client.call(&call)?;
        let ScriptReply::Sync(answer) = reply else { return Err(io::Error::other("another reply")) };
        let count = self.batches.len();
        let batch = &mut self.batches[turn % count];
        batch.head.born_us = answer.born_us;
        for (ask, said) in batch.asks.iter_mut().zip(answer.results) {
            ask.last = Some(CellReport {
                hold: ask.hold + said.grant,
                demand: ask.demand,
                generation: said.generation,
            });
            // The host has spent its grant.
            ask.known_age_us = Some(1_000);
        }
        Ok(took)
    }
}

/// A host that wants a few tokens.
fn ask(bucket: u8, number: u32, cell_quota: CellQuota) -> CellRequest {
    let mut key = [0; 16];
    // The first byte is the bucket; the others are spread like a digest.
    key[0] = bucket;
    key[1..9].copy_from_slice(&(u64::from(number) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    CellRequest {
        key,
        cell_quota,
        last: None,
        hold: 2 * TOKEN,
        back: 0,
        owed: TOKEN,
        want: 5 * TOKEN,
        demand: 20_000,
        waited_us: 100_000,
        random: number % 1_000_000,
        known_age_us: None,
        window: None,
    }
}

/// Keys in all.
const CELLS: u32 = 1_563 * CELLS_MAX as u32;

const CONNECTIONS: u8 = 8;

const BUCKETS: u8 = 16;
