//! `tidegate test`: evaluates requests by the engine, in virtual time, and compares the verdicts. For CI.

mod line;
mod play;
mod suite;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

use super::{CliResult, FormatArgs};
use crate::daemon::log;
use crate::rules::Problem;
use crate::rules::source::Source;
use crate::terms::counted;
use play::{KnownRules, TestFailure};
use suite::Test;

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
    if args.format.is_json() {
        writeln!(out, "{:#}", json!(tally))?;
    } else {
        for TestFailure { file, line, test, what } in &tally.failures {
            writeln!(out, "{file}:{line}: {test}: {what}")?;
        }
        writeln!(out, "{}", tally.summary())?;
    }
    let is_fine = tally.failed == 0 && tally.unreadable == 0;
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

impl TestTally {
    fn play(&mut self, test: &Test, rules: &mut KnownRules) {
        match play::play(test, rules) {
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

    fn summary(&self) -> String {
        let TestTally { tests, requests, failed, unreadable, .. } = *self;
        let passed = match (failed, unreadable) {
            (0, 0) => "all as expected".to_owned(),
            (failed, 0) => format!("{failed} failed"),
            (failed, unreadable) => format!("{failed} failed, {unreadable} could not be read"),
        };
        format!("{}, {}: {passed}", counted(tests, "test"), counted(requests, "request"))
    }
}
