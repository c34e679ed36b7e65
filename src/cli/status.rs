//! `tidegate status`: shows the state of the daemon on one page. It changes nothing.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use super::admin_client::AdminArgs;
use super::fleet::{age, dash, in_a_line, reserve_scope};
use super::{CliResult, FormatArgs};
use crate::admin::{ActiveSwitchesStatus, DaemonStatus, RuleStatus};
use crate::engine::{Caller, PoolView, ReserveView, RuleTotals, TopCallers, UNIT_REQUESTS};
use crate::page;
use crate::terms::{Mode, count, counted, printable};
use crate::trace::summary::{TextTable, name};

/// Shows how the daemon is, on one page
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Examples:
  tidegate status
  tidegate status --json

Callers are shown by digests; a rule's `show_keys` says which of its attributes may be shown as text.

Exit codes: 0 shown; 1 the daemon does not answer, with what to do; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let client = args.admin.client();
    match args.format.is_json() {
        true => writeln!(out, "{:#}", client.get_json::<Value>("/status")?)?,
        false => write!(out, "{}", text(&client.get_json("/status")?))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(status: &DaemonStatus) -> String {
    let mut text = String::new();
    head(status, &mut text);
    if !status.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &status.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    let pools = pools(&status.pools).shown();
    let callers = callers_shown(&status.callers).chain(refused_many(status));
    for table in [rules(&status.counts), unmet(&status.counts), pools].into_iter().flatten().chain(callers) {
        let _ = write!(text, "\n{table}\n");
    }
    let held = held(None, &status.switches.held);
    if !held.is_empty() {
        let _ = write!(text, "\n{}\n", held.join("\n"));
    }
    text
}

fn head(status: &DaemonStatus, text: &mut String) {
    let DaemonStatus { rules, decisions, memory, .. } = status;
    let uptime = page::span(std::time::Duration::from_secs(status.uptime_s));
    let domains = counted(rules.domains.len() as u64, "domain");
    let (in_force, left_out) = (count(rules.count()), rules.left_out());
    let _ = write!(
        text,
        "tidegate {}, mode {}, up {uptime}\n\
         rules        {in_force} in {domains} in force ({}){left_out}\n\
         decisions    {} allowed, {} limited, {} waited, {} denied, {} shed\n\
         connections  {}, in {}; {}\n\
         memory       {} KiB of {} KiB, {}\n",
        status.version,
        status.mode,
        rules.path,
        count(decisions.allow),
        count(decisions.limit),
        count(decisions.wait),
        count(decisions.deny),
        count(decisions.shed),
        count(status.connections.now),
        counted(status.sessions, "session"),
        counted(status.leases.live, "lease"),
        count(memory.bytes / 1_024),
        count(memory.max_bytes / 1_024),
        counted(memory.keys, "key"),
    );
    let unmatched = &status.unmatched;
    if unmatched.domain + unmatched.rule > 0 {
        let domain = counted(unmatched.domain, "request");
        let _ = writeln!(
            text,
            "not limited  {domain} for an unknown domain, {} that no rule matched",
            count(unmatched.rule)
        );
    }
    if let Some(fleet) = &status.fleet {
        let _ = writeln!(text, "fleet        {}", in_a_line(&fleet.summary));
    }
}

/// Lists the rules that have counted requests.
fn rules(rules: &[RuleStatus]) -> Option<String> {
    let seen = rules.iter().filter(|rule| rule.totals.outcomes().iter().sum::<u64>() > 0);
    let rows = seen.map(|rule| {
        let [passed, refused, would_refuse] = rule.totals.outcomes().map(count);
        vec![
            name(&rule.totals.domain, &rule.totals.rule),
            passed,
            refused,
            would_refuse,
            rule.mode.clone().unwrap_or_default(),
        ]
    });
    TextTable::new(&["rule", "passed", "refused", "would refuse", "mode"], rows).shown()
}

/// Names the limits that no request has met.
fn unmet(rules: &[RuleStatus]) -> Option<String> {
    let is_unmet = |rule: &&RuleStatus| {
        let is_off = rule.mode.as_deref() == Some(Mode::Disabled.name());
        rule.is_limit && !is_off && rule.totals.outcomes().iter().sum::<u64>() == 0
    };
    let names = rules.iter().filter(is_unmet).map(|rule| name(&rule.totals.domain, &rule.totals.rule));
    let names: Vec<String> = names.collect();
    let (shown, more) = names.split_at(names.len().min(UNMET_SHOWN));
    let more =
        if more.is_empty() { String::new() } else { format!(" and {} more", count(more.len() as u64)) };
    (!shown.is_empty()).then(|| format!("no request has met: {}{more}", shown.join(", ")))
}

/// As many names as fit a line or two.
const UNMET_SHOWN: usize = 8;

/// Returns the tables of callers, or that there are none.
pub(super) fn callers_shown(top: &TopCallers) -> impl Iterator<Item = String> {
    let [refused, busiest] =
        [callers("refused callers", &top.refused), callers("busiest callers", &top.busiest)];
    let none = (busiest.len() == 0).then(|| "busiest callers: no caller stands out".to_owned());
    refused.shown().into_iter().chain(busiest.shown()).chain(none)
}

/// Names the rules whose refusals are spread over so many callers that none stands out.
fn refused_many(status: &DaemonStatus) -> Option<String> {
    let stands_out = |rule: &RuleTotals| {
        status
            .callers
            .refused
            .iter()
            .any(|caller| (&*caller.domain, &*caller.rule) == (&*rule.domain, &*rule.rule))
    };
    let spread =
        status.counts.iter().map(|rule| &rule.totals).filter(|rule| rule.refuse > 0 && !stands_out(rule));
    let spread: Vec<String> =
        spread.map(|rule| format!("{} ({})", name(&rule.domain, &rule.rule), count(rule.refuse))).collect();
    (!spread.is_empty()).then(|| format!("refusals without a prominent caller: {}", spread.join(", ")))
}

pub(super) fn pools(pools: &[PoolView]) -> TextTable {
    // Other pools come from clients, and nothing is shed there.
    let rows = pools.iter().filter(|pool| pool.configured).map(|pool| {
        let unreadable = pool.signals.iter().filter(|signal| !signal.readable);
        vec![
            pool.pool.to_string(),
            count(pool.busy.into()),
            pool.slots.map_or_else(|| "unknown".to_owned(), |slots| count(slots.into())),
            pool.utilization.map_or_else(|| "-".to_owned(), |u| format!("{:.0} %", u * 100.0)),
            format!("{:.3}", pool.severity),
            if pool.braking { "ON" } else { "off" }.to_owned(),
            dash(pool.reserve.as_ref().map(reserve)),
            unreadable.map(|signal| &*signal.name).collect::<Vec<_>>().join(" "),
        ]
    });
    let headings =
        ["pool", "busy", "slots", "used", "severity", "brake", "other work at most", "unreadable signals"];
    TextTable::new(&headings, rows)
}

fn reserve(reserve: &ReserveView) -> String {
    let most = reserve.noncritical_max.map_or_else(|| "unknown".to_owned(), |most| count(most.into()));
    let stale = reserve.elsewhere.as_ref().map(|hosts| format!(", {} ago", age(hosts.stale_s)));
    format!("{most} by {}{}", reserve_scope(reserve), stale.unwrap_or_default())
}

pub(super) fn callers(heading: &str, callers: &[Caller]) -> TextTable {
    let rows = callers.iter().take(CALLERS_SHOWN).map(|caller| {
        vec![
            caller.name().to_owned(),
            count(caller.count),
            count(caller.count.saturating_add(caller.error)),
            caller.unit.as_deref().unwrap_or(UNIT_REQUESTS).to_owned(),
            name(&caller.domain, &caller.rule),
        ]
    });
    TextTable::new(&[heading, "about", "or up to", "unit", "rule"], rows)
}

/// Returns the active switches and blocks, one line each.
pub(super) fn held(off: Option<String>, held: &ActiveSwitchesStatus) -> Vec<String> {
    let mut lines: Vec<String> = off.into_iter().collect();
    let until = |until: &Option<String>| until.as_ref().map(|at| format!(" until {at}")).unwrap_or_default();
    let on_all_hosts = |fleet: bool| if fleet { " on all hosts" } else { "" };
    for switch in &held.switches {
        let (rule, mode, holds) =
            (switch.rule.as_deref().unwrap_or("everything"), &switch.mode, &switch.holds);
        let without = match &switch.written {
            Some(written) => format!("without it: {written}"),
            None => "no rule is called so now: it waits".to_owned(),
        };
        let milder = match (switch.is_last, holds == mode) {
            (Some(false), _) => "; the later one holds".to_owned(),
            (_, true) => String::new(),
            (_, false) => format!("; the daemon's mode makes it {holds}"),
        };
        let (until, by, fleet) = (until(&switch.until), &switch.by, on_all_hosts(switch.fleet));
        lines.push(format!("switched  {rule}: {mode}{fleet}{until}, by {by} ({without}){milder}"));
    }
    for block in &held.blocks {
        let (rule, by) = (&block.rule, &block.by);
        let key = printable(block.text.as_ref().unwrap_or(&block.key), &[]);
        let (fleet, until) = (on_all_hosts(block.fleet), until(&block.until));
        lines.push(format!("blocked   {rule}: {key}{fleet}{until}, by {by}"));
    }
    lines
}

/// Callers per table.
const CALLERS_SHOWN: usize = 10;
