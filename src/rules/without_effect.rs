//! What is written and can make no difference, for what it works with is missing. That is known only when every domain
//! is read: a process may ask about several, and its pool is shed in one of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::problem::{Problem, shown};
use super::source::{Place, Report, Source};
use super::{Over, Rule};

/// What the domains say of it so far.
#[derive(Debug, Default)]
pub(super) struct WithoutEffect {
    /// Whether any pool is shed: of others it is never known that there is room.
    sheds: bool,
    elastic: Vec<Named>,
    signals: Vec<Named>,
}

/// A file, a place in it, and the name that stands there.
pub(super) type Named = (Arc<str>, Place, Box<str>);

impl WithoutEffect {
    /// Takes up one domain: its rules, each with its place, whether it sheds, and the signals that count in a pool without
    /// `workers`.
    pub(super) fn look_at<'r>(
        &mut self,
        rules: impl Iterator<Item = (&'r Rule, Place)>,
        sheds: bool,
        signals: Vec<Named>,
    ) {
        let elastic = rules.filter(|(rule, _)| is_elastic(rule));
        self.elastic
            .extend(elastic.map(|(rule, at)| (Arc::clone(&rule.position.file), at, rule.name.clone())));
        self.sheds |= sheds;
        self.signals.extend(signals);
    }

    /// The warnings.
    pub(super) fn problems(&self, sources: &HashMap<&Arc<str>, &Source>) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut warn = |(file, at, _): &Named, message: String, mend: &str| {
            let Some(source) = sources.get(file) else { return };
            let mut report = Report::new(source);
            report.warning(*at, message, mend);
            problems.extend(report.into_problems());
        };
        for rule in self.elastic.iter().filter(|_| !self.sheds) {
            let message = format!(
                "the elastic part of {} is never used: no pool is shed, so none is known to have room",
                shown(&rule.2)
            );
            warn(rule, message, "write an entry of `shed` for the pool, such as `{pool: web, workers: {}}`");
        }
        // There is room for what is elastic by every signal that counts.
        for signal in self.signals.iter().filter(|_| self.elastic.is_empty()) {
            let message =
                format!("`use: true` of {} has no effect: its pool has no `workers`", shown(&signal.2));
            warn(
                signal,
                message,
                "write `workers: {}` beside `signals`; without `use` it is shown all the same",
            );
        }
        problems
    }
}

fn is_elastic(rule: &Rule) -> bool {
    let limits = [Some(&rule.limit), rule.candidate.as_deref()].into_iter().flatten();
    limits.flat_map(|limit| limit.allowances.iter().flatten()).any(|it| matches!(it.over, Over::Elastic(_)))
}
