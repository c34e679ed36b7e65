//! Plays each test on a fresh engine, in virtual time. Nothing sleeps.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use super::line::{RefundTarget, RequestLine, RequestSubject, Step};
use super::suite::Test;
use crate::engine::{self, Amount, IdempotencyKey, RefundBy, RefundReference, WorkOutcome};
use crate::protocol::{self, CheckRequest, DescriptorList, RequestOptions};
use crate::rules::{self, Domain, Problem, shown};
use crate::server::to_engine_cost;
use crate::trace::bounds::refused_by_the_socket;
use crate::trace::event::{Action, HelloEvent, LeaseOwner};
use crate::trace::ids::IdDigest;
use crate::trace::player::{Player, USER};

#[derive(Debug)]
pub(super) struct TestFailure {
    pub(super) line: u32,
    pub(super) what: String,
}

/// Rules by path, read once for all tests.
#[derive(Debug, Default)]
pub(super) struct RulesByPath(HashMap<PathBuf, Option<Vec<Arc<Domain>>>>);

impl RulesByPath {
    /// Returns the domains of a test's rules. The problems of a path are returned the first time only.
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

/// Plays a test. Returns, for each line, the failures of its first failing occurrence.
pub(super) fn play(test: &Test, rules: &mut RulesByPath) -> Result<Vec<TestFailure>, Vec<Problem>> {
    let domains = rules.of(test)?;
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
        failures.extend(
            wrong.into_iter().map(|what| TestFailure { line: line.number, what: format!("{what}{nth}") }),
        );
    }
    failures.sort_by_key(|failure| failure.line);
    Ok(failures)
}

/// The state of a test while it is played.
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
            Step::Charge(about, amounts, of) => self.charge(about, amounts, of.as_ref()),
            Step::Release(name, outcome) => self.release(name, *outcome),
            Step::Renew(name) => self.renew(name),
            Step::Hello(session, pool, slots) => {
                let hello = Action::Hello(HelloEvent { session, pool, slots: *slots });
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
        let mut descriptors = DescriptorList::new();
        if let Some(wrong) = put(&ask.about, &mut descriptors) {
            return vec![wrong];
        }
        let units: Vec<(&str, u64)> = ask.cost.iter().map(|(unit, cost)| (unit.as_str(), *cost)).collect();
        let priority = ask.priority.as_deref();
        let cost = match units.as_slice() {
            [] => protocol::CostField::Requests(1),
            named => protocol::CostField::Units(named.into()),
        };
        let options = options(&ask.about);
        let asked = CheckRequest { cost, priority, options, ..CheckRequest::new(0, &self.domain) };
        if let Some(reason) = refused_by_the_socket(&protocol::RequestFrame::Hit(asked), &descriptors) {
            return vec![format!("could not be asked: {reason}")];
        }
        let (cost, oversized) = to_engine_cost(&cost);
        let request = engine::Request {
            cost,
            oversized,
            priority,
            wait_max: ask.wait_max,
            queued: ask.queued,
            idempotency_key: repeat(&ask.about),
            ..engine::Request::new(ask.op, &self.domain, of_engine(&descriptors))
        };
        let id = ask.name.as_deref().map(|name| {
            self.begun += 1;
            let id = IdDigest::of(&format!("{name} {}", self.begun));
            self.held.entry(name).or_default().push_back(id);
            id
        });
        match self.player.judge(&request, &LeaseOwner { session: ask.about.session.as_deref(), id }) {
            Ok(Some(decision)) => ask.expected.differences(&decision),
            Ok(None) => vec!["not judged: its session holds too many leases".to_owned()],
            Err(wrong) => vec![wrong.to_string()],
        }
    }

    fn charge(
        &mut self,
        about: &RequestSubject,
        amounts: &[(String, i64)],
        of: Option<&RefundTarget>,
    ) -> Option<String> {
        let mut descriptors = DescriptorList::new();
        if let Some(wrong) = put(about, &mut descriptors) {
            return Some(wrong);
        }
        let units: Vec<(&str, i64)> = amounts.iter().map(|(unit, amount)| (unit.as_str(), *amount)).collect();
        let asked = protocol::ChargeFrame {
            id: Some(0),
            domain: &self.domain,
            amount: protocol::AmountField::Units(units.as_slice().into()),
            options: options(about),
        };
        if let Some(reason) = refused_by_the_socket(&protocol::RequestFrame::Charge(asked), &descriptors) {
            return Some(format!("could not be asked: {reason}"));
        }
        let (domain, descriptors) = (self.domain.as_str(), of_engine(&descriptors));
        let (named, work) = match of {
            None => (None, None),
            Some(RefundTarget::Idem(idem)) => (Some(RefundReference::IdempotencyKey(idem.as_bytes())), None),
            Some(RefundTarget::Work(name)) => match self.held.get(name.as_str()).and_then(VecDeque::front) {
                Some(id) => (None, Some(*id)),
                None => return Some(nothing_held(name)),
            },
        };
        let charge = engine::Charge {
            domain,
            descriptors,
            amount: Amount::Units(&units),
            idempotency_key: repeat(about),
            refund_of: named.map(|of| RefundBy { user: USER, reference: of }),
            trusted: true,
        };
        match self.player.apply(&Action::Charge(charge, work)) {
            Ok(true) => None,
            Ok(false) if of.is_some() => Some("nothing of that name to refund so much of".to_owned()),
            Ok(false) => Some("no rule to charge".to_owned()),
            Err(wrong) => Some(wrong.to_string()),
        }
    }

    /// Releases the oldest lease of a name that has not ended.
    fn release(&mut self, name: &str, outcome: WorkOutcome) -> Option<String> {
        let held = self.held.get_mut(name).into_iter().flatten();
        let player = &mut self.player;
        let released = { held }.any(|id| player.apply(&Action::Release(*id, outcome)) == Ok(true));
        (!released).then(|| nothing_held(name))
    }

    fn renew(&mut self, name: &str) -> Option<String> {
        let held = self.held.get(name).into_iter().flatten();
        let renewed = held.filter(|id| self.player.apply(&Action::Renew(**id)) == Ok(true)).count();
        (renewed == 0).then(|| nothing_held(name))
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

fn nothing_held(name: &str) -> String {
    format!("no work of the name {} is in progress", shown(name))
}

/// Adds the attributes of a line to the descriptors. Returns an error if there are too many.
fn put<'l>(about: &'l RequestSubject, descriptors: &mut DescriptorList<'l>) -> Option<String> {
    let each = about.descriptors.iter().all(|descriptor| {
        let pairs: Vec<_> = descriptor.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        descriptors.push(&pairs)
    });
    (!each).then(|| "at most 8 descriptors, and at most 16 attributes in each".to_owned())
}

fn of_engine<'d>(descriptors: &'d DescriptorList<'d>) -> engine::Descriptors<'d> {
    engine::Descriptors { attributes: descriptors.attributes(), ends: descriptors.ends() }
}

fn options(about: &RequestSubject) -> RequestOptions<'_> {
    RequestOptions { idem: about.idem.as_deref().map(str::as_bytes), ..RequestOptions::default() }
}

/// Returns the idempotency key of a line. All lines without a session share one.
fn repeat(about: &RequestSubject) -> Option<IdempotencyKey<'_>> {
    let session = about.session.as_deref().unwrap_or_default().as_bytes();
    about.idem.as_deref().map(|idem| IdempotencyKey { session, user: 0, name: idem.as_bytes() })
}
