//! Reader of the limits of rules of `limits` and of `concurrency`, with their overrides and shadow rules.

use std::sync::Arc;
use std::time::Duration;

use super::overrides::OverridesReader;
use crate::rules::de::FileNode;
use crate::rules::file::{
    Algorithm, Align, CandidateFields, CommonFields, ConcurrencyFields, LimitFields, ONLY, OverValue,
    RuleFields,
};
use crate::rules::rate_text::WrittenRate;
use crate::rules::values::Max;
use crate::rules::{KeyPart, Limit, Overrides};

pub(super) struct Admitted {
    pub(super) limit: Limit,
    pub(super) overrides: Option<Arc<Overrides>>,
    /// The limit of the shadow rule.
    pub(super) candidate: Option<Limit>,
    /// The expiry of leases; set if and only if the rule limits concurrency.
    pub(super) expires: Option<Duration>,
}

/// Reads the numbers of a rule of `limits`.
pub(super) fn admitted(fields: &RuleFields<'_>, key: &[KeyPart], mapping: FileNode<'_>) -> Option<Admitted> {
    let rule = Numbers::of_rule(fields, mapping)?;
    let candidate = match (&fields.candidate, mapping.get("candidate")) {
        (Some(candidate), Some(mapping)) => {
            if mapping.pairs().len() == 0 {
                let help = "write the numbers to try, such as `{rate: 10/h}`";
                mapping.error("an empty candidate", help);
                return None;
            }
            Some(Numbers::of_candidate(candidate, mapping, &rule)?)
        }
        _ => None,
    };
    Admitted::new(&rule, candidate.as_ref(), &fields.common, key)
}

impl Admitted {
    /// Makes the limits of a rule, its shadow rule and its overrides. Warns of a rule without limits, or of a shadow rule
    /// equal to its rule.
    fn new(
        rule: &Numbers<'_>,
        candidate: Option<&Numbers<'_>>,
        common: &CommonFields<'_>,
        key: &[KeyPart],
    ) -> Option<Admitted> {
        let keepers: Vec<&Numbers<'_>> = std::iter::once(rule).chain(candidate).collect();
        let mut reader = OverridesReader::new(key, &keepers);
        let overrides = reader.read(common, rule.mapping);
        let limit = rule.limit(&reader);
        let candidate = candidate.and_then(|candidate| candidate.limit(&reader));
        let limit = limit?;
        match &candidate {
            Some(candidate) if *candidate == limit => {
                rule.mapping.warn_at("candidate", "the candidate equals its rule", "leave it out");
            }
            None if limit.allowances.iter().all(Option::is_none) => {
                let message = "nothing has a limit here: the rule refuses no request";
                rule.whole.warn(message, "leave the rule out");
            }
            _ => {}
        }
        Some(Admitted { limit, overrides, candidate, expires: None })
    }
}

/// The limit fields of a rule or shadow rule.
#[derive(Clone, Debug)]
pub(super) struct Numbers<'n> {
    pub(super) mapping: FileNode<'n>,
    /// The node for problems that concern several fields.
    pub(super) whole: FileNode<'n>,
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
    /// Makes the numbers of a rule of `concurrency` or of its shadow rule.
    fn of_max(max: Max, mapping: FileNode<'n>) -> Numbers<'n> {
        let (algorithm, over) = (Algorithm::Concurrency, WrittenOver::Refuse);
        let whole = mapping.field("max");
        Numbers { mapping, whole, algorithm, rate: max.0, over, fields: LimitFields::default() }
    }

    fn of_rule(rule: &RuleFields<'_>, mapping: FileNode<'n>) -> Option<Numbers<'n>> {
        let algorithm = rule.algorithm.unwrap_or_default();
        let over = check(&rule.limit, algorithm, mapping)?.unwrap_or(WrittenOver::Refuse);
        // Problems of the rule as a whole point to its rate.
        let whole = mapping.field("rate");
        Some(Numbers { mapping, whole, algorithm, rate: rule.rate, over, fields: rule.limit.clone() })
    }

    /// Reads the fields of a shadow rule. Missing ones are taken from its rule if the algorithm has them.
    fn of_candidate(
        candidate: &CandidateFields,
        mapping: FileNode<'n>,
        rule: &Numbers<'_>,
    ) -> Option<Numbers<'n>> {
        let algorithm = candidate.algorithm.unwrap_or(rule.algorithm);
        let own_over = check(&candidate.limit, algorithm, mapping)?;
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
        Some(Numbers { mapping, whole: mapping, algorithm, rate, over, fields })
    }
}

/// Checks fields that belong together. Returns `over`, if it is written; `None` after an error.
fn check(fields: &LimitFields, algorithm: Algorithm, mapping: FileNode<'_>) -> Option<Option<WrittenOver>> {
    let errors_before = mapping.report.errors();
    for (field, only) in ONLY {
        let Some(at) = mapping.key(field).filter(|_| !algorithm.has(field)) else { continue };
        let [others @ .., last] = only else { continue };
        let names = others.iter().map(|other| format!("`{other}`"));
        let of = match others {
            [] => format!("`{last}`"),
            _ => format!("{} and `{last}`", names.collect::<Vec<_>>().join(", ")),
        };
        let message = format!("`{field}` is a field of {of}, and this is a `{algorithm}`");
        let help = match others {
            [] => format!("leave `{field}` out, or write `algorithm: {last}`"),
            _ => format!("leave `{field}` out, or write another `algorithm`"),
        };
        at.error(message, help);
    }
    let at = mapping.field("timezone");
    match (fields.align, &fields.timezone) {
        (Some(Align::First), Some(_)) => {
            let message = "windows that open with the first request of a key have no `timezone`";
            at.error(message, "leave `timezone` out, or `align: first`");
        }
        (Some(Align::Utc), Some(_)) => {
            let message = "`align: utc` and a `timezone`: only one of them can hold";
            at.error(message, "leave one of the two out");
        }
        _ => {}
    }
    let over = fields.over.as_ref().zip(mapping.get("over"));
    let over = over.map(|(over, node)| check_over(over, node));
    (mapping.report.errors() == errors_before).then_some(over.flatten())
}

fn check_over(over: &OverValue, mapping: FileNode<'_>) -> Option<WrittenOver> {
    let OverValue::Mapping(fields) = over else { return Some(WrittenOver::Refuse) };
    match (fields.soft, fields.elastic, fields.lasts) {
        (Some(soft), None, lasts) => {
            return Some(WrittenOver::Soft(soft.0, lasts.map(|lasts| lasts.0)));
        }
        (None, Some(elastic), None) => return Some(WrittenOver::Elastic(elastic.0)),
        (Some(_), Some(_), _) => {
            let message = "`soft` and `elastic`: only one of them can hold";
            mapping.error_at("elastic", message, "keep one of the two");
        }
        (None, Some(_), Some(_)) => {
            mapping.error_at("for", "`for` belongs to `soft`: elastic has no end", "leave `for` out");
        }
        (None, None, _) => {
            let message = "`over` has neither `soft` nor `elastic`";
            mapping.error(message, "write `over: {soft: 10%}`");
        }
    }
    None
}

/// Reads the numbers of a rule of `concurrency`.
pub(super) fn admitted_work(
    fields: &ConcurrencyFields<'_>,
    key: &[KeyPart],
    mapping: FileNode<'_>,
) -> Option<Admitted> {
    let candidate = fields.candidate.as_ref();
    let candidate = candidate.map(|own| Numbers::of_max(own.max, mapping.field("candidate")));
    let rule = Numbers::of_max(fields.max, mapping);
    let expires = Some(fields.expires.map_or(EXPIRES_DEFAULT, |expires| expires.0));
    Some(Admitted { expires, ..Admitted::new(&rule, candidate.as_ref(), &fields.common, key)? })
}

/// The usual request timeout of servers.
const EXPIRES_DEFAULT: Duration = Duration::from_secs(60);
