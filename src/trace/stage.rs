//! Plays events to one rule set or two, writes the decisions and records the differences.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::event::{Action, EventConsumer, LeaseOwner, TraceEvent, TraceFailure, TraceText};
use super::player::{NotPlayed, Player};
use super::report::{ReportNames, ReportSet, page};
use super::summary::{Changes, PlayedCounts, above_zero, comparison, summary, summary_json};
use crate::clock::Micros;
use crate::engine::{Decision, LimitView, Op, Request, Verdict};
use crate::record::is_hashed;
use crate::rules;

/// One rule set or two, and counts of the events played.
pub(crate) struct ReplayStage<'w> {
    pub(crate) player: Player,
    other: Option<Player>,
    changes: Changes,
    /// Where decisions are written to, if anywhere.
    decisions: Option<&'w mut dyn Write>,
    /// The directory from which paths in the trace are resolved.
    directory: PathBuf,
    charges: u64,
    charges_unmatched: u64,
    /// `reload` events are skipped.
    keeps_rules: bool,
    reloads_passed_over: u64,
    /// Lines for which each set of rules would answer `invalid`, as their `idem` is of another request: a daemon remembers
    /// grants alone, so it depends on the rules.
    conflicts: [u64; 2],
    /// Attributes that had hashed values, and those that had others.
    hashed: BTreeSet<Box<str>>,
    clear: BTreeSet<Box<str>>,
    domains: BTreeSet<Box<str>>,
    news: Vec<String>,
}

impl<'w> ReplayStage<'w> {
    pub(crate) fn new(
        player: Player,
        other: Option<Player>,
        decisions: Option<&'w mut dyn Write>,
        directory: &Path,
    ) -> ReplayStage<'w> {
        ReplayStage {
            player,
            // A `reload` of the trace does not name one of two sets.
            keeps_rules: other.is_some(),
            other,
            changes: Changes::default(),
            decisions,
            directory: directory.to_owned(),
            charges: 0,
            charges_unmatched: 0,
            reloads_passed_over: 0,
            conflicts: [0; 2],
            hashed: BTreeSet::new(),
            clear: BTreeSet::new(),
            domains: BTreeSet::new(),
            news: Vec::new(),
        }
    }

    /// One rule set alone, without `reload` events.
    pub(crate) fn of_rules_that_stay(player: Player, directory: &Path) -> ReplayStage<'w> {
        ReplayStage { keeps_rules: true, ..ReplayStage::new(player, None, None, directory) }
    }

    /// Applies an event to all sets. Returns whether the first found its rule, lease or session.
    fn apply(&mut self, event: &TraceEvent<'_>) -> Result<bool, TraceFailure> {
        let [conflicts, other_conflicts] = &mut self.conflicts;
        let found = self.player.apply(&event.action);
        if let Some(other) = &mut self.other {
            unless_conflict(other.apply(&event.action), true, other_conflicts, event)?;
        }
        unless_conflict(found, true, conflicts, event)
    }

    fn judge(
        &mut self,
        event: &TraceEvent<'_>,
        request: &Request<'_>,
        by: &LeaseOwner<'_>,
    ) -> Result<(), TraceFailure> {
        for (attribute, value) in request.descriptors.attributes {
            if !value.is_empty() {
                insert(if is_hashed(value) { &mut self.hashed } else { &mut self.clear }, attribute);
            }
        }
        insert(&mut self.domains, request.domain);
        let all = self.decisions.is_some();
        let decision = self.player.judge(&Request { lists_all_limits: all, ..*request }, by);
        let [conflicts, other_conflicts] = &mut self.conflicts;
        let decision = unless_conflict(decision, None, conflicts, event)?;
        if let Some(decisions) = &mut self.decisions {
            write_decision(decisions, event, decision.as_ref())?;
        }
        let Some(other) = &mut self.other else { return Ok(()) };
        let other = unless_conflict(other.judge(request, by), None, other_conflicts, event)?;
        if request.op != Op::Peek {
            self.changes.note(event.line, decision.as_ref(), other.as_ref());
        }
        Ok(())
    }

    /// Reloads rules as the daemon does: a domain with errors keeps its rules.
    fn reload(&mut self, line: u64, path: &str) {
        if self.keeps_rules {
            self.reloads_passed_over += 1;
            return;
        }
        let loaded = rules::read(&self.directory.join(path));
        let has_errors = loaded.has_errors();
        if has_errors {
            self.news.extend(loaded.problems.iter().map(|problem| problem.render(false)));
        }
        let stay = match loaded.over(&self.player.rules) {
            Some(domains) => {
                self.player.reload(domains);
                "their domains stay as they are"
            }
            None => "those in force stay",
        };
        if has_errors {
            self.news.push(format!("line {line}: the rules to reload have errors: {stay}"));
        }
    }

    pub(crate) fn summary(&self, played: &PlayedCounts) -> String {
        match &self.other {
            Some(other) => comparison(played, &self.player, other, &self.changes),
            None => summary(played, &self.player.totals(), &self.player.records),
        }
    }

    pub(crate) fn summary_json(&self, played: &PlayedCounts) -> Value {
        let other = self.other.as_ref().map(Player::totals);
        summary_json(played, &self.player.totals(), other.as_ref().map(|other| (other, &self.changes)))
    }

    /// Returns the HTML report; `None` if no data was collected.
    pub(crate) fn report(&mut self, played: &PlayedCounts, about: &ReportNames) -> Option<String> {
        let mut sets = vec![ReportSet::new(&about.rules, &mut self.player)?];
        if let (Some(other), Some(name)) = (&mut self.other, &about.other) {
            sets.push(ReportSet::new(name, other)?);
        }
        Some(page(played, about, &sets, &self.changes))
    }

    /// A warning if rules match on values that the trace has as hashes.
    pub(crate) fn unmatched_hashes(&self) -> Option<String> {
        let players = || [Some(&self.player), self.other.as_ref()].into_iter().flatten();
        let domains = || {
            let all = players().flat_map(|player| &player.rules);
            all.filter(|domain| self.domains.contains(domain.name()))
        };
        let unmatched =
            self.hashed.iter().filter(|attribute| domains().any(|domain| domain.looks_at(attribute)));
        let unmatched: Vec<&str> = unmatched.map(|attribute| &**attribute).collect();
        let all: BTreeSet<&str> =
            self.clear.iter().map(|name| &**name).chain(unmatched.iter().copied()).collect();
        let options = || all.iter().map(|name| format!(" --clear {name}"));
        (!unmatched.is_empty()).then(|| {
            format!(
                "rules look at values of {}, which this trace has as hashes: no condition matches them, and addresses of \
                 one prefix count apart\nhelp: tidegate record --for 10m{} --out FILE",
                unmatched.join(", "),
                options().collect::<String>()
            )
        })
    }

    /// Adds the remarks of the replay to those on the trace.
    pub(crate) fn with_remarks(&self, mut played: PlayedCounts) -> PlayedCounts {
        // The trace was recorded under rules that refused these requests.
        let uncharged = if self.charges > 0 { self.changes.allowed } else { 0 };
        let [conflicts, others] = self.conflicts;
        let remarks = above_zero([
            (uncharged, "request", "allowed by the other rules alone: a charge after it is not in the trace"),
            (self.charges_unmatched, "charge", "matched no rule"),
            (self.player.beyond_quota, "request", "passed unjudged: the session held too many leases"),
            (conflicts, "line", "answered `invalid`: the `idem` was used for another request"),
            (
                others,
                "line",
                "answered `invalid` under the other rules: the `idem` was used for another request",
            ),
            (self.reloads_passed_over, "reload", "passed over: two rule sets are compared"),
        ]);
        played.remarks.extend(remarks.chain(self.unmatched_hashes()));
        played
    }
}

/// Inserts a name, which is copied only once.
fn insert(names: &mut BTreeSet<Box<str>>, name: &str) {
    if !names.contains(name) {
        names.insert(name.into());
    }
}

impl EventConsumer for ReplayStage<'_> {
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure> {
        self.player.advance(event.at);
        if let Some(other) = &mut self.other {
            other.advance(event.at);
        }
        match &event.action {
            Action::Judge(request, by) => self.judge(event, request, by)?,
            Action::Reload(path) => self.reload(event.line, path),
            Action::Charge(..) => {
                self.charges += 1;
                self.charges_unmatched += u64::from(!self.apply(event)?);
            }
            // A lease that was not granted or has ended needs no end.
            _ => drop(self.apply(event)?),
        }
        Ok(())
    }

    fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }
}

/// Returns the result of an event, or `without` and counts it if its `idem` is of another request.
fn unless_conflict<T>(
    played: Result<T, NotPlayed>,
    without: T,
    conflicts: &mut u64,
    event: &TraceEvent<'_>,
) -> Result<T, TraceFailure> {
    match played {
        Err(NotPlayed::Repeated(_)) => {
            *conflicts += 1;
            Ok(without)
        }
        played => played.map_err(|wrong| TraceFailure::Line { number: event.line, wrong: wrong.to_string() }),
    }
}

/// Writes a decision; `None` stands for a request that was allowed without a check.
fn write_decision(
    out: &mut dyn Write,
    event: &TraceEvent<'_>,
    decision: Option<&Decision<'_>>,
) -> io::Result<()> {
    let binding = decision.and_then(|decision| decision.binding.as_ref());
    let remaining = decision.and_then(Decision::remaining);
    let notes = decision.into_iter().flat_map(Decision::reply_notes);
    let all = decision.into_iter().flat_map(Decision::limits);
    let written = DecisionRecord {
        t: event.t,
        id: event.id,
        verdict: decision.map_or(Verdict::Allow, |decision| decision.verdict),
        rule: decision.and_then(Decision::rule_name),
        limit: binding.map(|view| view.level.limit),
        window_us: binding.map(|view| view.level.window.0),
        remaining: remaining.map(|(remaining, _)| remaining),
        reset_us: remaining.and_then(|(_, reset)| reset).map(|reset| reset.0),
        retry_us: decision.map_or(Some(Micros::ZERO), |decision| decision.retry_after).map(|retry| retry.0),
        priority: decision.and_then(|decision| decision.priority),
        notes: notes.flat_map(|(kind, rule)| [kind.name(), rule]).collect(),
        all: all
            .map(|limit| {
                let LimitView { rule, level } = limit.view;
                (&*rule.name, level.limit, level.window.0, level.remaining, level.reset.0)
            })
            .collect(),
    };
    // Many short writes become one.
    let mut line = serde_json::to_vec(&written)?;
    line.push(b'\n');
    out.write_all(&line)
}

#[derive(Serialize)]
struct DecisionRecord<'d> {
    t: TraceText<'d>,
    id: Option<TraceText<'d>>,
    verdict: Verdict,
    rule: Option<&'d str>,
    limit: Option<u64>,
    window_us: Option<u64>,
    remaining: Option<u64>,
    reset_us: Option<u64>,
    retry_us: Option<u64>,
    priority: Option<&'d str>,
    /// Kind and rule in one flat list, as on the wire.
    notes: Vec<&'d str>,
    /// Every limit that matched, as on the wire.
    all: Vec<(&'d str, u64, u64, u64, u64)>,
}
