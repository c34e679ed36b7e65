//! Converts rules as written to rules as compiled. All errors of a rule are reported; one leaves it out.

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
mod placed;
mod priorities;
mod quotas;
mod rate_limit;
mod region;
mod shed;
mod spans;
mod tree;

use super::fields::{Field, Fields, boolean, check_name, choice, list, text};
use super::problem::shown;
use super::source::{Report, Span};
use super::written::RULE;
use super::yaml::YamlNode;
use super::{Guard, KeyPart, Mode, RefundOn, Rule, concurrency_fields, percent};
use concurrency::at_once;
use concurrency_fields::CONCURRENCY;
use conditions::conditions;
pub(super) use fleet::DefaultScope;
use fleet::fleet;
pub(super) use fleet::shared;
use keys::key;
use limits::{Admitted, admitted};
pub(super) use lists::{MeantListed, listed};
use placed::{FieldHomes, placed};
pub(super) use priorities::MeantPriorities;
pub(super) use shed::{MeantShed, UnsettledShed, shed};
pub(super) use tree::descriptors;

pub(super) fn domain<'n>(node: &YamlNode, name: &'n str, report: &mut Report<'_>) -> Option<&'n str> {
    report.settle(node.at, check_name(name, "a domain"))?;
    Some(name)
}

pub(super) struct Meant {
    /// Its name and span, even if the rule has errors: no other rule may have the name.
    pub(super) name: Option<(Box<str>, Span)>,
    /// The rule, if it has no errors.
    pub(super) rule: Option<Rule>,
    /// Its shadow rule from `candidate`, and its span.
    pub(super) candidate: Option<(Rule, Span)>,
}

pub(super) fn rule(node: &YamlNode, given: DefaultScope, report: &mut Report<'_>) -> Meant {
    let node = placed(node, "a rule", RULE, RULE_HOMES, report);
    meant(&node, "a rule", RULE, admitted, given, report)
}

pub(super) fn concurrency_rule(node: &YamlNode, given: DefaultScope, report: &mut Report<'_>) -> Meant {
    let what = "a concurrency rule";
    let node = placed(node, what, CONCURRENCY, concurrency_fields::HOMES, report);
    meant(&node, what, CONCURRENCY, at_once, given, report)
}

/// Reads the limit of a rule.
type Admit = fn(&Fields<'_>, Option<&[KeyPart]>, &mut Report<'_>) -> Option<Admitted>;

fn meant(
    node: &YamlNode,
    what: &'static str,
    known: &[Field],
    admit: Admit,
    given: DefaultScope,
    report: &mut Report<'_>,
) -> Meant {
    let errors_before = report.errors();
    let Some(fields) = Fields::read(node, what, known, report) else {
        return Meant { name: None, rule: None, candidate: None };
    };
    let name = name(&fields, report);
    let rules = the_rest(&name, &fields, admit, given, report).filter(|_| report.errors() == errors_before);
    let (rule, candidate) = rules.unzip();
    Meant { name, rule, candidate: candidate.flatten() }
}

fn the_rest(
    name: &Option<(Box<str>, Span)>,
    fields: &Fields<'_>,
    admit: Admit,
    given: DefaultScope,
    report: &mut Report<'_>,
) -> Option<(Rule, Option<(Rule, Span)>)> {
    let conditions = fields.get("match").map_or(Some(Vec::new()), |node| conditions(node, report));
    let key = key(fields, report);
    let admitted = admit(fields, key.as_deref(), report);
    let mode = mode(fields, report);
    let help = fields.get("help").and_then(|node| help(node, report));
    let place = name.as_ref().map_or(fields.at(), |(_, at)| *at);
    let fleet = fleet(fields, given, place, admitted.as_ref(), report);
    let unit = fields.get("unit").and_then(|node| unit(node, report));
    let advertise = fields.get("advertise").and_then(|node| boolean(node, "advertise", report));
    let warn_at = fields
        .get("warn_at")
        .and_then(|node| report.settle(node.at, percent::read(node, "warn_at", WARN_AT_MAX)));
    let refund_on = fields.get("refund_on").and_then(|node| choice(node, "refund_on", REFUND_ON, report));
    let show_keys = fields.get("show_keys").and_then(|node| show_keys(node, key.as_deref(), report));
    let guard = fields.get("guard").and_then(|node| {
        let guard = choice(node, "guard", GUARDS, report)?;
        if guard == Guard::Shadow && key.as_ref().is_some_and(Vec::is_empty) {
            let message = "`guard` counts callers, and `key: []` takes all for one";
            report.warning(node.at, message, "leave `guard` out: it will never act");
        }
        Some(guard)
    });
    let (name, at) = name.clone()?;
    let position = report.source().position(at);
    let Admitted { limit, overrides, candidate, expires } = admitted?;
    let limit = match &fleet {
        Some(terms) => shared(limit, terms),
        None => limit,
    };
    let rule = Rule {
        name,
        conditions: conditions?,
        key: key?,
        mode: mode?,
        help,
        unit,
        advertise: advertise.unwrap_or(true),
        warn_at,
        refund_on,
        show_keys: show_keys.unwrap_or_default(),
        guard: guard.unwrap_or_default(),
        overrides,
        expires,
        fleet,
        ..Rule::new("", position, limit)
    };
    let candidate = candidate.map(|(limit, at)| (rule.candidate(limit, report.source().position(at)), at));
    Some((rule, candidate))
}

fn name(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<(Box<str>, Span)> {
    let node = fields.required("name", "write `name: …`: it stands in answers, logs and metrics", report)?;
    let name = text(node, "name", report)?;
    report.settle(node.at, check_name(name, "a rule"))?;
    Some((name.into(), node.at))
}

fn mode(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Mode> {
    fields.get("mode").map_or(Some(Mode::Enforce), |node| choice(node, "mode", MODES, report))
}

fn attribute<'n>(node: &'n YamlNode, field: &str, report: &mut Report<'_>) -> Option<&'n str> {
    let Some(name) = node.as_scalar() else {
        let message = format!("an attribute of `{field}` is a name, not {}", node.kind());
        report.error(node.at, message, "write the name of an attribute, such as `user`");
        return None;
    };
    report.settle(node.at, check_name(name, "an attribute"))?;
    Some(name)
}

fn help(node: &YamlNode, report: &mut Report<'_>) -> Option<Box<str>> {
    let help = text(node, "help", report)?;
    if help.len() > HELP_BYTES_MAX {
        let message = format!("`help` has {} bytes", help.len());
        report.error(
            node.at,
            message,
            format!("write at most {HELP_BYTES_MAX}: it is sent with every refusal"),
        );
        return None;
    }
    if help.is_empty() || help.contains(char::is_control) {
        let message = format!("`help` is one line of text, not {}", shown(help));
        report.error(node.at, message, "write a link or a sentence, or leave the field out");
        return None;
    }
    Some(help.into())
}

/// Reads the unit; `None` for the default.
fn unit(node: &YamlNode, report: &mut Report<'_>) -> Option<Box<str>> {
    let unit = text(node, "unit", report)?;
    report.settle(node.at, check_name(unit, "a unit"))?;
    (unit != "requests").then(|| unit.into())
}

fn show_keys(node: &YamlNode, key: Option<&[KeyPart]>, report: &mut Report<'_>) -> Option<Vec<Box<str>>> {
    let items = list(node, "show_keys", "write attributes of `key`: `show_keys: [user]`", report)?;
    let mut shown_keys: Vec<Box<str>> = Vec::with_capacity(items.len());
    for item in items {
        let Some(name) = attribute(item, "show_keys", report) else { continue };
        if key.is_some_and(|key| key.iter().all(|part| *part.attribute != *name)) {
            let message = format!("{} is not in `key`", shown(name));
            report.error(item.at, message, "write attributes of `key`, whose values operators may then see");
        } else if shown_keys.iter().any(|known| **known == *name) {
            report.error(
                item.at,
                format!("{} is written twice in `show_keys`", shown(name)),
                "keep one of the two",
            );
        } else {
            shown_keys.push(name.into());
        }
    }
    Some(shown_keys)
}

pub(crate) const MODES: &[(Field, Mode)] = &[
    (Field::built("enforce"), Mode::Enforce),
    (Field::built("shadow"), Mode::Shadow),
    (Field::built("disabled"), Mode::Disabled),
];

const GUARDS: &[(Field, Guard)] =
    &[(Field::built("tell"), Guard::Tell), (Field::built("shadow"), Guard::Shadow)];

const REFUND_ON: &[(Field, RefundOn)] = &[(Field::built("ok"), RefundOn::Ok)];

/// Where fields belong that a rate rule does not have.
const RULE_HOMES: FieldHomes = &[(&["max", "expires"], "in a rule of `concurrency`"), fleet::HOME];

/// It is part of every refusal, of which many must fit into a frame.
const HELP_BYTES_MAX: usize = 512;

/// All of the limit, in thousandths.
const WARN_AT_MAX: u16 = 1_000;
