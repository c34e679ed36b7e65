//! The limit fields of a rule or shadow rule, and checks of those that belong together.

use std::time::Duration;

use crate::rules::de::Mapping;
use crate::rules::file::{Algorithm, Align, CandidateFields, LimitFields, ONLY, OverValue, RuleFields};
use crate::rules::rate_text::WrittenRate;
use crate::rules::source::{Report, Span};

/// The limit fields of a rule or shadow rule.
#[derive(Clone, Debug)]
pub(super) struct Numbers<'n> {
    /// The rule or shadow rule.
    pub(super) mapping: Mapping<'n>,
    /// The span for problems that concern several fields.
    pub(super) at: Span,
    pub(super) algorithm: Algorithm,
    pub(super) rate: WrittenRate,
    pub(super) over: WrittenOver,
    /// The other fields; the form of `over` here has no meaning.
    pub(super) fields: LimitFields,
}

/// The treatment of requests beyond the quota; shares in thousandths.
#[derive(Clone, Copy, Debug)]
pub(super) enum WrittenOver {
    Refuse,
    Soft(u16, Option<Duration>),
    Elastic(u16),
}

impl<'n> Numbers<'n> {
    pub(super) fn of_rule(
        rule: &RuleFields<'_>,
        mapping: Mapping<'n>,
        report: &mut Report<'_>,
    ) -> Option<Numbers<'n>> {
        let algorithm = rule.algorithm.unwrap_or_default();
        let over = check(&rule.limit, algorithm, mapping, report)?.unwrap_or(WrittenOver::Refuse);
        // Problems of the rule as a whole point to its rate.
        let at = mapping.at("rate");
        Some(Numbers { mapping, at, algorithm, rate: rule.rate, over, fields: rule.limit.clone() })
    }

    /// Reads the fields of a shadow rule. Missing ones are taken from its rule if the algorithm has them.
    pub(super) fn of_candidate(
        candidate: &CandidateFields,
        mapping: Mapping<'n>,
        rule: &Numbers<'_>,
        report: &mut Report<'_>,
    ) -> Option<Numbers<'n>> {
        let algorithm = candidate.algorithm.unwrap_or(rule.algorithm);
        let own_over = check(&candidate.limit, algorithm, mapping, report)?;
        let (own, of_rule) = (candidate.limit.clone(), rule.fields.clone());
        // A burst has no meaning without a limit, so `rate: unlimited` also drops an inherited one.
        let is_limited = candidate.rate != Some(WrittenRate::Unlimited);
        let (align, timezone) = match (own.align, own.timezone) {
            (None, None) => (
                of_rule.align.filter(|_| algorithm.has("align")),
                of_rule.timezone.filter(|_| algorithm.has("timezone")),
            ),
            written => written,
        };
        let fields = LimitFields {
            burst: own.burst.or(of_rule.burst.filter(|_| algorithm.has("burst") && is_limited)),
            queue: own.queue.or(of_rule.queue.filter(|_| algorithm.has("queue"))),
            buckets: own.buckets.or(of_rule.buckets.filter(|_| algorithm.has("buckets"))),
            align,
            timezone,
            over: None,
            refused: own.refused.or(of_rule.refused.filter(|_| algorithm.has("refused"))),
            block: own.block.or(of_rule.block),
            max_debt: own.max_debt.or(of_rule.max_debt.filter(|_| algorithm.has("max_debt"))),
        };
        let over = match own_over {
            Some(over) => over,
            None if algorithm.has("over") => rule.over,
            None => WrittenOver::Refuse,
        };
        let rate = candidate.rate.unwrap_or(rule.rate);
        Some(Numbers { mapping, at: mapping.0.at, algorithm, rate, over, fields })
    }
}

/// Checks fields that belong together. Returns `over`, if it is written; `None` after an error.
fn check(
    fields: &LimitFields,
    algorithm: Algorithm,
    mapping: Mapping<'_>,
    report: &mut Report<'_>,
) -> Option<Option<WrittenOver>> {
    let errors_before = report.errors();
    for (field, only) in ONLY {
        let Some(at) = mapping.key(field).filter(|_| !algorithm.has(field)) else { continue };
        let [others @ .., last] = only else { continue };
        let (last, names) = (last.name(), others.iter().map(|other| format!("`{}`", other.name())));
        let of = match others {
            [] => format!("`{last}`"),
            _ => format!("{} and `{last}`", names.collect::<Vec<_>>().join(", ")),
        };
        let message = format!("`{field}` is a field of {of}, and this is a `{}`", algorithm.name());
        let mend = match others {
            [] => format!("leave `{field}` out, or write `algorithm: {last}`"),
            _ => format!("leave `{field}` out, or write another `algorithm`"),
        };
        report.error(at, message, mend);
    }
    let at = mapping.at("timezone");
    match (fields.align, &fields.timezone) {
        (Some(Align::First), Some(_)) => {
            let message = "windows that open with the first request of a key have no `timezone`";
            report.error(at, message, "leave `timezone` out, or `align: first`");
        }
        (Some(Align::Utc), Some(_)) => {
            let message = "`align: utc` and a `timezone`: only one of them can hold";
            report.error(at, message, "leave one of the two out");
        }
        _ => {}
    }
    let over = fields.over.as_ref().zip(mapping.get("over"));
    let over = over.map(|(over, node)| check_over(over, Mapping(node), report));
    (report.errors() == errors_before).then_some(over.flatten())
}

fn check_over(over: &OverValue, mapping: Mapping<'_>, report: &mut Report<'_>) -> Option<WrittenOver> {
    let OverValue::Mapping(fields) = over else { return Some(WrittenOver::Refuse) };
    match (fields.soft, fields.elastic, fields.lasts) {
        (Some(soft), None, lasts) => {
            return Some(WrittenOver::Soft(soft.0, lasts.map(|lasts| lasts.0)));
        }
        (None, Some(elastic), None) => return Some(WrittenOver::Elastic(elastic.0)),
        (Some(_), Some(_), _) => {
            let message = "`soft` and `elastic`: only one of them can hold";
            report.error(mapping.at("elastic"), message, "keep one of the two");
        }
        (None, Some(_), Some(_)) => {
            report.error(mapping.at("for"), "`for` belongs to `soft`: elastic has no end", "leave `for` out");
        }
        (None, None, _) => {
            let message = "`over` says neither `soft` nor `elastic`";
            report.error(mapping.0.at, message, "write `over: {soft: 10%}`");
        }
    }
    None
}
