//! `tidegate fleet`: shows the fleet budgets that this host shares with others. It changes nothing.

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::admin_client::{AdminArgs, AdminFailure};
use super::status::held;
use super::verbs::KeyArgs;
use super::{CliResult, FormatArgs};
use crate::admin::{
    FleetKeyKind, FleetKeyStatus, FleetPage, FleetRuleStatus, FleetSummary, NamedCounts, RedisNodeStatus,
    ReserveStatus, admitted_max,
};
use crate::clock::Micros;
use crate::engine::ReserveView;
use crate::terms::{count, counted};
use crate::trace::summary::{TextTable, name};

/// Shows the fleet budgets, permits and hosts as this host knows them
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(subcommand)]
    show: Option<Show>,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Clone, Debug, Subcommand)]
enum Show {
    /// Shows one key on this host: borrowed tokens, debt, and the last reply of Redis; or its permits, and how many are in
    /// use
    #[command(after_help = KEY_HELP)]
    Show(KeyArgs),
}

const KEY_HELP: &str = "\
Examples:
  tidegate fleet show per-tenant tenant=t1
  tidegate fleet show exports org=o1 --json

Exit codes: 0 shown; 1 the daemon does not answer, or the rule shares no budget; 2 wrong usage.";

const HELP: &str = "\
Examples:
  tidegate fleet
  tidegate fleet show per-tenant tenant=t1
  tidegate fleet show exports org=o1

`over` counts tokens charged below zero, of all keys since the start: admitted beyond a budget. `bound` is the most that \
the counted hosts may admit beyond it for one key in any span while Redis answers; tokens that `ask` admits in an outage \
or without its answer count in `over` beside a bound of +0. `version … elsewhere`: another host has newer numbers, which \
hold for all hosts. `connected` counts connections since the start. `held` and `in use` count this host's permits of a concurrency rule, and those in use. All \
are sums over the keys that this host syncs.
Exit codes: 0 shown; 1 the daemon does not answer, or the rule shares no budget; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let shown = match &args.show {
        None => shown(args.admin.client().get_json("/fleet")?, args.format, page),
        Some(Show::Show(key)) => {
            let client = key.admin.or(&args.admin).client();
            let format = if args.format.is_json() { args.format } else { key.format };
            shown(client.post("/fleet/key", &json!(key))?, format, of_key)
        }
    };
    write!(out, "{}", shown?)?;
    Ok(ExitCode::SUCCESS)
}

/// Formats a reply of the daemon as JSON, with keys of another version, or as text.
fn shown<T: DeserializeOwned>(
    reply: Value,
    format: FormatArgs,
    text: fn(&T) -> String,
) -> Result<String, AdminFailure> {
    if format.is_json() {
        return Ok(format!("{reply:#}\n"));
    }
    let view = serde_json::from_value(reply).map_err(|error| AdminFailure::Refused(error.to_string()))?;
    Ok(text(&view))
}

pub(in crate::cli) fn in_a_line(fleet: &FleetSummary) -> String {
    if let Some(why) = fleet.failure.as_ref().filter(|_| !fleet.redis) {
        return format!("shares with no other host: {why}");
    }
    if !fleet.redis {
        return "shares with no other host: name a Redis in `redis` of the settings".to_owned();
    }
    if !fleet.needed {
        return "no rule in force shares a budget or a reserve: Redis only has the fleet overrides"
            .to_owned();
    }
    let redis = match (fleet.linked, fleet.stale_s.map(age)) {
        (true, Some(age)) => format!("Redis up, last reply {age} ago"),
        (true, None) => "Redis up".to_owned(),
        (false, Some(age)) => format!("Redis DOWN for {age}"),
        (false, None) => "Redis DOWN, no reply yet".to_owned(),
    };
    // Before the first reply it is an assumption.
    let trip = fleet.stale_s.map(|_| format!(", round trip {}", Micros(fleet.round_trip_us)));
    let hosts = match fleet.hosts > fleet.counted {
        true => format!(
            "shares of {} by `fleet.hosts_at_least`, {} alive",
            counted(fleet.hosts, "host"),
            fleet.alive
        ),
        false => counted(fleet.hosts, "host"),
    };
    format!(
        "{hosts}, {redis}{}, {}, {} cells/s",
        trip.unwrap_or_default(),
        counted(fleet.keys, "key"),
        count(fleet.cells_per_s)
    )
}

fn page(fleet: &FleetPage) -> String {
    let FleetSummary { host, secret, other_rules_hosts, .. } = &fleet.summary;
    let host = if host.is_empty() { String::new() } else { format!("this host    {host}\n") };
    let secret = secret.uses.as_ref().map(|uses| match secret.other_hosts {
        0 => format!("\nsecret       {uses}"),
        others => {
            format!("\nsecret       {uses}; another one, or an older version, on {}", counted(others, "host"))
        }
    });
    let secret = secret.unwrap_or_default();
    let rules_of_others = match *other_rules_hosts {
        0 => String::new(),
        others => {
            format!("\nrules        other numbers, or an older version, on {}", counted(others, "host"))
        }
    };
    let mut parts =
        vec![format!("{host}fleet        {}{secret}{rules_of_others}", in_a_line(&fleet.summary))];
    parts.extend(partition(fleet));
    parts.extend(nodes(&fleet.nodes));
    parts.extend(rules(&fleet.rules));
    parts.extend(reserves(&fleet.reserves));
    let held = held(None, &fleet.overrides);
    parts.extend((!held.is_empty()).then(|| held.join("\n")));
    parts.extend(counts(fleet));
    parts.join("\n\n") + "\n"
}

/// Shows how much all hosts together may admit while some of them do not reach Redis.
fn partition(fleet: &FleetPage) -> Option<String> {
    let FleetSummary { linked, hosts, alive, .. } = fleet.summary;
    let most = admitted_max(&fleet.rules);
    let outage = match (linked, hosts.saturating_sub(alive)) {
        (true, 0) => "hosts of another fleet secret share budgets of their own".to_owned(),
        (true, missed) => format!("Redis misses {missed} of {}: if they still run", counted(hosts, "host")),
        (false, _) => "this host does not reach Redis: if the others do".to_owned(),
    };
    let bound = match most.is_finite() {
        true => format!("at most {most:.2} times a budget"),
        false => "without bound, by `on_redis_down: allow`".to_owned(),
    };
    (most > 1.0).then(|| format!("partition    {outage}, all together may admit {bound}"))
}

fn nodes(nodes: &[RedisNodeStatus]) -> Option<String> {
    let rows = nodes.iter().map(|node| {
        vec![
            node.url.clone(),
            node.state.clone(),
            // Of a server that is down they would be those of before.
            dash(
                node.round_trip_us.filter(|_| node.state != "down").map(|micros| Micros(micros).to_string()),
            ),
            count(node.connections),
            node.why.clone().unwrap_or_default(),
        ]
    });
    TextTable::new(&["redis", "state", "there and back", "connected", "why"], rows).shown()
}

fn rules(rules: &[FleetRuleStatus]) -> Option<String> {
    let rows = rules.iter().map(|rule| {
        let bound = rule.bound;
        vec![
            name(&rule.domain, &rule.rule),
            if rule.shared { &rule.mode } else { "this host alone" }.to_owned(),
            bound.map(|bound| bound.on_miss.to_string()).unwrap_or_default(),
            rule.on_redis_down.clone(),
            dash(rule.version.map(|version| {
                format!("{}{}", count(version), if rule.newer_elsewhere { " elsewhere" } else { "" })
            })),
            count(rule.limit),
            format!("+{}", count(bound.map_or(0, |bound| bound.extra.into()))),
            dash(rule.places.as_ref().map(|places| count(places.held))),
            dash(rule.places.as_ref().map(|places| count(places.in_use))),
            count(rule.keys),
            count(rule.cells_per_s),
            ago(rule.stale_s),
            decimal(rule.excess),
            count(rule.false_refusals),
        ]
    });
    let headings = [
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
    ];
    TextTable::new(&headings, rows).shown()
}

/// Lists the pools with a reserve. Claims of other hosts are the most that they admit, not their load.
fn reserves(reserves: &[ReserveStatus]) -> Option<String> {
    let rows = reserves.iter().map(|ReserveStatus { pool, reserve }| {
        let elsewhere = reserve.elsewhere.as_ref();
        vec![
            pool.clone(),
            reserve_scope(reserve).to_owned(),
            count(reserve.noncritical.into()),
            dash(reserve.noncritical_max.map(|most| count(most.into()))),
            dash(elsewhere.map(|hosts| count(hosts.slots))),
            dash(elsewhere.map(|hosts| count(hosts.noncritical))),
            ago(elsewhere.map(|hosts| hosts.stale_s)),
        ]
    });
    let headings =
        ["reserve", "goes by", "other work", "at most", "slots elsewhere", "claimed there", "heard"];
    TextTable::new(&headings, rows).shown()
}

/// Whether the reserve counts all hosts or this one alone.
pub(in crate::cli) fn reserve_scope(reserve: &ReserveView) -> &'static str {
    if reserve.shared { "the fleet" } else { "this host" }
}

/// Lists the failures since the start, without those that never occurred.
fn counts(fleet: &FleetPage) -> Option<String> {
    let mut lines = Vec::new();
    let mut push = |label: &str, counts: &mut dyn Iterator<Item = (&str, u64)>| {
        let some = counts.filter(|(_, number)| *number > 0);
        let some: Vec<String> = some.map(|(name, number)| format!("{name} {}", count(number))).collect();
        if !some.is_empty() {
            lines.push(format!("{label:<12} {}", some.join(", ")));
        }
    };
    push("failures", &mut by_name(&fleet.errors));
    push("batches", &mut by_name(&fleet.batches).filter(|(name, _)| *name != "answered"));
    push("overrides", &mut by_name(&fleet.overrides_rejected));
    let FleetPage { outages, lost, clamped, .. } = *fleet;
    let single = [("outages", outages), ("lost", lost), ("clamped", clamped)];
    push("since start", &mut single.into_iter());
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn by_name(counts: &NamedCounts) -> impl Iterator<Item = (&str, u64)> {
    counts.iter().map(|(name, number)| (&**name, *number))
}

fn of_key(key: &FleetKeyStatus) -> String {
    format!("{}  key {}, in Redis {}\n{}\n", key.rule, key.digest, key.key, here(key).join("\n"))
}

/// Describes this host's state of a key.
pub(in crate::cli) fn here(key: &FleetKeyStatus) -> Vec<String> {
    let (held, limit) = (count(key.held), count(key.limit));
    match &key.kind {
        _ if !key.known => vec!["here         no recent request".to_owned()],
        FleetKeyKind::Permits { in_use, hosts } => {
            let redis =
                if key.in_touch { "gets a report of it each second" } else { "has no report of it yet" };
            let (in_use, hosts) = (count(*in_use), count(*hosts));
            vec![
                format!("here         {held} permits, {in_use} in use, of {limit} over {hosts} hosts"),
                format!("Redis        {redis}"),
            ]
        }
        FleetKeyKind::Tokens { owed, redis } => {
            let redis = match redis {
                Some(redis) => format!(
                    "{} left for all, {} a second asked by all: {} ago",
                    decimal(redis.level),
                    decimal(redis.demand),
                    age(redis.age_s),
                ),
                None if key.in_touch => "has not replied about it since the outage".to_owned(),
                None => "has no report of it: this host used less than its part, or Redis did not answer"
                    .to_owned(),
            };
            let owed = count(*owed);
            vec![
                format!("here         {held} borrowed, {owed} owed, of {limit}"),
                format!("Redis        {redis}"),
            ]
        }
    }
}

/// Formats a span of seconds in a suitable unit.
pub(in crate::cli) fn age(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        seconds if seconds < 600.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.0} min", seconds / 60.0),
    }
}

fn ago(seconds: Option<f64>) -> String {
    dash(seconds.map(|seconds| format!("{} ago", age(seconds))))
}

pub(in crate::cli) fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Formats a number with one decimal, or none if it is whole or large.
fn decimal(number: f64) -> String {
    if number >= 100.0 {
        return format!("{number:.0}");
    }
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}
