//! `tidegate fleet`: shows the fleet budgets that this host shares with others. It changes nothing.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AdminFailure};
use super::ask::attribute;
use super::status::page::{list, name, number, word};
use crate::daemon::log;
use crate::trace::table::{TextTable, count};

/// Shows how this host stands with those that it shares budgets with
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    show: Option<Show>,
    /// The whole of it, as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Clone, Debug, Subcommand)]
enum Show {
    /// Shows what this host has of one key: in hand, owed, and what Redis last said of it; or its places, and how many are in
    /// use
    Show(FleetKeyArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct FleetKeyArgs {
    /// The rule: [DOMAIN/]RULE
    rule: String,
    /// The key: every attribute that the rule counts by
    #[arg(value_name = "KEY=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Examples:
  tidegate fleet
  tidegate fleet show per-tenant tenant=t1
  tidegate fleet show exports org=o1

`over` are tokens that were charged below zero, which is what was really admitted beyond a budget; `bound` is what the
hosts that are counted may admit beyond it while Redis is heard; `held` and `in use` are the places of a limit on work that
this host has, and those that its work has. All are of all keys that this host asked about.
Exit codes: 0 shown; 1 the daemon does not answer, or the rule shares no budget; 2 wrong usage.";

/// Runs the command.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> io::Result<ExitCode> {
    let (asked, json, text): (_, _, fn(&Value) -> String) = match &args.show {
        None => (args.admin.client().get_json("/fleet"), args.json, page),
        Some(Show::Show(key)) => (ask(key), key.json, of_key),
    };
    match asked {
        Ok(told) if json => writeln!(out, "{told:#}")?,
        Ok(told) => write!(out, "{}", text(&told))?,
        Err(failure) => {
            log::plainly(&format!("tidegate: {failure}"));
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(key: &FleetKeyArgs) -> Result<Value, AdminFailure> {
    let asked = json!({"rule": key.rule, "key": key.attributes});
    key.admin.client().post("/fleet/key", &asked)
}

/// Summarizes the fleet state in one line.
pub(in crate::cli) fn in_a_line(fleet: &Value) -> String {
    let is = |field: &str| fleet.get(field).and_then(Value::as_bool).unwrap_or_default();
    if !is("redis") {
        return "shares with nobody: `redis` of the settings names whom to meet where".to_owned();
    }
    if !is("needed") {
        return "no rule in force shares a budget or a reserve: Redis is only asked for what is said to all hosts"
            .to_owned();
    }
    let hosts = number(fleet, "/hosts");
    let heard = match (is("linked"), seconds(fleet, "/stale_s")) {
        (true, Some(age)) => format!("Redis heard {age} ago"),
        (true, None) => "Redis heard".to_owned(),
        (false, Some(age)) => format!("Redis NOT heard for {age}"),
        (false, None) => "Redis NOT heard yet".to_owned(),
    };
    let (trip, keys) = (number(fleet, "/round_trip_us"), number(fleet, "/keys"));
    let cells = number(fleet, "/cells_per_s");
    format!(
        "{hosts} hosts, {heard}, there and back {} us, {} keys, {} cells/s",
        count(trip),
        count(keys),
        count(cells)
    )
}

fn page(fleet: &Value) -> String {
    let secret = secret(fleet).map(|said| format!("\nsecret       {said}")).unwrap_or_default();
    let mut parts = vec![format!("this host    {}\nfleet        {}{secret}", host(fleet), in_a_line(fleet))];
    parts.extend(nodes(fleet));
    parts.extend(rules(fleet));
    parts.extend(reserves(fleet));
    let said = fleet.get("overrides").map(super::switch::held).unwrap_or_default();
    parts.extend((!said.is_empty()).then(|| said.join("\n")));
    parts.extend(counts(fleet));
    parts.join("\n\n") + "\n"
}

fn host(fleet: &Value) -> &str {
    match word(fleet, "/host") {
        "" => "has no name in a fleet",
        host => host,
    }
}

/// Describes the fleet secret, and the number of hosts with another one.
fn secret(fleet: &Value) -> Option<String> {
    let uses = Some(word(fleet, "/secret/uses")).filter(|uses| !uses.is_empty())?;
    Some(match number(fleet, "/secret/other_hosts") {
        0 => uses.to_owned(),
        others => format!("{uses}; {} hosts have another one, or an older version", count(others)),
    })
}

fn nodes(fleet: &Value) -> Option<String> {
    let nodes = list(fleet, "/nodes");
    let mut table = TextTable::new(&["redis", "state", "there and back", "connections", "why"]);
    for node in nodes {
        let trip = node.pointer("/round_trip_us").and_then(Value::as_u64);
        table.push(vec![
            word(node, "/url").to_owned(),
            word(node, "/state").to_owned(),
            trip.map_or_else(|| "-".to_owned(), |micros| format!("{} us", count(micros))),
            count(number(node, "/connections")),
            word(node, "/why").to_owned(),
        ]);
    }
    (!nodes.is_empty()).then(|| table.to_string())
}

fn rules(fleet: &Value) -> Option<String> {
    let rules = list(fleet, "/rules");
    let mut table = TextTable::new(&[
        "rule",
        "mode",
        "on miss",
        "redis down",
        "version",
        "limit",
        "bound",
        "held",
        "in use",
        "keys",
        "cells/s",
        "heard",
        "over",
        "false",
    ]);
    for rule in rules {
        let mode = if rule.pointer("/shared") == Some(&Value::Bool(true)) {
            word(rule, "/mode")
        } else {
            "this host alone"
        };
        let version = rule.pointer("/version").and_then(Value::as_u64);
        table.push(vec![
            name(rule),
            mode.to_owned(),
            word(rule, "/bound/on_miss").to_owned(),
            word(rule, "/on_redis_down").to_owned(),
            version.map_or_else(|| "-".to_owned(), count),
            count(number(rule, "/limit")),
            format!("+{}", count(number(rule, "/bound/extra"))),
            places(rule, "/places/held"),
            places(rule, "/places/in_use"),
            count(number(rule, "/keys")),
            count(number(rule, "/cells_per_s")),
            seconds(rule, "/stale_s").map_or_else(|| "-".to_owned(), |age| format!("{age} ago")),
            decimal(rule, "/excess"),
            count(number(rule, "/false_refusals")),
        ]);
    }
    (!rules.is_empty()).then(|| table.to_string())
}

/// Lists the pools with a reserve. Claims of other hosts are the most that they admit, not their load.
fn reserves(fleet: &Value) -> Option<String> {
    let reserves = list(fleet, "/reserves");
    let mut table = TextTable::new(&[
        "reserve",
        "goes by",
        "other work",
        "at most",
        "slots elsewhere",
        "claimed there",
        "heard",
    ]);
    for reserve in reserves {
        let shown = |pointer: &str| {
            reserve.pointer(pointer).and_then(Value::as_u64).map_or_else(|| "-".to_owned(), count)
        };
        table.push(vec![
            word(reserve, "/pool").to_owned(),
            goes_by(reserve).to_owned(),
            shown("/others"),
            shown("/most"),
            shown("/elsewhere/slots"),
            shown("/elsewhere/others"),
            seconds(reserve, "/elsewhere/stale_s").map_or_else(|| "-".to_owned(), |age| format!("{age} ago")),
        ]);
    }
    (!reserves.is_empty()).then(|| table.to_string())
}

/// Whether the reserve counts all hosts or this one alone.
fn goes_by(reserve: &Value) -> &'static str {
    if reserve.pointer("/shared") == Some(&Value::Bool(true)) { "the fleet" } else { "this host" }
}

/// Summarizes a reserve in a few words.
pub(in crate::cli) fn reserve_in_short(reserve: &Value) -> String {
    if reserve.is_null() {
        return "-".to_owned();
    }
    let most = reserve.pointer("/most").and_then(Value::as_u64).map_or_else(|| "unknown".to_owned(), count);
    let age = seconds(reserve, "/elsewhere/stale_s").map(|age| format!(", {age} ago")).unwrap_or_default();
    format!("{most} by {}{age}", goes_by(reserve))
}

/// Formats a number of permits of a concurrency rule; `-` for other rules.
fn places(rule: &Value, pointer: &str) -> String {
    rule.pointer(pointer).and_then(Value::as_u64).map_or_else(|| "-".to_owned(), count)
}

/// Lists the failures since the start, without those that never occurred.
fn counts(fleet: &Value) -> Option<String> {
    let mut lines = Vec::new();
    let some = |counts: Option<&Value>, left_out: &[&str]| -> Vec<String> {
        let fields = counts.and_then(Value::as_object).into_iter().flatten();
        let counts = fields.filter_map(|(name, count)| Some((name, count.as_u64()?)));
        counts
            .filter(|(name, counted)| *counted > 0 && !left_out.contains(&name.as_str()))
            .map(|(name, counted)| format!("{name} {}", count(counted)))
            .collect()
    };
    let mut push = |label: &str, said: Vec<String>| {
        if !said.is_empty() {
            lines.push(format!("{label:<12} {}", said.join(", ")));
        }
    };
    push("failures", some(fleet.get("errors"), &[]));
    push("batches", some(fleet.get("batches"), &["answered"]));
    push("overrides", some(fleet.get("overrides_rejected"), &[]));
    let single =
        ["repeats", "outages", "lost", "clamped"].map(|field| (field, number(fleet, &format!("/{field}"))));
    push(
        "since start",
        single.iter().filter(|(_, n)| *n > 0).map(|(field, n)| format!("{field} {}", count(*n))).collect(),
    );
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn of_key(told: &Value) -> String {
    format!("{}  key {}\n{}\n", word(told, "/rule"), word(told, "/key"), here(told).join("\n"))
}

/// Describes this host's state of a key.
pub(in crate::cli) fn here(told: &Value) -> Vec<String> {
    let is = |field: &str| told.get(field).and_then(Value::as_bool).unwrap_or_default();
    if !is("known") {
        return vec!["here         nobody has asked for it of late".to_owned()];
    }
    if told.get("in_use").is_some() {
        let [held, used, limit, hosts] =
            ["/held", "/in_use", "/limit", "/hosts"].map(|field| count(number(told, field)));
        let redis = if is("in_touch") { "is told of it each second" } else { "was not told of it yet" };
        return vec![
            format!("here         {held} places, {used} in use, of {limit} over {hosts} hosts"),
            format!("Redis        {redis}"),
        ];
    }
    let (held, owed) = (count(number(told, "/held")), count(number(told, "/owed")));
    let redis = match told.get("redis").filter(|redis| redis.is_object()) {
        Some(redis) => format!(
            "{} left for all, {} a second asked by all: {} ago",
            decimal(redis, "/level"),
            decimal(redis, "/demand"),
            seconds(redis, "/age_s").unwrap_or_default(),
        ),
        None if is("in_touch") => "has not answered about it since it is heard".to_owned(),
        None => "was not asked about it: this host uses less than its part".to_owned(),
    };
    let limit = count(number(told, "/limit"));
    vec![format!("here         {held} in hand, {owed} owed, of {limit}"), format!("Redis        {redis}")]
}

/// Formats a span in a suitable unit.
fn seconds(value: &Value, pointer: &str) -> Option<String> {
    let seconds = value.pointer(pointer).and_then(Value::as_f64)?;
    Some(match seconds {
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        seconds if seconds < 600.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.0} min", seconds / 60.0),
    })
}

/// Formats a number with one decimal, or none if it is whole.
fn decimal(value: &Value, pointer: &str) -> String {
    let number = value.pointer(pointer).and_then(Value::as_f64).unwrap_or_default();
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}
