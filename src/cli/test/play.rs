//! Plays a test on a fresh engine: every test begins with nothing remembered. Nothing sleeps.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::super::replay::bounds::refused_by_the_socket;
use super::super::replay::event::By;
use super::super::replay::player::Player;
use super::line::Line;
use super::suite::Test;
use crate::engine::{self, Cost, UnitCosts};
use crate::protocol::{self, Descriptors, Judge};
use crate::rules::{Domain, Problem};

/// A request that did not come out as expected.
#[derive(Debug)]
pub(super) struct Failure {
    /// The line of the file.
    pub(super) line: u32,
    pub(super) what: String,
}

/// Rules that several tests are judged by are read once.
#[derive(Debug, Default)]
pub(super) struct RulesByPath(HashMap<PathBuf, Option<Vec<Arc<Domain>>>>);

impl RulesByPath {
    /// The domains of a test's rules. What is wrong with a path is told the first time only.
    fn of(&mut self, test: &Test) -> Result<Vec<Arc<Domain>>, Vec<Problem>> {
        let Some(path) = test.rules_path() else { return test.read_rules() };
        if let Some(known) = self.0.get(path) {
            return known.clone().ok_or_else(Vec::new);
        }
        let read = test.read_rules();
        self.0.insert(path.to_owned(), read.as_ref().ok().cloned());
        read
    }
}

/// Plays a test. Of each line the first request that comes out otherwise is told.
///
/// # Errors
/// Its rules have errors, or which domain is meant is not known.
pub(super) fn play(test: &Test, rules: &mut RulesByPath) -> Result<Vec<Failure>, Vec<Problem>> {
    let domains = rules.of(test)?;
    let domain = test.domain(&domains)?;
    let mut player = Player::new(domains, 0);
    let mut failures: Vec<Failure> = Vec::new();
    for moment in test.moments() {
        let Some(line) = test.lines.get(moment.line) else { continue };
        player.advance(moment.at);
        let wrong = judge(line, &domain, &mut player);
        if wrong.is_empty() || failures.iter().any(|failure| failure.line == line.number) {
            continue;
        }
        let nth = match line.times() {
            1 => String::new(),
            times => format!(" (request {} of {times})", moment.nth),
        };
        failures.extend(
            wrong.into_iter().map(|what| Failure { line: line.number, what: format!("{what}{nth}") }),
        );
    }
    failures.sort_by_key(|failure| failure.line);
    Ok(failures)
}

/// What of the decision on one request of a line is not as expected.
fn judge(line: &Line, domain: &str, player: &mut Player) -> Vec<String> {
    let mut descriptors = Descriptors::new();
    for descriptor in &line.descriptors {
        let pairs: Vec<_> = descriptor.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        if !descriptors.push(&pairs) {
            return vec!["at most 8 descriptors, and at most 16 attributes in each".to_owned()];
        }
    }
    let units: Vec<(&str, u32)> = line.cost.iter().map(|(unit, cost)| (unit.as_str(), *cost)).collect();
    let priority = line.priority.as_deref();
    let (asked, cost) = match units.as_slice() {
        [] => (protocol::Cost::Requests(1), Cost::Requests(1)),
        named => (protocol::Cost::Units(named.into()), Cost::Units(&units as &dyn UnitCosts)),
    };
    let asked = Judge { cost: asked, priority, ..Judge::new(0, domain) };
    if let Some(reason) = refused_by_the_socket(&protocol::Request::Hit(asked), &descriptors) {
        return vec![format!("could not be asked: {reason}")];
    }
    let of_engine = engine::Descriptors { attributes: descriptors.attributes(), ends: descriptors.ends() };
    let request = engine::Request {
        cost,
        priority,
        wait_max: line.wait_max,
        ..engine::Request::new(line.op, domain, of_engine)
    };
    match player.judge(&request, &By::default()) {
        Ok(Some(decision)) => line.expected.differences(&decision),
        Ok(None) => vec!["not judged: its session holds too many leases".to_owned()],
        Err(wrong) => vec![wrong.to_string()],
    }
}
