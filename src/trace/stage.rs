//! Plays events to one rule set or two, writes the decisions and records the differences.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::comparison::{Changes, comparison};
use super::decisions::Decisions;
use super::event::{Action, EventConsumer, LeaseOwner, TraceEvent};
use super::failure::{TraceFailure, TraceLineError};
use super::player::{NotPlayed, Player};
use super::report::{ReportNames, page};
use super::side::{ReplaySide, ReportSet};
use super::summary::{PlayedCounts, summary};
use super::table::counted;
use crate::clock::Timestamp;
use crate::engine::{Op, Request};
use crate::record::is_hashed;
use crate::rules;

/// One rule set or two, and counts of the events played.
pub(crate) struct ReplayStage<'w> {
    side: ReplaySide,
    other: Option<ReplaySide>,
    changes: Changes,
    decisions: Option<Decisions<'w>>,
    /// The directory from which paths in the trace are resolved.
    directory: PathBuf,
    lines: u64,
    first: Option<Timestamp>,
    last: Timestamp,
    charges_unmatched: u64,
    /// `reload` events are skipped.
    keeps_rules: bool,
    reloads_passed_over: u64,
    /// Attributes that had hashed values.
    hashed: BTreeSet<Box<str>>,
    news: Vec<String>,
}

impl<'w> ReplayStage<'w> {
    pub(crate) fn new(
        side: ReplaySide,
        other: Option<ReplaySide>,
        decisions: Option<Decisions<'w>>,
        directory: &Path,
    ) -> ReplayStage<'w> {
        // A `reload` of the trace does not name one of two sets.
        let other_is_there = other.is_some();
        ReplayStage {
            side,
            other,
            changes: Changes::default(),
            decisions,
            directory: directory.to_owned(),
            lines: 0,
            first: None,
            last: Timestamp::ORIGIN,
            charges_unmatched: 0,
            keeps_rules: other_is_there,
            reloads_passed_over: 0,
            hashed: BTreeSet::new(),
            news: Vec::new(),
        }
    }

    /// One rule set alone, without `reload` events.
    pub(crate) fn of_rules_that_stay(side: ReplaySide, directory: &Path) -> ReplayStage<'w> {
        ReplayStage { keeps_rules: true, ..ReplayStage::new(side, None, None, directory) }
    }

    /// The results of the only rule set, if recorded.
    pub(crate) fn told(&mut self) -> Option<ReportSet<'_>> {
        self.side.told("")
    }

    /// Plays an event to all sets.
    fn both(
        &mut self,
        event: &TraceEvent<'_>,
        mut play: impl FnMut(&mut Player) -> Result<(), NotPlayed>,
    ) -> Result<(), TraceFailure> {
        let sides = [Some(&mut self.side), self.other.as_mut()].into_iter().flatten();
        { sides }.try_for_each(|side| play(&mut side.player)).map_err(|wrong| not_played(event, wrong))
    }

    fn judge(
        &mut self,
        event: &TraceEvent<'_>,
        request: &Request<'_>,
        by: &LeaseOwner<'_>,
    ) -> Result<(), TraceFailure> {
        for (attribute, value) in request.descriptors.attributes {
            if is_hashed(value) && !self.hashed.contains(*attribute) {
                self.hashed.insert((*attribute).into());
            }
        }
        let all = self.decisions.is_some();
        let decision = self.side.judge(&Request { lists_all_limits: all, ..*request }, by);
        let decision = decision.map_err(|wrong| not_played(event, wrong))?;
        if let Some(decisions) = &mut self.decisions {
            decisions.write(event, decision.as_ref())?;
        }
        let Some(other) = &mut self.other else { return Ok(()) };
        let kept = self.changes.keep(decision.as_ref());
        let decision = other.judge(request, by).map_err(|wrong| not_played(event, wrong))?;
        if request.op != Op::Peek {
            self.changes.note(event.line, kept, decision.as_ref());
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
        let stay = match loaded.over(self.side.player.rules()) {
            Some(domains) => {
                self.side.reload(domains);
                "their domains stay as they are"
            }
            None => "those in force stay",
        };
        if has_errors {
            self.news.push(format!("line {line}: the rules to reload have errors: {stay}"));
        }
    }

    /// The summary, with the remarks of the trace's reader.
    pub(crate) fn summary(&self, remarks: Vec<String>) -> String {
        let played = self.played(remarks);
        match &self.other {
            Some(other) => comparison(&played, &self.side.player, &other.player, &self.changes),
            None => summary(&played, &self.side.player.totals(), self.side.player.callers()),
        }
    }

    /// The HTML report; `None` if no data was collected.
    pub(crate) fn report(&mut self, remarks: Vec<String>, about: &ReportNames<'_>) -> Option<String> {
        let played = self.played(remarks);
        let first = self.side.told(about.rules)?;
        let other = match (&mut self.other, about.other) {
            (Some(other), Some(name)) => Some(other.told(name)?),
            _ => None,
        };
        Some(page(&played, about, &first, other.as_ref().map(|other| (other, &self.changes))))
    }

    /// A warning if rules match on values that the trace has as hashes.
    pub(crate) fn unmatched_hashes(&self) -> Option<String> {
        let sides = || [Some(&self.side), self.other.as_ref()].into_iter().flatten();
        let domains = || sides().flat_map(|side| side.player.rules());
        let unmatched =
            self.hashed.iter().filter(|attribute| domains().any(|domain| domain.looks_at(attribute)));
        let unmatched: Vec<&str> = unmatched.map(|attribute| &**attribute).collect();
        let options = || unmatched.iter().map(|name| format!(" --clear {name}"));
        (!unmatched.is_empty()).then(|| {
            format!(
                "rules match on values of {}, which this trace has as hashes: they match no hash\n\
                 help: record it with `tidegate record{}`",
                unmatched.join(", "),
                options().collect::<String>()
            )
        })
    }

    fn played(&self, mut remarks: Vec<String>) -> PlayedCounts {
        for (number, noun, what) in [
            (self.charges_unmatched, "charge", "matched no rule"),
            (
                self.side.player.beyond_quota(),
                "request",
                "let through unjudged: its session held too many leases",
            ),
            (self.reloads_passed_over, "reload", "passed over: two rule sets are compared"),
        ] {
            if number > 0 {
                remarks.push(format!("{} {what}", counted(number, noun)));
            }
        }
        remarks.extend(self.unmatched_hashes());
        let span = self.first.map_or(Duration::ZERO, |first| self.last.since(first));
        PlayedCounts { lines: self.lines, span, remarks }
    }
}

impl EventConsumer for ReplayStage<'_> {
    fn play(&mut self, event: &TraceEvent<'_>) -> Result<(), TraceFailure> {
        self.lines += 1;
        self.first.get_or_insert(event.at);
        self.last = event.at;
        self.side.advance(event.at);
        if let Some(other) = &mut self.other {
            other.advance(event.at);
        }
        match &event.action {
            Action::Judge(request, by) => return self.judge(event, request, by),
            Action::Charge(charge, work) => {
                let mut matched = None;
                self.both(event, |player| {
                    let found = player.charge(charge, *work)?;
                    matched.get_or_insert(found);
                    Ok(())
                })?;
                self.charges_unmatched += u64::from(matched == Some(false));
            }
            Action::Release(id, outcome) => self.both(event, |player| {
                // A lease that was not granted or has ended needs no end.
                player.release(*id, *outcome);
                Ok(())
            })?,
            Action::Renew(id) => self.both(event, |player| {
                player.renew(*id);
                Ok(())
            })?,
            Action::Signal(signal) => self.both(event, |player| player.signal(signal))?,
            Action::Hello(hello) => self.both(event, |player| player.hello(hello))?,
            Action::Bye(session) => self.both(event, |player| {
                player.bye(session);
                Ok(())
            })?,
            Action::Reload(path) => self.reload(event.line, path),
        }
        Ok(())
    }

    fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    fn lines(&self) -> u64 {
        self.lines
    }
}

fn not_played(event: &TraceEvent<'_>, wrong: NotPlayed) -> TraceFailure {
    TraceFailure::Line { number: event.line, wrong: TraceLineError::NotPlayed(wrong) }
}
