//! `tidegate explain`: shows which rules match a request, and why. It queries a daemon only with `--live`.

mod finding;
mod text;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

use super::admin_client::{AdminArgs, AdminClient, AdminFailure};
use super::ask::attribute;
use super::read_rules::RulesRead;
use super::{CliError, CliResult, OutputFormat, failed, fleet, usage};
use crate::admin::{DaemonStatus, FleetKeyStatus};
use crate::daemon::log;
use crate::protocol::{self, CheckRequest, DescriptorList, PAIRS_MAX, RequestFrame};
use crate::rules::shown;
use crate::trace::bounds::refused_by_the_socket;
use crate::trace::table::count;
use finding::{Explained, ExplainedRequest, explain};

/// Says which rules judge a request, which do not and why, each with its place in the files
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The domain whose rules judge
    domain: String,
    /// Attributes of the request, in order: its first descriptor
    #[arg(value_name = "KEY=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// Another descriptor of the request, for descriptor trees; may be given several times
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = descriptor)]
    descriptor: Vec<List>,
    /// A directory of rules, one file of rules, or a settings file with the rules that it names
    #[arg(long, value_name = "PATH")]
    rules: Option<PathBuf>,
    /// The settings to start from when no rules are given; without it /etc/tidegate/tidegate.yaml if there is one
    #[arg(long, value_name = "FILE", conflicts_with = "rules")]
    config: Option<PathBuf>,
    /// Its cost: in requests, or in another unit; may be given once for each unit [default: 1]
    #[arg(long, value_name = "[UNIT=]N", value_parser = cost)]
    cost: Vec<(String, u32)>,
    /// How important it is, in the words of the rules
    #[arg(long, value_name = "NAME")]
    priority: Option<String>,
    /// Also asks the daemon for its counts under these rules, and for its share of fleet budgets
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    admin: AdminArgs,
    /// How to print the answer
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
}

/// The attributes of one descriptor.
type List = std::sync::Arc<[(String, String)]>;

const EXAMPLES: &str = "\
Examples:
  tidegate explain api user=u1 method=POST path=/v1/charges
  tidegate explain api --rules config/rules user=u1 --cost tokens=800
  tidegate explain messaging to_number=+15550100 --descriptor message_type=marketing,to_number=+15550100

Nothing is charged. Without --live no daemon is asked; with it, the rules are those of the files all the same.
Exit codes: 0 explained; 1 no such domain, its rules have errors, or the daemon does not answer; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let mut descriptors = DescriptorList::new();
    let first = pairs(&args.attributes);
    let others: Vec<_> = args.descriptor.iter().map(|list| pairs(list)).collect();
    let all = first.chunks(PAIRS_MAX).chain(others.iter().map(Vec::as_slice));
    for descriptor in all {
        if !descriptors.push(descriptor) {
            return Err(usage("at most 8 descriptors, and at most 16 attributes in each"));
        }
    }
    let judge = CheckRequest { priority: args.priority.as_deref(), ..CheckRequest::new(0, &args.domain) };
    if let Some(reason) = refused_by_the_socket(&RequestFrame::Hit(judge), &descriptors) {
        return Err(usage(reason));
    }
    let read = RulesRead::of(args.rules.as_deref(), args.config.as_deref());
    let Some(domain) = read.domains.iter().find(|domain| domain.name() == args.domain) else {
        return Err(no_domain(&args.domain, &read));
    };
    let asked = ExplainedRequest {
        descriptors: &descriptors,
        cost: costs(&args.cost),
        priority: args.priority.as_deref(),
    };
    let explained = explain(domain, &asked);
    let live = args.live.then(|| ask_live(&explained, &args.admin.client())).transpose()?;
    match args.format {
        OutputFormat::Text => {
            text::print(&explained, &asked, &read.read_from(), out)?;
            live.iter().try_for_each(|live| print_live(live, out))?;
        }
        OutputFormat::Json => {
            let mut all = text::to_json(&explained, &asked);
            if let (Some(live), Some(fields)) = (live, all.as_object_mut()) {
                fields.insert("live".to_owned(), serde_json::json!(live));
            }
            writeln!(out, "{all:#}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn pairs(list: &[(String, String)]) -> Vec<(&str, &str)> {
    list.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

/// Returns the costs; the default is one request.
fn costs(said: &[(String, u32)]) -> Vec<(&str, u32)> {
    match said {
        [] => vec![(crate::engine::UNIT_REQUESTS, 1)],
        said => said.iter().map(|(unit, cost)| (unit.as_str(), *cost)).collect(),
    }
}

fn no_domain(name: &str, read: &RulesRead) -> CliError {
    for problem in read.problems.iter().filter(|problem| problem.is_error()) {
        log::plainly(&format!("{}\n", problem.render(false)));
    }
    let known: Vec<_> = read.domains.iter().map(|domain| shown(domain.name())).collect();
    let reason = match (read.failed.iter().any(|failed| **failed == *name), known.as_slice()) {
        (true, _) => format!("the rules of the domain {} have errors: it has no limits", shown(name)),
        (false, []) => format!("no domain {} in {}: there is none", shown(name), read.read_from()),
        (false, known) => {
            format!("no domain {} in {}: there is {}", shown(name), read.read_from(), known.join(", "))
        }
    };
    failed(reason)
}

/// Parses `user=u1,path=/x`. Values with commas fit only the first descriptor: one argument per attribute.
fn descriptor(text: &str) -> Result<List, String> {
    if text.is_empty() {
        return Ok(List::default());
    }
    text.split(',').map(attribute).collect()
}

/// Parses `3` or `tokens=3`.
fn cost(text: &str) -> Result<(String, u32), String> {
    let (unit, number) = text.split_once('=').unwrap_or((crate::engine::UNIT_REQUESTS, text));
    let number =
        number.parse().map_err(|_| format!("`{number}` is not a number from 0 to {}", protocol::COST_MAX))?;
    Ok((unit.into(), number))
}

/// The daemon's view of each matching rule, by name.
type LiveRules = BTreeMap<String, LiveRule>;

/// A rule in a running daemon.
#[derive(Debug, Serialize)]
struct LiveRule {
    /// `None` if the daemon has no such rule in force.
    counts: Option<LiveCounts>,
    /// This host's state of the key; `None` if the key is not shared, or the daemon has other rules.
    share: Option<FleetKeyStatus>,
}

#[derive(Debug, Serialize)]
struct LiveCounts {
    passed: u64,
    refused: u64,
    would_refuse: u64,
}

fn ask_live(explained: &Explained<'_>, admin: &AdminClient) -> Result<LiveRules, AdminFailure> {
    let status: DaemonStatus = admin.get_json("/status")?;
    let domain = explained.domain.name();
    let matching =
        explained.rules.iter().filter_map(|found| Some((&found.rule, found.stands.as_ref().ok()?)));
    let live = matching.map(|(rule, counted)| {
        let mut rules = status.counts.iter().map(|rule| &rule.totals);
        let counts =
            rules.find(|counts| *counts.domain == *domain && *counts.rule == *rule.name).map(|counts| {
                let [passed, refused, would_refuse] = counts.outcomes();
                LiveCounts { passed, refused, would_refuse }
            });
        let key = json!({"rule": format!("{domain}/{}", rule.name), "key": counted.key});
        let share = rule.fleet.and_then(|_| admin.post("/fleet/key", &key).ok());
        (rule.name.to_string(), LiveRule { counts, share })
    });
    Ok(live.collect())
}

/// Prints a line for each rule, and one for its fleet budget.
fn print_live(live: &LiveRules, out: &mut dyn Write) -> io::Result<()> {
    for (rule, LiveRule { counts, share }) in live {
        match counts {
            Some(LiveCounts { passed, refused, would_refuse }) => writeln!(
                out,
                "live      {rule}: {} passed, {} refused, {} would be refused, since the daemon started",
                count(*passed),
                count(*refused),
                count(*would_refuse),
            )?,
            None => writeln!(out, "live      {rule}: the daemon has no such rule in force")?,
        }
        for line in share.iter().flat_map(fleet::here) {
            writeln!(out, "          {line}")?;
        }
    }
    Ok(())
}
