//! The cost of files: reading and holding a table of overrides, replaying a trace.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use tidegate::rules::read;
use tidegate::sys::return_freed_memory;

use crate::contestant::{Limits, MEMORY_BYTES};
use crate::report::{Bound, Row};
use crate::resident::said_by;
use crate::rules;
use crate::stopwatch::{millis, resident_bytes};
use crate::workload::{DOMAIN, Random, USERS, user};

/// A table of overrides for users on a path, with `rates` different rates.
pub(crate) fn table(rows: u32, rates: u32) -> String {
    let mut table = "user,path,rate\n".to_owned();
    for number in 0..rows {
        let _ = writeln!(table, "{},/v1/charges,{}/s", user(number), number % rates + 1);
    }
    table
}

/// The time to read 100 000 rows and the memory that they take, the engine's share included.
pub(crate) fn overrides(directory: &Path, reps: usize) -> io::Result<Vec<Row>> {
    let directory = directory.join("overrides");
    fs::create_dir_all(&directory)?;
    let rule = "{name: partners, key: [user, path], rate: 1/s, overrides_file: partners.csv}";
    fs::write(directory.join("partners.yaml"), format!("domain: {DOMAIN}\nlimits:\n- {rule}\n"))?;
    let mut rows = Vec::new();
    for (what, rates) in [("100 rates", 100), ("each its own rate", ROWS)] {
        fs::write(directory.join("partners.csv"), table(ROWS, rates))?;
        let (mut took, mut bytes) = (Vec::new(), Vec::new());
        for _ in 0..reps {
            let (millis, loaded) = millis(|| read(&directory));
            assert!(!loaded.has_errors(), "{:?}", loaded.problems.first());
            took.push(millis);
            bytes.push(said_by(&["read", &directory.to_string_lossy()])? / f64::from(ROWS));
        }
        let time = Row::alone(&format!("reading 100 000 overrides, {what}"), "ms", &took);
        let space = Row::alone(&format!("resident bytes per override, {what}"), "B", &bytes);
        rows.push(time.must(Bound::AtMost(500.0)));
        rows.push(space.must(Bound::AtMost(200.0)));
    }
    Ok(rows)
}

/// In a process of its own: reads rules and prints the bytes that they take.
pub(crate) fn hold(directory: &Path) -> io::Result<()> {
    return_freed_memory(tidegate::limit::MAPPED_BYTES_MIN);
    let empty = Limits::new(&rules::one(rules::TOKEN_BUCKET), MEMORY_BYTES);
    let before = resident_bytes()?;
    let loaded = read(directory);
    assert!(!loaded.has_errors(), "{:?}", loaded.problems.first());
    empty.engine.install_rules(loaded.domains);
    println!("{}", resident_bytes()?.saturating_sub(before));
    Ok(())
}

/// Replays a trace of a million lines, drawn from a million callers over an hour, with the daemon's command.
pub(crate) fn replay(daemon: &Path, directory: &Path, reps: usize) -> io::Result<Vec<Row>> {
    let directory = directory.join("replay");
    fs::create_dir_all(&directory)?;
    let (rules, trace) = (directory.join("rules.yaml"), directory.join("trace.jsonl"));
    fs::write(&rules, rules::many(33))?;
    fs::write(&trace, lines())?;
    let mut rows = Vec::new();
    for (what, decisions) in [("", None), (", decisions written", Some(directory.join("decisions.jsonl")))] {
        let mut took = Vec::new();
        for _ in 0..reps {
            let mut command = Command::new(daemon);
            command.arg("replay").arg(&trace).arg("--rules").arg(&rules).stdin(Stdio::null());
            if let Some(path) = &decisions {
                command.arg("--decisions").arg(path);
            }
            let (millis, output) = millis(|| command.output());
            let output = output?;
            if !output.status.success() {
                return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
            }
            took.push(millis);
        }
        let row = Row::alone(&format!("replay of 1 000 000 lines{what}"), "ms", &took);
        rows.push(row.must(Bound::AtMost(3_000.0)));
    }
    Ok(rows)
}

fn lines() -> String {
    let mut random = Random::new(1);
    let mut lines = String::new();
    for number in 0..LINES {
        let (seconds, millis) = (number / 280, number % 280);
        let pairs = format!(r#""user","{}","path","/v1/charges""#, user(random.below(USERS)));
        let _ = writeln!(
            lines,
            r#"{{"t":{seconds}.{millis:03},"op":"hit","domain":"{DOMAIN}","descriptors":[[{pairs}]]}}"#
        );
    }
    lines
}

const ROWS: u32 = 100_000;

const LINES: u32 = 1_000_000;
