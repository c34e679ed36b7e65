//! `tidegate explain`: shows which rules match a request, and why. It queries a daemon only with `--live`.

mod text;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

use super::admin_client::{AdminArgs, AdminClient, AdminFailure};
use super::ask::SubjectArgs;
use super::check::{LEFT_OUT, RulesRead};
use super::client::default_socket;
use super::completions::domains;
use super::{CliError, CliResult, FormatArgs, failed, fleet, usage};
use crate::admin::{DaemonStatus, FleetKeyStatus};
use crate::daemon::log;
use crate::engine::UNIT_REQUESTS;
use crate::protocol::{CheckRequest, DescriptorList, Op, RequestFrame};
use crate::rules::{
    Condition, Domain, KeyScratch, ListKind, ListedEntry, Mismatch, Mode, NodeHits, Prioritize, Rule,
    Selection, near::value, shown,
};
use crate::terms::count;
use crate::trace::jsonl::as_frame;

/// Shows which rules apply to a request, which do not and why, each with its position in the files
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The domain of the request
    #[arg(add = domains())]
    domain: String,
    #[command(flatten)]
    subject: SubjectArgs,
    /// A directory of rules, one file of rules, or a settings file with the rules that it names
    #[arg(long, value_name = "PATH")]
    rules: Option<PathBuf>,
    /// The settings to start from when no rules are given [default: those of the running daemon, else
    /// /etc/tidegate/tidegate.yaml, if it exists]
    #[arg(long, value_name = "FILE", conflicts_with = "rules")]
    config: Option<PathBuf>,
    /// Also asks the daemon for its counts under these rules, and for its share of fleet budgets
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    format: FormatArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate explain api user=u1 method=POST path=/v1/charges
  tidegate explain api --rules config/rules user=u1 --cost tokens=800
  tidegate explain messaging to_number=+1555 --descriptor message_type=marketing,to_number=+1555

Nothing is charged. Without --live no daemon is asked; with it, the rules are those of the files all the same.
Exit codes: 0 explained; 1 no such domain, its rules have errors, or the daemon does not answer; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let descriptors = args.subject.descriptors()?;
    let priority = args.subject.priority.as_deref();
    let judge = CheckRequest { priority, ..CheckRequest::new(0, &args.domain) };
    if let Err(reason) = as_frame(&RequestFrame::Check(Op::Hit, judge), &descriptors) {
        return Err(usage(reason));
    }
    let socket = args.admin.socket.clone().unwrap_or_else(default_socket);
    let read = RulesRead::of(args.rules.as_deref(), args.config.as_deref(), &socket);
    let Some(domain) = read.domains.iter().find(|domain| domain.name() == args.domain) else {
        return Err(no_domain(&args.domain, &read));
    };
    let request = ExplainedRequest { descriptors: &descriptors, cost: &args.subject.cost, priority };
    let explained = explain(domain, &request);
    let live = args.live.then(|| ask_live(&explained, &args.admin.client())).transpose()?;
    if args.format.is_json() {
        let mut all = text::to_json(&explained, &request);
        if let (Some(live), Some(fields)) = (live, all.as_object_mut()) {
            fields.insert("live".to_owned(), json!(live));
        }
        writeln!(out, "{all:#}")?;
    } else {
        text::print(&explained, &request, &read.read_from(), out)?;
        live.iter().try_for_each(|live| print_live(live, out))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn no_domain(name: &str, read: &RulesRead) -> CliError {
    for problem in read.problems.iter().filter(|problem| problem.is_error()) {
        log::plainly(&format!("{}\n", problem.render(false)));
    }
    let known: Vec<_> = read.domains.iter().map(|domain| shown(domain.name())).collect();
    let reason = match (read.failed.iter().any(|failed| **failed == *name), known.as_slice()) {
        (true, _) => format!("domain {}: {LEFT_OUT}", shown(name)),
        (false, []) => {
            let help = "start the daemon of the rules, or name them: --rules PATH";
            format!("no domain {} in {}: there is none\nhelp: {help}", shown(name), read.read_from())
        }
        (false, known) => {
            format!("no domain {} in {}: there is {}", shown(name), read.read_from(), known.join(", "))
        }
    };
    failed(reason)
}

/// The daemon's view of each matching rule, by name.
type LiveRules = BTreeMap<String, LiveRule>;

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

#[derive(Debug)]
struct ExplainedRequest<'a> {
    descriptors: &'a DescriptorList<'a>,
    cost: &'a [(&'static str, u64)],
    priority: Option<&'a str>,
}

#[derive(Debug)]
struct Explained<'d> {
    domain: &'d Domain,
    /// `None` if the domain has no priorities.
    priority: Option<(&'d str, PriorityBy<'d>)>,
    /// List entries, each with the reason why it does not match; `None` if it matches.
    lists: Vec<(&'d ListedEntry, Option<Mismatch<'d>>)>,
    /// The entry that decides before any rule, if one matches.
    decided: Option<&'d ListedEntry>,
    /// Rules that match by attributes, in file order, then the tree nodes that are hit.
    rules: Vec<ExplainFinding<'d>>,
    /// Outcome of each descriptor in the tree; empty if there is no tree.
    descriptors: Vec<TreeOutcome>,
}

#[derive(Clone, Copy, Debug)]
enum PriorityBy<'d> {
    /// The request names it.
    Request,
    /// An entry of `prioritize`.
    Entry(&'d Prioritize),
    /// The last priority: no entry matches.
    Last,
}

#[derive(Debug)]
struct ExplainFinding<'d> {
    rule: &'d Rule,
    stands: Result<Counted, MismatchReason<'d>>,
}

/// Why a rule does not count the request.
#[derive(Debug)]
enum MismatchReason<'d> {
    Matching(Mismatch<'d>),
    /// The cost does not contain its unit.
    Unit(&'d str),
}

/// Key under which a rule counts a request.
#[derive(Debug)]
struct Counted {
    /// Attributes with their values after transformation.
    key: Vec<(String, String)>,
    allowance: u32,
    by: AllowanceBy,
    cost: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowanceBy {
    /// The rule's own numbers.
    Rule,
    /// A row of its table.
    Row,
    /// Index of the entry in the rule's overrides, from 0.
    Listed(usize),
}

/// Outcome of one descriptor in the tree.
#[derive(Clone, Debug, Default, Serialize)]
struct TreeOutcome {
    /// The rule to which it leads; `None`: no node of its depth has a limit.
    rule: Option<Box<str>>,
    /// Whether the limit of another descriptor replaces this rule.
    replaced: bool,
}

fn explain<'d>(domain: &'d Domain, request: &ExplainedRequest<'_>) -> Explained<'d> {
    let attributes = request.descriptors.attributes();
    let (mut selection, mut matching) = (Selection::default(), Vec::new());
    domain.select(attributes, &mut selection, &mut matching);
    let behind = domain.rules().len();
    let lists: Vec<_> = (behind..)
        .filter_map(|number| u32::try_from(number).ok())
        .zip(domain.lists())
        .map(|(number, listed)| (listed, domain.why_not(number, listed.mode, attributes)))
        .collect();
    let speaks = |listed: &ListedEntry| listed.mode == Mode::Enforce;
    let first =
        |kind| lists.iter().find(|(listed, why)| listed.kind == kind && speaks(listed) && why.is_none());
    let decided = first(ListKind::Exempt).or_else(|| first(ListKind::Deny)).map(|(listed, _)| *listed);
    let mut rules = Vec::new();
    let mut descriptors = Vec::new();
    if decided.is_none() {
        for (number, rule) in (0..).zip(domain.rules()) {
            if domain.tree().path(number).is_none() {
                rules.push(of_rule(domain, number, rule, &selection, request));
            }
        }
        descriptors = in_tree(domain, request, &mut rules);
    }
    let priority = domain.priority(request.priority, &selection);
    let priority = priority.map(|name| (name, priority_by(domain, request)));
    Explained { domain, priority, lists, decided, rules, descriptors }
}

fn of_rule<'d>(
    domain: &'d Domain,
    number: u32,
    rule: &'d Rule,
    selection: &Selection<'_>,
    request: &ExplainedRequest<'_>,
) -> ExplainFinding<'d> {
    let attributes = request.descriptors.attributes();
    if let Some(why) = domain.why_not(number, rule.mode, attributes) {
        return ExplainFinding { rule, stands: Err(MismatchReason::Matching(why)) };
    }
    let unit = rule.unit.as_deref().unwrap_or(UNIT_REQUESTS);
    let named = request.cost.iter().find(|(named, _)| *named == unit).map(|(_, cost)| cost);
    let Some(cost) = (if rule.counts_work() { Some(&1) } else { named }) else {
        return ExplainFinding { rule, stands: Err(MismatchReason::Unit(unit)) };
    };
    let mut scratch = KeyScratch::default();
    let key = domain.transformed_key(number, selection, &mut scratch);
    let allowance = domain.allowance_of(number, selection, key.values());
    let holds =
        |(of, _): &(Vec<Condition>, u32)| of.iter().all(|one| one.holds(value(attributes, &one.attribute)));
    let by = match rule.overrides.as_deref() {
        None => AllowanceBy::Rule,
        Some(own) if own.rows.number_of(key.values()).is_some() => AllowanceBy::Row,
        Some(own) => own.list.iter().position(holds).map_or(AllowanceBy::Rule, AllowanceBy::Listed),
    };
    let attributes = rule.key.iter().map(|part| part.attribute.to_string());
    let key = attributes.zip(key.values().map(str::to_owned)).collect();
    ExplainFinding { rule, stands: Ok(Counted { key, allowance, by, cost: *cost }) }
}

/// Appends the tree nodes that are hit and returns the outcome of each descriptor.
fn in_tree<'d>(
    domain: &'d Domain,
    request: &ExplainedRequest<'_>,
    rules: &mut Vec<ExplainFinding<'d>>,
) -> Vec<TreeOutcome> {
    let tree = domain.tree();
    if tree.is_empty() {
        return Vec::new();
    }
    let mut hits = NodeHits::new();
    tree.select_hits(request.descriptors.iter(), &mut hits);
    let cost = request.cost.iter().find(|(unit, _)| *unit == UNIT_REQUESTS).map(|(_, cost)| *cost);
    for hit in &hits {
        let Some(rule) = domain.rules().get(hit.hit.rule as usize) else { continue };
        let stands = match cost {
            None => Err(MismatchReason::Unit(UNIT_REQUESTS)),
            Some(cost) => {
                let descriptor =
                    request.descriptors.iter().nth(usize::from(hit.descriptor)).unwrap_or_default();
                let values: Vec<_> = tree.key_values(hit.hit, descriptor).map(str::to_owned).collect();
                let (pairs, _) = values.as_chunks::<2>();
                let key = pairs.iter().map(|[key, value]| (key.clone(), value.clone())).collect();
                let cost = cost * u64::from(hit.times);
                Ok(Counted { key, allowance: 0, by: AllowanceBy::Rule, cost })
            }
        };
        rules.push(ExplainFinding { rule, stands });
    }
    let of_descriptor = |descriptor: &[(&str, &str)]| {
        let Some(found) = tree.find(descriptor) else { return TreeOutcome::default() };
        // A replaced node is replaced for all descriptors that lead to it.
        let replaced = hits.iter().all(|hit| hit.hit.rule != found.rule);
        TreeOutcome { rule: domain.rules().get(found.rule as usize).map(|rule| rule.name.clone()), replaced }
    };
    request.descriptors.iter().map(of_descriptor).collect()
}

fn priority_by<'d>(domain: &'d Domain, request: &ExplainedRequest<'_>) -> PriorityBy<'d> {
    if request.priority.is_some_and(|request| domain.priorities().iter().any(|name| **name == *request)) {
        return PriorityBy::Request;
    }
    let attributes = request.descriptors.attributes();
    let holds = |entry: &&Prioritize| {
        entry.conditions.iter().all(|condition| condition.holds(value(attributes, &condition.attribute)))
    };
    domain.prioritize().iter().find(holds).map_or(PriorityBy::Last, PriorityBy::Entry)
}
