//! `tidegate bench`: load on a running daemon, with a histogram of latencies.

use std::hash::BuildHasher;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use foldhash::fast::FixedState;
use hdrhistogram::Histogram;
use serde_json::{Map, json};

use super::ask::attribute;
use super::client::{Client, ClientFailure, default_socket};
use super::completions::domains;
use super::{CliResult, FormatArgs, span};
use crate::clock::read_boot_nanos;
use crate::protocol::{CheckRequest, DescriptorList, Op, PAIRS_MAX, RequestFrame, encode_request};
use crate::terms::{count, counted};
use crate::trace::spread::QUANTILES;

/// Measures the throughput and response times of a running daemon
///
/// Peeks unless `--hit` is given, so that no quota is used up. The load comes from this process, on the same cores:
/// figures of two machines, or of a busy one, do not compare.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The domain to ask about
    #[arg(default_value = "api", add = domains())]
    domain: String,
    /// Attributes of every request; `{}` in a value becomes a number below --keys
    #[arg(value_name = "KEY=VALUE", value_parser = attribute, default_value = "user=bench-{}")]
    attributes: Vec<(String, String)>,
    /// Connections, each with a thread of its own
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Requests in flight on each connection
    #[arg(long, short, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    in_flight: u16,
    /// How long
    #[arg(long, short = 't', default_value = "5s", value_parser = span)]
    time: Duration,
    /// The number of different values of `{}`
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Hit instead of peek: charges the rules that match
    #[arg(long)]
    hit: bool,
    /// Where the daemon listens [default: as `tidegate hit`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate bench                                       one request at a time
  tidegate bench api user=u{} path=/ -c 8 -i 16 -t 10s

Exit codes: 0 measured; 1 the daemon does not answer, with the reason; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let begin = read_boot_nanos();
    let workers: Vec<_> = (0..args.connections)
        .map(|number| {
            let args = args.clone();
            std::thread::spawn(move || Worker::new(&args, number)?.load(&args))
        })
        .collect();
    let mut all = histogram();
    for worker in workers {
        match worker.join() {
            Ok(one) => all += one?,
            Err(_) => return Ok(ExitCode::FAILURE),
        }
    }
    let rate = all.len().saturating_mul(1_000) / (read_boot_nanos() - begin).div_ceil(NANOS_PER_MILLI).max(1);
    print(args, &all, rate, out)?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, all: &Histogram<u64>, rate: u64, out: &mut dyn Write) -> io::Result<()> {
    let micros = |quantile| all.value_at_quantile(quantile) as f64 / 1_000.0;
    if args.format.is_json() {
        let latencies: Map<_, _> =
            QUANTILES.into_iter().map(|(name, quantile)| (name.into(), json!(micros(quantile)))).collect();
        let figures = json!({
            "answers": all.len(),
            "per_second": rate,
            "connections": args.connections,
            "in_flight": args.in_flight,
            "latency_us": latencies,
        });
        return writeln!(out, "{figures}");
    }
    writeln!(out, "{}, {} a second", counted(all.len(), "answer"), count(rate))?;
    writeln!(out, "{} × {} in flight", counted(args.connections, "connection"), args.in_flight)?;
    for (name, quantile) in QUANTILES {
        writeln!(out, "{name:>6}  {:>10.1} µs", micros(quantile))?;
    }
    Ok(())
}

struct Worker {
    client: Client,
    /// State of the random numbers, seeded by the number of the connection.
    state: u64,
    latencies: Histogram<u64>,
}

impl Worker {
    fn new(args: &Args, number: u16) -> Result<Worker, ClientFailure> {
        let socket = args.socket.clone().unwrap_or_else(default_socket);
        let client = Client::connect(&socket, PATIENCE)?;
        Ok(Worker { client, state: u64::from(number) << 32, latencies: histogram() })
    }

    fn load(mut self, args: &Args) -> Result<Histogram<u64>, ClientFailure> {
        let end = read_boot_nanos().saturating_add(u64::try_from(args.time.as_nanos()).unwrap_or(u64::MAX));
        let mut requests = Vec::new();
        while read_boot_nanos() < end {
            requests.clear();
            for _ in 0..args.in_flight {
                self.write_request(args, &mut requests)?;
            }
            let begin = read_boot_nanos();
            self.client.send(&requests)?;
            for _ in 0..args.in_flight {
                // Replies are counted, not decoded.
                self.client.receive(|_| ())?;
                self.latencies.saturating_record(read_boot_nanos() - begin);
            }
        }
        Ok(self.latencies)
    }

    fn write_request(&mut self, args: &Args, requests: &mut Vec<u8>) -> Result<(), ClientFailure> {
        self.state += 1;
        let number = (FixedState::default().hash_one(self.state) % args.keys).to_string();
        let values: Vec<_> = args.attributes.iter().map(|(_, value)| value.replace("{}", &number)).collect();
        let keys = args.attributes.iter().map(|(key, _)| key.as_str());
        let pairs: Vec<_> = keys.zip(values.iter().map(String::as_str)).collect();
        let mut descriptors = DescriptorList::new();
        // Attributes that do not fit are left out: they do not matter here.
        let _ = pairs.chunks(PAIRS_MAX).all(|descriptor| descriptors.push(descriptor));
        let judge = CheckRequest::new(self.client.next_id(), &args.domain);
        let request = RequestFrame::Check(if args.hit { Op::Hit } else { Op::Peek }, judge);
        Ok(encode_request(requests, &request, &descriptors)?)
    }
}

/// Makes a histogram from 1 ns to 1 min, exact to three digits.
fn histogram() -> Histogram<u64> {
    #[allow(clippy::expect_used, reason = "the bounds are constants, and within what the crate allows")]
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds")
}

const NANOS_PER_MILLI: u64 = 1_000_000;

/// A daemon that takes longer has stopped.
const PATIENCE: Duration = Duration::from_secs(5);
