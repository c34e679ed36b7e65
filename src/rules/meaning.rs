//! Converts rules as written to rules as compiled. An error leaves its rule out.

mod classes;
mod concurrency;
mod conditions;
mod fleet;
mod keys;
mod limits;
mod lists;
mod numbers;
mod override_rows;
mod overrides;
mod priorities;
mod quotas;
mod rate_limit;
mod region;
mod shed;
mod tree;

use serde::Deserialize;

use super::de::{self, Mapping};
use super::file::CommonFields;
use super::source::{Report, Span};
use super::values::{Name, PercentText};
use super::yaml::YamlNode;
use super::{Condition, Guard, KeyPart, RefundOn, Rule, check_name};
use conditions::conditions;
pub(super) use fleet::DefaultScope;
use fleet::fleet;
pub(super) use fleet::shared;
use keys::{key, show_keys};
use limits::Admitted;
pub(super) use lists::{ReadListEntry, listed};
pub(super) use priorities::ReadPriorities;
pub(super) use shed::{ReadShedEntry, UnsettledShed, shed};
pub(super) use tree::descriptors;

pub(super) struct ReadRule {
    /// Its name and span, even if the rule has errors: no other rule may have the name.
    pub(super) name: Option<(Box<str>, Span)>,
    /// The rule, if it has no errors.
    pub(super) rule: Option<Rule>,
    /// Its shadow rule from `candidate`, and its span.
    pub(super) candidate: Option<(Rule, Span)>,
}

pub(super) fn rule(node: &YamlNode, given: DefaultScope, report: &mut Report<'_>) -> ReadRule {
    meant(node, given, limits::own, report)
}

pub(super) fn concurrency_rule(node: &YamlNode, given: DefaultScope, report: &mut Report<'_>) -> ReadRule {
    meant(node, given, concurrency::own, report)
}

/// What a rule of `limits` and one of `concurrency` do not have in common.
struct KindFields<'n> {
    algorithm: &'static str,
    admitted: Option<Admitted>,
    unit: Option<Name<'n>>,
    refund_on: Option<RefundOn>,
    max_over: Option<PercentText<0>>,
}

/// Reads the fields that are not common, given those that are.
type ReadKindFields<'n, F> =
    fn(&F, &CommonFields<'n>, &[KeyPart], Mapping<'n>, &mut Report<'_>) -> KindFields<'n>;

fn meant<'n, F: Deserialize<'n> + AsRef<CommonFields<'n>>>(
    node: &'n YamlNode,
    given: DefaultScope,
    own: ReadKindFields<'n, F>,
    report: &mut Report<'_>,
) -> ReadRule {
    let errors_before = report.errors();
    let mapping = Mapping(node);
    let fields: Option<F> = de::read(node, report).filter(|_| report.errors() == errors_before);
    let rules = fields.and_then(|fields| {
        let common = fields.as_ref();
        let key = key(common, mapping, report)?;
        let own = own(&fields, common, &key, mapping, report);
        rules(common, own, key, mapping, given, report)
    });
    let (rule, candidate) = rules.filter(|_| report.errors() == errors_before).unzip();
    ReadRule { name: name_of(mapping, "name"), rule, candidate: candidate.flatten() }
}

/// Returns the name of an entry, even if the entry has errors.
fn name_of(mapping: Mapping<'_>, field: &str) -> Option<(Box<str>, Span)> {
    let node = mapping.get(field)?;
    let name = node.as_scalar().filter(|name| check_name(name, "").is_ok())?;
    Some((name.into(), node.at))
}

/// Makes the rule, and its shadow rule with its span.
fn rules(
    common: &CommonFields<'_>,
    own: KindFields<'_>,
    key: Vec<KeyPart>,
    mapping: Mapping<'_>,
    given: DefaultScope,
    report: &mut Report<'_>,
) -> Option<(Rule, Option<(Rule, Span)>)> {
    let conditions = conditions_of(mapping, report);
    let fleet = fleet(common, &own, mapping, given, report);
    let show_keys = show_keys(common, &key, report);
    if common.guard == Some(Guard::Shadow) && key.is_empty() {
        let message = "`guard` counts callers, and `key: []` takes all for one";
        report.warning(mapping.at("guard"), message, "leave `guard` out: it will never act");
    }
    let position = report.source().position(mapping.at("name"));
    let Admitted { limit, overrides, candidate, expires } = own.admitted?;
    let limit = match &fleet {
        Some(terms) => shared(limit, terms),
        None => limit,
    };
    let rule = Rule {
        conditions: conditions?,
        key,
        mode: common.mode.unwrap_or_default(),
        help: common.help.map(|help| help.0.into()),
        unit: own.unit.filter(|unit| unit.0 != "requests").map(|unit| unit.0.into()),
        advertise: common.advertise.unwrap_or(true),
        warn_at: common.warn_at.map(|share| share.0),
        refund_on: own.refund_on,
        show_keys,
        guard: common.guard.unwrap_or_default(),
        overrides,
        expires,
        fleet,
        ..Rule::new(common.name.0, position, limit)
    };
    let candidate = candidate.map(|(limit, at)| (rule.candidate(limit, report.source().position(at)), at));
    Some((rule, candidate))
}

/// Reads `match`; without it, all requests match.
fn conditions_of(mapping: Mapping<'_>, report: &mut Report<'_>) -> Option<Vec<Condition>> {
    mapping.get("match").map_or(Some(Vec::new()), |node| conditions(node, report))
}
