//! `tidegate why`: asks the running daemon which decision a request would get now, and why.

use std::collections::BTreeMap;
use std::io::{Result, Write};
use std::process::ExitCode;

use serde_json::json;

use super::admin_client::AdminArgs;
use super::ask::SubjectArgs;
use super::completions::domains;
use super::{CliResult, FormatArgs};
use crate::admin::{UnusedAttribute, WhyCheck, WhyStatus};
use crate::clock::Micros;
use crate::engine::UNIT_REQUESTS;
use crate::rules::shown;
use crate::terms::{Mode, count, printable};

/// Shows which decision the daemon would make now for a request, and why
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The domain of the request; with --digest it may be left out
    #[arg(add = domains(), required_unless_present = "digest")]
    domain: Option<String>,
    #[command(flatten)]
    subject: SubjectArgs,
    /// Looks up a caller by the digest that refusals, `top` and `switch` show, or its first digits, in place of a request
    #[arg(long, value_name = "HEX", conflicts_with_all = ["attributes", "descriptor", "cost", "priority"])]
    digest: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    format: FormatArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate why api user=u1 method=POST path=/v1/charges
  tidegate why --digest 5f0c0f6ae0b54c1d9a2f6be0c1d4e7a3

Nothing is charged. The rules are those that the daemon has in force; `explain` reads files. \
Shedding depends on the pool of the process that asks: `tidegate status` shows the pools.
Exit codes: 0 answered; 1 no such domain, or the daemon does not answer; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let SubjectArgs { cost, priority, .. } = &args.subject;
    let request = json!({
        "domain": args.domain,
        "descriptors": args.subject.descriptors()?.iter().collect::<Vec<_>>(),
        "cost": cost.iter().map(|(unit, cost)| (unit, cost)).collect::<BTreeMap<_, _>>(),
        "priority": priority,
        "digest": args.digest,
    });
    let status: WhyStatus = args.admin.client().post("/why", &request)?;
    args.format.print(out, || &status, |out| print(&status, out))?;
    Ok(ExitCode::SUCCESS)
}

fn print(status: &WhyStatus, out: &mut dyn Write) -> Result<()> {
    let priority = status.priority.as_deref().map(|name| format!(", priority {name}")).unwrap_or_default();
    writeln!(out, "domain   {}, daemon in {}{priority}", status.domain, status.mode)?;
    if let Some(verdict) = &status.verdict {
        writeln!(out, "verdict  {verdict}{}", reason(status))?;
    }
    if let Some(help) = &status.help {
        writeln!(out, "help     {help}")?;
    }
    for check in &status.checks {
        print_check(check, status.verdict.is_some(), out)?;
    }
    if status.verdict.is_none() && status.checks.is_empty() {
        writeln!(
            out,
            "unknown  no rule has a state of this key, blocks it, or has it among its busiest callers: it is fresh"
        )?;
    }
    for text in &status.overrides {
        writeln!(out, "switch   {text}")?;
    }
    for pool in &status.pools {
        writeln!(out, "pool     {pool}: may shed requests of its processes while it is full")?;
    }
    for other in &status.others {
        match &other.near {
            Some(near) => writeln!(out, "nearly   {} ({}): {near}", other.rule, other.at)?,
            None => writeln!(out, "no       {} ({}): {}", other.rule, other.at, other.reason)?,
        }
    }
    if status.more > 0 {
        writeln!(out, "no       {} more", count(status.more as u64))?;
    }
    for UnusedAttribute { name, near } in &status.unused {
        let near = near.as_deref().map(|near| format!("; is it {}?", shown(near))).unwrap_or_default();
        writeln!(out, "unused   {}: nothing in this domain uses it{near}", shown(name))?;
    }
    Ok(())
}

fn reason(status: &WhyStatus) -> String {
    let wait = match (status.verdict.as_deref(), status.retry_us) {
        (Some("limit" | "shed"), Some(retry)) => format!("; the same request passes in {}", Micros(retry)),
        (Some("limit"), None) => "; it never passes: its cost is above the limit".to_owned(),
        (Some("wait"), Some(wait)) => format!("; it starts in {}", Micros(wait)),
        _ => String::new(),
    };
    match &status.rule {
        Some(rule) => format!(", by {rule}{wait}"),
        None if status.mode == Mode::Disabled.name() => {
            ": everything is switched off; `tidegate status` says by what".to_owned()
        }
        None if status.checks.is_empty() => ": no rule matches".to_owned(),
        None => format!(": no enforced rule with a limit matches{wait}"),
    }
}

fn print_check(check: &WhyCheck, is_request: bool, out: &mut dyn Write) -> Result<()> {
    let WhyCheck { rule, at, mode, quota, digest, cost, unit, .. } = check;
    let label = match (check.refuses, &**mode) {
        (false, _) if !is_request => "known   ",
        (true, "enforce") => "refuses ",
        (true, _) => "would   ",
        (false, _) => "passes  ",
    };
    let mode = if mode == "enforce" { String::new() } else { format!(" ({mode})") };
    let overridden = match (check.is_overridden, check.is_uncertain) {
        (_, true) => " (or those of an override: the digest does not tell)",
        (true, false) => " (an override)",
        (false, false) => "",
    };
    write!(out, "{label} {rule}{mode} ({at}): {quota}{overridden}")?;
    if let (Some(limit), Some(remaining), false) = (check.limit, check.remaining, check.blocked) {
        write!(out, "; {remaining} of {limit} left")?;
    }
    if let Some(wait) = check.retry_us.filter(|_| !is_request && check.refuses) {
        write!(out, ", one more passes in {}", Micros(wait))?;
    } else if let Some(reset) = check.reset_us.filter(|reset| *reset > 0 && !check.blocked) {
        write!(out, ", one more in {}", Micros(reset))?;
    }
    if check.is_unreported {
        write!(out, ", as far as this host knows: only a request asks Redis")?;
    }
    if is_request && (*cost != 1 || unit != UNIT_REQUESTS) {
        write!(out, "; cost {cost} {unit}")?;
    }
    if check.blocked {
        write!(out, "; this key is blocked")?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "         key {digest}{}",
        check.text.as_deref().map(|text| format!(" ({})", printable(text, &[]))).unwrap_or_default()
    )?;
    let sketch = [
        ("about", check.requested, "requested"), // of a sample
        ("at least", check.refused, "refused"),
        ("at least", check.would_refuse, "would be refused"),
    ];
    let sketch: Vec<_> = sketch
        .into_iter()
        .filter_map(|(bound, units, what)| Some(format!("{bound} {} {what}", count(units?))))
        .collect();
    if !sketch.is_empty() {
        writeln!(out, "         lately {}", sketch.join(", "))?;
    }
    Ok(())
}
