//! `tidegate test`: plays each test on a fresh engine, in virtual time, and compares the verdicts. For CI.

mod line;
mod suite;

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;

use super::{CliResult, FormatArgs};
use crate::daemon::log;
use crate::engine::{Decision, Verdict, WorkOutcome};
use crate::rules::source::Source;
use crate::rules::{self, Domain, Problem, shown};
use crate::terms::counted;
use crate::trace::event::{Action, IdDigest, LeaseOwner};
use crate::trace::json_line::JsonLine;
use crate::trace::jsonl;
use crate::trace::player::Player;
use line::{DecisionField, NEVER, NOTHING, RequestLine, Step, without_spaces};
use suite::{Test, TestRules};

/// Checks requests against rules in virtual time, and reports unexpected verdicts
///
/// A file of tests names rules, and for each test the requests, one or more to a line, with the expected decisions.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Files of tests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Judge by these rules: a directory, or one file. Tests that bring their own rules keep them
    #[arg(long, value_name = "PATH")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate test config/tests/api.yaml
  tidegate test config/tests/*.yaml --rules /etc/tidegate/rules

A file of tests:
  rules: ../rules            # relative to this file
  domain: api                # only if the rules have several
  tests:
    - name: the sixth login is refused for a quarter of an hour
      requests: |
        0:00 x5 every 10s   account=ann ip=192.0.2.1   allow
        0:01                account=ann ip=192.0.2.1   limit retry=15m rule=per-account

  A line is TIME [xN [every SPAN]] [peek|acquire] KEY=VALUE… VERDICT [EXPECTED=…], the verdict
  being allow, limit, shed, wait or deny; or TIME release, renew, charge, hello, bye or reload.
  docs/testing-rules.md has the rest.

Exit codes: 0 all as expected; 1 something is not, or a file cannot be read; 2 wrong usage.";

#[derive(Debug, Default, Serialize)]
struct TestTally {
    tests: usize,
    requests: usize,
    failed: usize,
    unreadable: usize,
    failures: Vec<TestFailure>,
}

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let (mut tally, mut rules) = (TestTally::default(), KnownRules::new());
    for file in &args.files {
        let source = Source::read(file).map_err(|unreadable| vec![*unreadable.problem]);
        match source.and_then(|source| suite::read(&source, args.rules.as_deref())) {
            Ok(tests) => tests.iter().for_each(|test| tally.play(test, &mut rules)),
            Err(problems) => tally.could_not_read(&problems),
        }
    }
    args.format.print(out, || &tally, |out| tally.print(out))?;
    let is_fine = tally.failed == 0 && tally.unreadable == 0;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

impl TestTally {
    fn play(&mut self, test: &Test, rules: &mut KnownRules) {
        match play(test, rules) {
            Ok(failures) => {
                self.tests += 1;
                self.requests += test.moments().len();
                self.failed += usize::from(!failures.is_empty());
                self.failures.extend(failures);
            }
            Err(problems) => self.could_not_read(&problems),
        }
    }

    /// Prints problems to standard error, like those of rules.
    fn could_not_read(&mut self, problems: &[Problem]) {
        self.unreadable += 1;
        for problem in problems.iter().filter(|problem| problem.is_error()) {
            log::plainly(&format!("{}\n", problem.render(false)));
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        for TestFailure { file, line, test, what } in &self.failures {
            writeln!(out, "{file}:{line}: {test}: {what}")?;
        }
        let TestTally { tests, requests, failed, unreadable, .. } = *self;
        let passed = match (failed, unreadable) {
            (0, 0) => "all as expected".to_owned(),
            (failed, 0) => format!("{failed} failed"),
            (failed, unreadable) => format!("{failed} failed, {unreadable} could not be read"),
        };
        writeln!(out, "{}, {}: {passed}", counted(tests, "test"), counted(requests, "request"))
    }
}

#[derive(Debug, Serialize)]
struct TestFailure {
    file: String,
    line: u32,
    test: String,
    what: String,
}

/// The domains of rules, read once for all tests; `None` if they have errors.
type KnownRules = HashMap<TestRules, Option<Vec<Arc<Domain>>>>;

/// Returns the domains of a test's rules. Their problems are returned the first time only.
fn domains(test: &Test, known: &mut KnownRules) -> Result<Vec<Arc<Domain>>, Vec<Problem>> {
    if let Some(domains) = known.get(&test.rules) {
        return domains.clone().ok_or_else(Vec::new);
    }
    let loaded = match &test.rules {
        TestRules::Path(path) => rules::read(path),
        TestRules::Text(text) => rules::read_text(&test.file, text),
    };
    let domains = (!loaded.has_errors()).then_some(loaded.domains);
    known.insert(test.rules.clone(), domains.clone());
    domains.ok_or(loaded.problems)
}

/// Plays a test. Returns, for each line, the failures of its first failing occurrence.
fn play(test: &Test, known: &mut KnownRules) -> Result<Vec<TestFailure>, Vec<Problem>> {
    let domains = domains(test, known)?;
    let domain = test.domain(&domains)?;
    let mut stage =
        TestStage { player: Player::new(domains, 0, false), domain, test, held: HashMap::new(), begun: 0 };
    let mut failures: Vec<TestFailure> = Vec::new();
    for moment in test.moments() {
        let Some(line) = test.lines.get(moment.line) else { continue };
        stage.player.advance(moment.at);
        let wrong = stage.play(&line.step);
        if wrong.is_empty() || failures.iter().any(|failure| failure.line == line.number) {
            continue;
        }
        let nth = match line.times {
            1 => String::new(),
            times => format!(" (request {} of {times})", moment.nth),
        };
        failures.extend(wrong.into_iter().map(|what| TestFailure {
            file: test.file.to_string(),
            line: line.number,
            test: test.name.clone(),
            what: format!("{what}{nth}"),
        }));
    }
    failures.sort_by_key(|failure| failure.line);
    Ok(failures)
}

struct TestStage<'t> {
    player: Player,
    domain: String,
    test: &'t Test,
    /// Leases by name, oldest first.
    held: HashMap<&'t str, VecDeque<IdDigest>>,
    begun: u64,
}

impl<'t> TestStage<'t> {
    /// Plays a step once. Returns the differences from the expected result.
    fn play(&mut self, step: &'t Step) -> Vec<String> {
        let wrong = match step {
            Step::Ask(ask) => return self.ask(ask),
            Step::Charge(line, of_work) => self.charge(line, of_work.as_deref()),
            Step::Release(name, outcome) => self.release(name, *outcome),
            Step::Renew(name) => self.renew(name),
            Step::Hello(session, pool, slots) => {
                let hello = Action::Hello { session, pool, slots: *slots };
                self.player.apply(&hello).err().map(|wrong| wrong.to_string())
            }
            Step::Bye(session) => {
                self.player.apply(&Action::Bye(session)).err().map(|wrong| wrong.to_string())
            }
            Step::Reload(path) => self.reload(path),
        };
        wrong.into_iter().collect()
    }

    fn ask(&mut self, ask: &'t RequestLine) -> Vec<String> {
        let TestStage { player, domain, held, begun, .. } = self;
        let judged = jsonl::judge(&ask.line, domain, ask.op, |request| {
            let id = ask.name.as_deref().map(|name| {
                *begun += 1;
                let id = IdDigest::of(&format!("{name} {begun}"));
                held.entry(name).or_default().push_back(id);
                id
            });
            let by = LeaseOwner { session: ask.line.session.as_deref(), id };
            match player.judge(&request, &by) {
                Ok(Some(decision)) => differences(ask, &decision),
                Ok(None) => vec!["not decided: its session holds too many leases".to_owned()],
                Err(wrong) => vec![wrong.to_string()],
            }
        });
        judged.unwrap_or_else(|wrong| vec![describe_invalid(&wrong)])
    }

    fn charge(&mut self, line: &JsonLine<'_>, of_work: Option<&str>) -> Option<String> {
        let work = match of_work.map(|name| (name, self.held.get(name).and_then(VecDeque::front))) {
            Some((name, None)) => return Some(describe_missing_lease(name)),
            found => found.and_then(|(_, id)| id.copied()),
        };
        let player = &mut self.player;
        let charged = jsonl::charge(line, &self.domain, |charge, _| {
            player.apply(&Action::Charge(charge, work)).map_err(|wrong| wrong.to_string())
        });
        match charged {
            Err(wrong) => Some(describe_invalid(&wrong)),
            Ok(Err(wrong)) => Some(wrong),
            Ok(Ok(true)) => None,
            Ok(Ok(false)) if of_work.is_some() || line.of.is_some() => {
                Some("no charge of that name has so much to refund".to_owned())
            }
            Ok(Ok(false)) => Some("no rule to charge".to_owned()),
        }
    }

    /// Releases the oldest lease of a name that has not ended.
    fn release(&mut self, name: &str, outcome: WorkOutcome) -> Option<String> {
        let held = self.held.get_mut(name).into_iter().flatten();
        let player = &mut self.player;
        let released = { held }.any(|id| player.apply(&Action::Release(*id, outcome)) == Ok(true));
        (!released).then(|| describe_missing_lease(name))
    }

    fn renew(&mut self, name: &str) -> Option<String> {
        let held = self.held.get(name).into_iter().flatten();
        let renewed = held.filter(|id| self.player.apply(&Action::Renew(**id)) == Ok(true)).count();
        (renewed == 0).then(|| describe_missing_lease(name))
    }

    fn reload(&mut self, path: &str) -> Option<String> {
        let loaded = rules::read(&self.test.directory.join(path));
        if let Some(error) = loaded.problems.iter().find(|problem| problem.is_error()) {
            return Some(format!("the rules to reload have errors, the first is: {}", error.message));
        }
        if let Some(domains) = loaded.over(&self.player.rules) {
            self.player.reload(domains);
        }
        None
    }
}

fn describe_missing_lease(name: &str) -> String {
    format!("no work of the name {} is in progress", shown(name))
}

/// Describes why a request or charge cannot be sent.
fn describe_invalid(wrong: &str) -> String {
    match wrong {
        jsonl::DESCRIPTORS => "at most 8 descriptors, and at most 16 attributes in each".to_owned(),
        wrong => format!("could not be asked: {wrong}"),
    }
}

/// Describes the differences of a decision. A wrong verdict is reported alone, as it causes the others.
fn differences(ask: &RequestLine, decision: &Decision<'_>) -> Vec<String> {
    if decision.verdict != ask.verdict {
        return vec![format!("expected {}, got {}", ask.verdict.name(), describe_decision(decision))];
    }
    let differing = ask.expected.iter().filter_map(|(field, expected)| {
        let got = field_of(decision, *field);
        let field: &str = field.into();
        (got != *expected).then(|| format!("expected {field}={expected}, got {got}"))
    });
    differing.collect()
}

fn describe_decision(decision: &Decision<'_>) -> String {
    let mut text = decision.verdict.name().to_owned();
    if let Some(rule) = decision.rule_name() {
        text.push_str(&format!(" by {}", shown(rule)));
    }
    if decision.binding.is_some() {
        text.push_str(&format!(", left={}", field_of(decision, DecisionField::Left)));
    }
    if matches!(decision.verdict, Verdict::Limit | Verdict::Wait | Verdict::Shed) {
        text.push_str(&format!(", retry={}", field_of(decision, DecisionField::Retry)));
    }
    text
}

/// Formats a field as in a line of a test.
fn field_of(decision: &Decision<'_>, field: DecisionField) -> String {
    let text = match field {
        DecisionField::Retry => Some(decision.retry_after.map_or_else(|| NEVER.to_owned(), without_spaces)),
        DecisionField::Left => decision.remaining().map(|(remaining, _)| remaining.to_string()),
        DecisionField::Rule => decision.rule_name().map(str::to_owned),
        DecisionField::Priority => decision.priority.map(str::to_owned),
        DecisionField::Notes => {
            let notes = decision.notes().map(|(kind, rule)| format!("{}:{rule}", kind.name()));
            Some(notes.collect::<Vec<_>>().join(",")).filter(|notes| !notes.is_empty())
        }
    };
    text.unwrap_or_else(|| NOTHING.to_owned())
}
