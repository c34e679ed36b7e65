//! The part of the status about the rules in force, and what the files have beside them.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{limits, unix_seconds};
use crate::admin::RulesRecord;
use crate::clock::{Now, Timestamp};
use crate::engine::InForce;

/// The rules in force and the results of reloads, in Unix time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RuleFilesStatus {
    pub(crate) path: String,
    pub(crate) good: bool,
    pub(crate) last_success: Option<f64>,
    pub(crate) last_failure: Option<f64>,
    pub(crate) domains: Vec<DomainStatus>,
    /// Domains whose files have errors, in force by their last good rules.
    pub(crate) kept: Vec<Box<str>>,
    /// Domains whose files have errors, without limits.
    pub(crate) without: Vec<Box<str>>,
    /// The file and line of the first error.
    pub(crate) first_error: Option<String>,
}

/// A domain and the number of its rules.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DomainStatus {
    pub(crate) name: String,
    pub(crate) sha: String,
    pub(crate) rules: u64,
}

impl RuleFilesStatus {
    pub(super) fn new(record: &RulesRecord, in_force: &InForce, now: Now) -> RuleFilesStatus {
        let when = |at: Option<Timestamp>| at.map(|at| unix_seconds(at, now));
        let mut by_domain: HashMap<&str, u64> = HashMap::new();
        // Parts of pools and entries of lists are no rules, as `check` and the start line count them.
        limits(in_force).for_each(|rule| *by_domain.entry(rule.domain).or_default() += 1);
        let domains = record.domains.iter().map(|domain| DomainStatus {
            name: domain.name.to_string(),
            sha: domain.sha.clone(),
            rules: by_domain.get(&*domain.name).copied().unwrap_or_default(),
        });
        RuleFilesStatus {
            path: record.path.clone(),
            good: record.is_good,
            last_success: when(record.last_success),
            last_failure: when(record.last_failure),
            domains: domains.collect(),
            kept: record.kept.clone(),
            without: record.without.clone(),
            first_error: record.first_error.clone(),
        }
    }

    /// Says, after the rules in force, which of the files are not; empty if all are.
    pub(crate) fn left_out(&self) -> String {
        if self.good {
            return String::new();
        }
        let of = |names: &[Box<str>], what: &str| {
            (!names.is_empty()).then(|| format!("{} {what}", names.join(", ")))
        };
        let parts = [of(&self.kept, "by the last good rules"), of(&self.without, "WITHOUT LIMITS")];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let parts = if parts.is_empty() { "the files are not in force".to_owned() } else { parts.join(", ") };
        let at = self.first_error.as_ref().map(|at| format!(": {at}")).unwrap_or_default();
        format!(", {parts}{at}")
    }

    /// Returns the number of rules in force.
    pub(crate) fn count(&self) -> u64 {
        self.domains.iter().map(|domain| domain.rules).sum()
    }
}
