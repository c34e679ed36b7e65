//! The report: one row for each figure, with its spread, its bound, and the result.

#![allow(dead_code, reason = "shared by several benchmarks, each of which uses a part")]

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    figure: String,
    unit: String,
    tidegate: Option<Spread>,
    beside: Option<Beside>,
    ratio: Option<Spread>,
    must: Option<Bound>,
    skipped: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Beside {
    name: String,
    spread: Spread,
}

/// The bound of a ratio, or of a figure without one.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// Median and range of several measurements.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Spread {
    median: f64,
    min: f64,
    max: f64,
    count: usize,
}

impl Row {
    /// A figure without comparison.
    pub(crate) fn alone(figure: &str, unit: &str, measured: &[f64]) -> Row {
        Row {
            figure: figure.to_owned(),
            unit: unit.to_owned(),
            tidegate: Spread::of(measured),
            beside: None,
            ratio: None,
            must: None,
            skipped: None,
        }
    }

    /// A figure beside another's. Both were measured in turn, so the ratio is computed within each
    /// repetition, where the load of the machine cancels out.
    pub(crate) fn beside(figure: &str, unit: &str, measured: &[f64], name: &str, other: &[f64]) -> Row {
        let beside = Spread::of(other).map(|spread| Beside { name: name.to_owned(), spread });
        Row { beside, ratio: Spread::of_ratios(measured, other), ..Row::alone(figure, unit, measured) }
    }

    /// A figure that could not be measured, and the reason.
    pub(crate) fn skipped(figure: &str, reason: &str) -> Row {
        Row { skipped: Some(reason.to_owned()), ..Row::alone(figure, "", &[]) }
    }

    pub(crate) fn must(self, must: Bound) -> Row {
        Row { must: Some(must), ..self }
    }

    /// The value that bounds apply to: the ratio, if there is one.
    fn judged(&self) -> Option<Spread> {
        self.ratio.or(self.tidegate)
    }

    fn cells(&self) -> Vec<String> {
        let with_unit = |spread: Spread| format!("{spread} {}", self.unit).trim_end().to_owned();
        let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "–".to_owned());
        let skipped = self.skipped.as_ref().map(|reason| format!("skipped: {reason}"));
        vec![
            self.figure.clone(),
            or_dash(skipped.or(self.tidegate.map(with_unit))),
            or_dash(self.beside.as_ref().map(|other| format!("{}: {}", other.name, with_unit(other.spread)))),
            or_dash(self.ratio.map(|ratio| ratio.to_string())),
        ]
    }

    /// The row of the table of musts, if it has a bound.
    fn must_cells(&self) -> Option<Vec<String>> {
        let must = self.must?;
        let figure = match &self.beside {
            Some(other) => format!("{} ÷ {}", self.figure, other.name),
            None if self.unit.is_empty() => self.figure.clone(),
            None => format!("{}, {}", self.figure, self.unit),
        };
        let judged = self.judged();
        let result = judged.map_or("not measured", |it| if must.holds(it.median) { "ok" } else { "over" });
        let measured = judged.map_or_else(|| "–".to_owned(), |spread| spread.to_string());
        Some(vec![figure, measured, must.to_string(), result.to_owned()])
    }
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtMost(bound) => value <= bound,
            Bound::AtLeast(bound) => value >= bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtMost(bound) => write!(f, "≤ {bound}"),
            Bound::AtLeast(bound) => write!(f, "≥ {bound}"),
        }
    }
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted.len() / 2;
        let lower = (sorted.len() - 1) / 2;
        Some(Spread { median: (sorted[lower] + sorted[upper]) / 2.0, min, max, count: sorted.len() })
    }

    /// Of the ratios of each two that were measured together.
    pub(crate) fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Spread> {
        Spread::of(&ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Number(self.median))?;
        // No range for a single measurement, or one without variance.
        if self.min < self.max { write!(f, " [{}–{}]", Number(self.min), Number(self.max)) } else { Ok(()) }
    }
}

/// Formats a number with three significant digits.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = match self.0.abs() {
            size if size >= 100.0 => 0,
            size if size >= 10.0 => 1,
            size if size >= 1.0 => 2,
            _ => 3,
        };
        write!(f, "{:.decimals$}", self.0)
    }
}

/// The exit code of a benchmark; prints its error.
pub(crate) fn ended(done: io::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints all rows as a Markdown table, then the musts: those that have a bound.
pub(crate) fn print(rows: &[Row]) {
    let head = ["figure", "tidegate", "beside", "ratio"];
    print_table(&with_head(&head, rows.iter().map(Row::cells)));
    println!();
    print_table(&with_head(
        &["figure", "measured", "must", "result"],
        rows.iter().filter_map(Row::must_cells),
    ));
}

fn with_head(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    std::iter::once(head.iter().map(|word| (*word).to_owned()).collect()).chain(rows).collect()
}

/// Prints rows of equal length as a Markdown table; the first is its head.
pub(crate) fn print_table(rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (number, row) in rows.iter().enumerate() {
        let line: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        println!("| {} |", line.join(" | "));
        if number == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
            println!("|{}|", rules.join("|"));
        }
    }
}

/// Writes rows as JSON, for another benchmark or a plot.
pub(crate) fn save(rows: &[Row], path: &Path) -> io::Result<()> {
    fs::write(path, serde_json::to_vec_pretty(rows)?)
}

/// Reads the output of [`save`], or a directory of criterion's.
pub(crate) fn load(path: &Path) -> io::Result<Vec<Row>> {
    if path.is_dir() { load_criterion(path) } else { Ok(serde_json::from_slice(&fs::read(path)?)?) }
}

/// Criterion's medians in nanoseconds, with their confidence intervals.
fn load_criterion(directory: &Path) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for benchmark in fs::read_dir(directory)? {
        let latest = benchmark?.path().join("new");
        let Ok(about) = fs::read(latest.join("benchmark.json")) else { continue };
        let about: Value = serde_json::from_slice(&about)?;
        let estimates: Value = serde_json::from_slice(&fs::read(latest.join("estimates.json"))?)?;
        let median = &estimates["median"];
        let interval = &median["confidence_interval"];
        let numbers = [&interval["lower_bound"], &median["point_estimate"], &interval["upper_bound"]];
        let nanos: Vec<f64> = numbers.into_iter().filter_map(Value::as_f64).collect();
        rows.push(Row::alone(about["full_id"].as_str().unwrap_or("?"), "ns", &nanos));
    }
    rows.sort_by(|one, other| one.figure.cmp(&other.figure));
    Ok(rows)
}
