//! The slowest decisions during reloads and during a flood of new keys.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tidegate::clock::read_boot_nanos;
use tidegate::rules::Library;

use crate::contestant::{Limits, MEMORY_BYTES};
use crate::files;
use crate::machine::Machine;
use crate::report::{Bound, Row};
use crate::rules;
use crate::stopwatch::{Times, millis};
use crate::workload::{DOMAIN, Users};

/// Reloads 10 000 rules and 100 000 overrides repeatedly, on another thread and CPU than the decisions.
pub(crate) fn reload(machine: &Machine, directory: &Path, reps: usize) -> io::Result<Vec<Row>> {
    let directory = directory.join("reload");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("many.yaml"), rules::many(10_000))?;
    let table = files::table(OVERRIDES, 100);
    fs::write(directory.join("partners.csv"), table)?;
    let partners = |version: usize| {
        let fields = format!("key: [user, path], rate: {}/s, overrides_file: partners.csv", version + 1);
        let rule = format!("domain: {DOMAIN}\nlimits:\n- {{name: partners, {fields}}}\n");
        fs::write(directory.join("partners.yaml"), rule)
    };
    partners(0)?;
    let mut library = Library::new(&directory);
    let reading = library.read();
    if let Some(problem) = reading.problems.iter().find(|problem| problem.is_error()) {
        return Err(io::Error::other(problem.to_string()));
    }
    let mut limits = Limits::of(library.domains(), MEMORY_BYTES).filled(1);
    let mut users = Users::uniform(1);
    let (mut quiet, mut reloading, mut took, mut slowest) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut retired = Vec::new();
    for rep in 1..=reps {
        partners(rep)?;
        machine.pin(machine.server_cpu())?;
        let mut times = Times::new();
        let end = read_boot_nanos() + QUIET_NANOS;
        while read_boot_nanos() < end {
            (0..1_000).for_each(|_| times.of(|| limits.next(users.draw())));
        }
        quiet.push(times.at(0.99));
        let engine = limits.engine.clone();
        let is_done = AtomicBool::new(false);
        let mut times = Times::new();
        let millis = thread::scope(|scope| {
            let reload = scope.spawn(|| {
                let pinned = machine.generator_cpu().and_then(|cpu| machine.pin(cpu));
                let (millis, reading) = millis(|| {
                    let reading = library.read();
                    retired.push(engine.install_rules(library.domains()));
                    reading
                });
                is_done.store(true, Ordering::SeqCst);
                assert!(reading.is_good() && !reading.changes.is_empty(), "the rules were read and changed");
                pinned.map(|()| millis)
            });
            while !is_done.load(Ordering::SeqCst) {
                (0..1_000).for_each(|_| times.of(|| limits.next(users.draw())));
            }
            reload.join().unwrap_or_else(|_| Err(io::Error::other("the reload panicked")))
        })?;
        // Include the first decisions under the new rules.
        (0..100_000).for_each(|_| times.of(|| limits.next(users.draw())));
        reloading.push(times.at(0.99));
        slowest.push(times.max() / 1e3);
        took.push(millis);
        // Dropped here, as the daemon never does it on a decision thread.
        retired.clear();
    }
    machine.unpin()?;
    let figure = "reload of 10 000 rules and 100 000 overrides";
    Ok(vec![
        Row::alone(figure, "ms", &took).must(Bound::AtMost(1_000.0)),
        Row::beside(&format!("p99 of decisions during a {figure}"), "ns", &reloading, "quiet", &quiet)
            .must(Bound::AtMost(2.0)),
        Row::alone("the slowest of these decisions", "µs", &slowest),
    ])
}

/// Two full engines with the same budget: one gets its own keys, the other only new keys.
pub(crate) fn flood(reps: usize) -> Vec<Row> {
    let rules = rules::one(rules::TOKEN_BUCKET);
    let mut quiet = Limits::new(&rules, BUDGET_BYTES);
    let mut flooded = Limits::new(&rules, BUDGET_BYTES);
    (0..KEYS_FULL).for_each(|user| quiet.next(user));
    let mut stranger = 0;
    // Until every shard is full and each new key evicts another.
    (0..2 * KEYS_FULL).for_each(|_| {
        flooded.next(stranger);
        stranger += 1;
    });
    let mut p99 = [Vec::new(), Vec::new()];
    let mut p999 = [Vec::new(), Vec::new()];
    let mut longest = Vec::new();
    let mut users = Users::uniform(2);
    for _ in 0..reps {
        let (mut calm, mut stormy) = (Times::new(), Times::new());
        for _ in 0..SLICES {
            (0..SLICE).for_each(|_| calm.of(|| quiet.next(users.draw())));
            (0..SLICE).for_each(|_| {
                stranger += 1;
                stormy.of(|| flooded.next(stranger));
            });
        }
        for (quantile, into) in [(0.99, &mut p99), (0.999, &mut p999)] {
            into[0].push(stormy.at(quantile));
            into[1].push(calm.at(quantile));
        }
        longest.push(stormy.max() / 1e3);
    }
    let evicted = flooded.engine.totals().evictions;
    let all = reps as u64 * u64::from(SLICE) * u64::from(SLICES);
    assert!(evicted * 10 >= all * 9, "{evicted} of {all} had to go: the table is not full");
    let figure =
        |quantile| format!("{quantile} of decisions in a flood of new keys, {} MiB full", BUDGET_BYTES >> 20);
    vec![
        Row::beside(&figure("p99"), "ns", &p99[0], "full and quiet", &p99[1]).must(Bound::AtMost(4.0)),
        Row::beside(&figure("p99.9"), "ns", &p999[0], "full and quiet", &p999[1]),
        Row::alone("the slowest of these decisions", "µs", &longest),
    ]
}

const OVERRIDES: u32 = 100_000;

/// Duration of decisions without a reload, before each reload.
const QUIET_NANOS: u64 = 500_000_000;

/// The daemon's default.
const BUDGET_BYTES: usize = 64 << 20;

/// Nearly fills that budget; twice as many are beyond it in every shard.
const KEYS_FULL: u32 = 1_800_000;

/// Both alternate within a repetition, so that they see the same machine.
const SLICES: u32 = 10;

const SLICE: u32 = 20_000;
