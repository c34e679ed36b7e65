//! What a rule admits as meant: its limit, its overrides, its candidate.

use super::classes::Classes;
use super::numbers::Numbers;
use super::overrides::{Keepers, overrides};
use crate::rules::fields::Fields;
use crate::rules::source::Report;
use crate::rules::written::CANDIDATE;
use crate::rules::{KeyPart, Limit, Overrides, doubt};

/// What a rule admits.
pub(super) struct Admitted {
    pub(super) limit: Limit,
    pub(super) overrides: Option<Box<Overrides>>,
    pub(super) candidate: Option<Box<Limit>>,
}

/// Reads all of it. Without a key, which is wrong then, nothing that counts by it is read.
pub(super) fn admitted(
    fields: &Fields<'_>,
    key: Option<&[KeyPart]>,
    report: &mut Report<'_>,
) -> Option<Admitted> {
    let rule = Numbers::of_rule(fields, report);
    let at = fields.get("candidate").map(|node| node.at);
    let candidate = fields.get("candidate").and_then(|node| {
        let written = Fields::read(node, "a candidate", CANDIDATE, report)?;
        if written.is_empty() {
            report.error(
                node.at,
                "a candidate that says nothing",
                "write what is to be tried, such as `{rate: 10/h}`",
            );
            return None;
        }
        Numbers::of_candidate(&written, rule.as_ref(), report)
    });
    let rule = rule?;
    let mut classes = Classes::default();
    let keepers = Keepers { rule: &rule, candidate: candidate.as_ref() };
    let overrides = key.and_then(|key| overrides(fields, key, &keepers, &mut classes, report));
    let limit = rule.limit(&classes, report);
    let candidate = candidate.and_then(|candidate| Some((candidate.limit(&classes, report)?, candidate)));
    let limit = limit?;
    doubt::about_limit(&limit, rule.at, report);
    if limit.allowances.iter().all(Option::is_none) && at.is_none() {
        report.warning(rule.at, "nothing has a limit here: the rule refuses nobody", "leave the rule out");
    }
    if let Some((candidate, numbers)) = &candidate {
        if *candidate == limit {
            report.warning(at.unwrap_or_default(), "the candidate says what its rule says", "leave it out");
        } else {
            doubt::about_limit(candidate, numbers.at, report);
        }
    }
    Some(Admitted { limit, overrides, candidate: candidate.map(|(candidate, _)| Box::new(candidate)) })
}
