//! Reader of `concurrency` rules: maximum of concurrent work, and expiry of leases.

use std::time::Duration;

use super::KindFields;
use super::classes::QuotaClasses;
use super::limits::Admitted;
use super::overrides::{OverrideReader, overrides};
use crate::limit::{Quota, concurrency};
use crate::rules::de::Mapping;
use crate::rules::file::{CommonFields, ConcurrencyFields, ConcurrencyOverrideFields};
use crate::rules::problem::ValueProblem;
use crate::rules::source::Report;
use crate::rules::values::Max;
use crate::rules::{Allowance, KeyPart, Limit};

pub(super) fn own<'n>(
    fields: &ConcurrencyFields<'n>,
    common: &CommonFields<'n>,
    key: &[KeyPart],
    mapping: Mapping<'n>,
    report: &mut Report<'_>,
) -> KindFields<'n> {
    let mut classes = QuotaClasses::default();
    let overrides = overrides(common, mapping, key, &PermitOverrides, &mut classes, report);
    let limit = |own: Max| limit(own, &classes);
    let candidate =
        fields.candidate.as_ref().map(|candidate| (limit(candidate.max), mapping.at("candidate")));
    let expires = fields.expires.map_or(EXPIRES_DEFAULT, |expires| expires.0);
    let admitted = Admitted { limit: limit(fields.max), overrides, candidate, expires: Some(expires) };
    admitted.doubt(mapping.at("max"), report);
    KindFields {
        algorithm: "concurrency",
        admitted: Some(admitted),
        unit: None,
        refund_on: None,
        max_over: None,
    }
}

fn limit(own: Max, classes: &QuotaClasses<Max>) -> Limit {
    let all = std::iter::once(&own).chain(classes.iter());
    let quota = |max| Allowance::new(Quota::Concurrency(concurrency::ConcurrencyQuota::new(max)));
    Limit { allowances: all.map(|max| max.0.map(quota)).collect(), ..Limit::unlimited() }
}

/// Reader of the overrides of a `concurrency` rule. Each number is valid.
struct PermitOverrides;

impl OverrideReader for PermitOverrides {
    type Entry = ConcurrencyOverrideFields;
    type Terms = Max;

    const COLUMN: &'static str = "max";
    const COLUMNS: &'static str = "`max`";

    fn of_entry(&self, fields: &Self::Entry, _: Mapping<'_>, _: &mut Report<'_>) -> Option<Max> {
        Some(fields.max)
    }

    fn of_cell(&self, text: &str) -> Result<Max, ValueProblem> {
        Max::of_cell(text)
    }

    fn check(&self, _terms: &Max) -> Result<(), ValueProblem> {
        Ok(())
    }
}

/// The usual request timeout of servers.
const EXPIRES_DEFAULT: Duration = Duration::from_secs(60);
