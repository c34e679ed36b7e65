//! The part of the status about the rules in force, and what the files have beside them.

use serde::{Deserialize, Serialize};

use crate::clock::Now;

/// The rules in force, and how the last reading went. Times are in seconds: since the boot of the host, in the status Unix times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RulesRecord {
    /// Where they are read from.
    pub path: String,
    /// Whether the last reading was a success.
    pub good: bool,
    /// When everything that was written was last put in force.
    pub last_success: Option<f64>,
    /// When something last had to be left out.
    pub last_failure: Option<f64>,
    /// The domains in force.
    pub domains: Vec<DomainInForce>,
    /// Domains whose files have errors, in force by their last good rules.
    pub kept: Vec<Box<str>>,
    /// Domains whose files have errors, without limits.
    pub without: Vec<Box<str>>,
    /// The file and line of the first error of the last reading.
    pub first_error: Option<String>,
    /// Whether a domain has no limits because its files have errors and it never had good rules.
    #[serde(skip)]
    pub lacks_limits: bool,
}

/// One domain in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DomainInForce {
    /// Its name.
    pub name: Box<str>,
    /// The fingerprint of its files, in hexadecimal digits.
    pub sha: String,
    /// The number of its rules, without parts of pools and entries of lists.
    pub rules: u64,
}

impl RulesRecord {
    /// Returns it with Unix times, by the wall clock as it is now.
    pub(crate) fn in_unix_time(self, now: Now) -> RulesRecord {
        let unix = |seconds: f64| seconds + now.utc_offset_nanos as f64 / 1e9;
        RulesRecord {
            last_success: self.last_success.map(unix),
            last_failure: self.last_failure.map(unix),
            ..self
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
