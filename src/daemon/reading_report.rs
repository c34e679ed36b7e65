//! Reports of problems of a reading of the rules: in the log, and as lines for an operator.

use std::path::Path;

use tracing::{error, warn};

use super::rules_in_force::log_problem;
use crate::rules::{NotApplied, Reading};

/// Returns why some of the written rules are not in force, one line each; empty if all are.
pub(super) fn lines(reading: &Reading) -> Vec<String> {
    let errors = || reading.problems.iter().filter(|problem| problem.is_error());
    let mut lines: Vec<String> = errors().take(ANSWERED_MAX).map(ToString::to_string).collect();
    if let Some(more) = errors().count().checked_sub(ANSWERED_MAX).filter(|more| *more > 0) {
        lines.push(format!("and {more} more errors: `tidegate check` shows them all"));
    }
    lines
        .extend(reading.without.iter().map(|domain| format!("{domain}: has NO LIMITS until that is mended")));
    lines.extend(reading.kept.iter().map(|domain| format!("{domain}: keeps its last good rules")));
    lines.extend(reading.halt.as_ref().map(|halt| match halt {
        NotApplied::Unlisted => "the rules cannot be read: nothing is changed".to_owned(),
        NotApplied::Unsettled => {
            "the files changed all the time while they were read: nothing is changed".to_owned()
        }
        NotApplied::Homeless(files) => {
            let files = files.iter().take(FILES_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("which domain these belong to cannot be read: {files}: nothing is changed")
        }
    }));
    lines
}

pub(super) fn log(reading: &Reading, path: &Path) {
    reading.problems.iter().take(PROBLEMS_MAX).for_each(log_problem);
    if let Some(more) = reading.problems.len().checked_sub(PROBLEMS_MAX).filter(|more| *more > 0) {
        error!("and {more} more problems: `tidegate check {}` shows them all", path.display());
    }
    for domain in &reading.without {
        error!(%domain, "its rules have errors: this domain has NO LIMITS until they are mended");
    }
    for domain in &reading.recalled {
        error!(%domain, "its rules have errors: it has YESTERDAY'S, the last that were good, until they are mended");
    }
    for domain in reading.kept.iter().filter(|domain| !reading.recalled.contains(domain)) {
        error!(%domain, "its rules have errors: it keeps its last good rules until they are mended");
    }
    match &reading.halt {
        Some(NotApplied::Unlisted) => {
            error!(path = %path.display(), "the rules cannot be read: NOTHING IS CHANGED until they can");
        }
        Some(NotApplied::Unsettled) => {
            let path = path.display();
            warn!(%path, "the files changed all the time while they were read: nothing is changed until they stand still");
        }
        Some(NotApplied::Homeless(files)) => {
            let files = files.iter().take(FILES_MAX).map(ToString::to_string).collect::<Vec<_>>().join(", ");
            error!(files, "which domain these belong to cannot be read: NOTHING IS CHANGED until it can");
        }
        None => {}
    }
}

/// The first problems of a file with thousands suffice.
const PROBLEMS_MAX: usize = 1_000;

/// As many as an operator reads in a terminal.
const ANSWERED_MAX: usize = 20;

/// As many names as fit a line.
const FILES_MAX: usize = 16;
