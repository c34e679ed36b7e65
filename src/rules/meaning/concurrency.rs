//! Reader of `concurrency` rules: maximum of concurrent work, and expiry of leases.

use std::num::NonZeroU32;
use std::time::Duration;

use super::classes::Classes;
use super::limits::Admitted;
use super::overrides::{Keepers, overrides};
use super::placed::placed;
use super::spans::{Bounds, DAY, SECOND, span};
use crate::limit::{Quota, concurrency};
use crate::rules::concurrency_fields::{CANDIDATE, HOMES, OVERRIDE};
use crate::rules::fields::{Field, Fields};
use crate::rules::problem::ValueProblem;
use crate::rules::source::{Report, Span};
use crate::rules::yaml::YamlNode;
use crate::rules::{Allowance, KeyPart, Limit, amount};

/// The maximum of concurrent leases; `None` is unlimited.
type Max = Option<NonZeroU32>;

/// Reads the limit. Without a valid key, overrides are skipped.
pub(super) fn at_once(
    fields: &Fields<'_>,
    key: Option<&[KeyPart]>,
    report: &mut Report<'_>,
) -> Option<Admitted> {
    let node = fields.required("max", "write `max: 20`, or how much else at once", report);
    let own = node.and_then(|node| report.settle(node.at, read(node)));
    let expires = match fields.get("expires") {
        Some(node) => span(node, "expires", EXPIRES, report),
        None => Some(EXPIRES_DEFAULT),
    };
    let candidate_at = fields.get("candidate").map(|node| node.at);
    // An unreadable shadow rule is an error that leaves the rule out.
    let candidate = fields.get("candidate").and_then(|node| candidate(node, report));
    let mut classes = Classes::default();
    let overrides = key.and_then(|key| overrides(fields, key, &AtOnce, &mut classes, report));
    let limit = |own: Max| limit(own, &classes);
    let candidate = candidate.map(limit).zip(candidate_at);
    let admitted = Admitted { limit: limit(own?), overrides, candidate, expires: Some(expires?) };
    admitted.doubt(node?.at, report);
    Some(admitted)
}

fn candidate(node: &YamlNode, report: &mut Report<'_>) -> Option<Max> {
    let node = placed(node, "a candidate", CANDIDATE, HOMES, report);
    let fields = Fields::read(&node, "a candidate", CANDIDATE, report)?;
    let max = fields.required("max", "write what is to be tried, such as `{max: 10}`", report)?;
    report.settle(max.at, read(max))
}

fn limit(own: Max, classes: &Classes<Max>) -> Limit {
    let all = std::iter::once(&own).chain(classes.iter());
    let quota = |max: NonZeroU32| Quota::Concurrency(concurrency::ConcurrencyQuota::new(max));
    let allowances: Vec<_> = all.map(|max| max.map(quota).map(Allowance::new)).collect();
    Limit { allowances, ..Limit::unlimited() }
}

fn read(node: &YamlNode) -> Result<Max, ValueProblem> {
    match node.as_scalar() {
        Some(UNLIMITED) => Ok(None),
        _ => some(amount::read_from(node, "max", 0)?),
    }
}

fn some(max: u32) -> Result<Max, ValueProblem> {
    let nothing = || {
        let mend = "write at least 1; what is never to pass goes into `deny` with the same `match`";
        ValueProblem::new("`max` is 0: nothing would ever pass", mend)
    };
    NonZeroU32::new(max).map(Some).ok_or_else(nothing)
}

/// Reader of the overrides of a `concurrency` rule. Each number is valid.
struct AtOnce;

impl Keepers for AtOnce {
    type Terms = Max;

    const ENTRY: &'static [Field] = OVERRIDE;
    const COLUMN: &'static str = "max";
    const EXAMPLE: &'static str = "max: 50";
    const COLUMNS: &'static str = "`max`";

    fn of_entry(&self, fields: &Fields<'_>, report: &mut Report<'_>) -> Option<(Span, Max)> {
        let node = fields.required("max", "write `max: 50`, or `max: unlimited`", report)?;
        Some((node.at, report.settle(node.at, read(node))?))
    }

    fn of_cell(&self, text: &str) -> Result<Max, ValueProblem> {
        match text {
            UNLIMITED => Ok(None),
            text => {
                let number = amount::parse(text);
                let in_max = |wrong: ValueProblem| ValueProblem {
                    message: format!("`max`: {}", wrong.message),
                    ..wrong
                };
                some(number.map_err(in_max)?)
            }
        }
    }

    fn check(&self, _terms: &Max) -> Result<(), ValueProblem> {
        Ok(())
    }
}

const UNLIMITED: &str = "unlimited";

/// The usual request timeout of servers.
const EXPIRES_DEFAULT: Duration = Duration::from_secs(60);

/// Below a second, a pause of the process would expire its leases. Longer work renews its lease.
const EXPIRES: Bounds = [(SECOND, "1s"), (7 * DAY, "7day")];
