//! Counts the instructions of one `hit` from frame to frame with callgrind.
//!
//! A count is independent of the load of the machine. It is the difference of a run of 2N answers and a run
//! of N, divided by N, so that the setup cancels out. Both runs are this program under valgrind.
//!
//! Filling the table varies by some millions of instructions between runs, which the difference contains. So
//! N is large enough to make that small, and the spread is shown.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a benchmark prints, may stop where it stands, and divides counts that fit"
)]

#[path = "shared/inside.rs"]
mod inside;
#[path = "shared/lender.rs"]
mod lender;
#[path = "shared/report.rs"]
mod report;
#[path = "shared/workload.rs"]
mod workload;

use std::hint::black_box;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand, ValueEnum};
use tidegate::clock::Now;

use inside::{Inside, Work};
use lender::Lender;
use report::{Bound, Row};
use workload::{Hits, Users};

/// Counts the instructions of one hit, by callgrind
#[derive(Debug, Parser)]
struct Arguments {
    /// Answers in the shorter of the two runs
    #[arg(long, default_value_t = 200_000)]
    answers: u32,
    /// Differences taken
    #[arg(long, default_value_t = 3)]
    reps: usize,
    /// Write the rows of the table to this file as well
    #[arg(long)]
    json: Option<PathBuf>,
    /// Passed by `cargo bench`, and not by `cargo test`
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// The part that runs under valgrind
    #[command(hide = true)]
    Run { part: Part, times: u32 },
}

/// The decision to count.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Part {
    /// Frame to frame.
    Answer,
    /// The decision alone: the request is read, the reply is not written.
    Decide,
    /// The loop around either, which is no part of them.
    Loop,
    /// Frame to frame, by a rule of the fleet whose tokens are in hand.
    InHand,
    /// Frame to frame, by a rule of the fleet, on credit.
    OnCredit,
    /// Frame to frame, by three rules.
    Three,
    /// A piece of work begins and ends, under a limit on work at once.
    Work,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.role {
        Some(Role::Run { part, times }) => {
            run(part, times);
            Ok(())
        }
        None if !arguments.bench => Ok(()),
        None => measure(&arguments),
    };
    report::ended(done)
}

fn measure(arguments: &Arguments) -> io::Result<()> {
    let whole = "instructions to decode, decide and encode a hit, 33 rules";
    let counts = |part| -> io::Result<Vec<f64>> {
        let one = || Ok(count(part, arguments.answers)? - count(Part::Loop, arguments.answers)?);
        (0..arguments.reps).map(|_| one()).collect()
    };
    let rows = match counts(Part::Answer) {
        Ok(answer) => {
            let beside = |what: &str, part| -> io::Result<Row> {
                let figure = format!("the same by a rule of the fleet, {what}");
                let row = Row::beside(&figure, "", &counts(part)?, "of this host alone", &answer);
                Ok(row.must(Bound::AtMost(1.1)))
            };
            vec![
                Row::alone(whole, "", &answer).must(Bound::AtMost(1_200.0)),
                Row::alone("of these, to decide", "", &counts(Part::Decide)?),
                beside("tokens in hand", Part::InHand)?,
                beside("on credit", Part::OnCredit)?,
                Row::beside("the same by three rules", "", &counts(Part::Three)?, "by one", &answer),
                Row::alone(
                    "instructions of work that begins and ends, one limit at once",
                    "",
                    &counts(Part::Work)?,
                ),
            ]
        }
        Err(error) => vec![Row::skipped(whole, &error.to_string())],
    };
    report::print(&rows);
    arguments.json.as_ref().map_or(Ok(()), |path| report::save(&rows, path))
}

/// Instructions per repetition.
fn count(part: Part, times: u32) -> io::Result<f64> {
    let (once, twice) = (collected(part, times)?, collected(part, 2 * times)?);
    Ok(twice.saturating_sub(once) as f64 / f64::from(times))
}

/// Instructions of a whole run, from callgrind.
fn collected(part: Part, times: u32) -> io::Result<u64> {
    let part = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(["run", &part, &times.to_string()])
        .output()
        .map_err(|error| io::Error::other(format!("valgrind: {error}")))?;
    let log = String::from_utf8_lossy(&output.stderr);
    let collected = log.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    collected.ok_or_else(|| io::Error::other(format!("callgrind counted nothing: {log}")))
}

fn run(part: Part, times: u32) {
    let start = Now::at_nanos(1_000_000_000);
    if let Part::Work = part {
        return work(times, start);
    }
    let (inside, lender) = match part {
        Part::Answer | Part::Decide | Part::Loop | Part::Work => (Inside::new(), None),
        Part::InHand => in_fleet(lender::IN_HAND),
        Part::OnCredit => in_fleet(lender::ON_CREDIT),
        Part::Three => (Inside::with_three_rules(), None),
    };
    let mut inside = inside.filled(KEYS, start);
    // Make the frames before, as making one is no part of answering it.
    let mut hits = Hits::new(Users::uniform(1));
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(|_| hits.next().to_vec()).collect();
    let mut refused = 0;
    if let Some(lender) = &lender {
        // Requests without tokens or credit are refused, and their keys call.
        for frame in &frames {
            inside.answer(frame, start);
        }
        lender.lend(GRANTED, Now::at_nanos(1_900_000_000));
        refused = lender.refused();
    }
    let users: Vec<String> = (0..FRAMES as u32).map(workload::user).collect();
    for turn in 0..times as usize {
        let now = Now::at_nanos(2_000_000_000 + 1_000 * turn as u64);
        match part {
            Part::Answer | Part::InHand | Part::OnCredit | Part::Three => {
                black_box(inside.answer(&frames[turn % FRAMES], now));
            }
            Part::Decide => {
                let user = &*users[turn % FRAMES];
                black_box(inside.decide(&[("user", user), ("path", "/v1/charges")], now));
            }
            Part::Loop | Part::Work => {
                black_box((&frames[turn % FRAMES], now));
            }
        }
    }
    assert!(lender.is_none_or(|lender| lender.refused() == refused), "what is counted passes");
}

fn work(times: u32, start: Now) {
    let mut work = Work::new(start);
    let users: Vec<String> = (0..FRAMES as u32).map(workload::user).collect();
    for turn in 0..times as usize {
        let now = Now::at_nanos(2_000_000_000 + 1_000 * turn as u64);
        let lease = work.begin(&users[turn % FRAMES], now);
        work.end(black_box(lease), now);
    }
}

fn in_fleet(terms: &str) -> (Inside, Option<Lender>) {
    let (inside, lender) = Inside::in_fleet(terms);
    (inside, Some(lender))
}

/// Fewer than in time measurements: caches do not matter, valgrind is slow, and runs differ less.
const KEYS: u32 = 20_000;

const FRAMES: usize = 1_024;

/// More than any key spends.
const GRANTED: u32 = 5_000;
