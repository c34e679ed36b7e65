//! From the rule as written to the rule as meant. Every error of a rule is noted; one is enough to leave it out.

mod conditions;
mod keys;
mod quotas;
mod rate_limit;
mod tree;

use super::fields::{Field, Fields, boolean, check_name, choice, text};
use super::problem::shown;
use super::source::{Place, Report};
use super::written::RULE;
use super::yaml::Node;
use super::{Mode, Rule, doubt};
use conditions::conditions;
use keys::key;
use quotas::limit;
pub(super) use tree::descriptors;

/// Checks the defaults of a file. Nothing can be set by them yet but what holds anyway.
pub(super) fn defaults(fields: &Fields<'_>, report: &mut Report<'_>) {
    fields.get("scope").and_then(|node| scope(node, report));
}

/// The name of a domain.
pub(super) fn domain<'n>(node: &Node, name: &'n str, report: &mut Report<'_>) -> Option<&'n str> {
    report.settle(node.at, check_name(name, "a domain"))?;
    Some(name)
}

/// What was read of one entry of `limits`.
pub(super) struct Meant {
    /// Its name and where it stands, also when something else is wrong: another rule may not take it.
    pub(super) name: Option<(Box<str>, Place)>,
    /// The rule, if nothing is wrong with it.
    pub(super) rule: Option<Rule>,
}

/// Reads one entry of `limits`.
pub(super) fn rule(node: &Node, report: &mut Report<'_>) -> Meant {
    let errors_before = report.errors();
    let Some(fields) = Fields::read(node, "a rule", RULE, report) else {
        return Meant { name: None, rule: None };
    };
    let name = name(&fields, report);
    let rule = the_rest(&name, &fields, report).filter(|_| report.errors() == errors_before);
    Meant { name, rule }
}

fn the_rest(name: &Option<(Box<str>, Place)>, fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Rule> {
    let conditions = fields.get("match").map_or(Some(Vec::new()), |node| conditions(node, report));
    let key = key(fields, report);
    let limit = limit(fields, report);
    let mode = fields.get("mode").map_or(Some(Mode::default()), |node| choice(node, "mode", MODES, report));
    let help = fields.get("help").and_then(|node| help(node, report));
    only_the_default(fields, report);
    let (name, at) = name.clone()?;
    let position = report.source().position(at);
    let rule = Rule {
        name,
        conditions: conditions?,
        key: key?,
        mode: mode?,
        help,
        ..Rule::new("", position, limit?)
    };
    doubt::about_key(&rule, fields.get("key").map_or(at, |node| node.at), report);
    Some(rule)
}

fn name(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<(Box<str>, Place)> {
    let node = fields.required("name", "write `name: …`: it stands in answers, logs and metrics", report)?;
    let name = text(node, "name", report)?;
    report.settle(node.at, check_name(name, "a rule"))?;
    Some((name.into(), node.at))
}

fn attribute<'n>(node: &'n Node, field: &str, report: &mut Report<'_>) -> Option<&'n str> {
    let Some(name) = node.as_scalar() else {
        let message = format!("an attribute of `{field}` is a name, not {}", node.kind());
        report.error(node.at, message, "write the name of an attribute, such as `user`");
        return None;
    };
    report.settle(node.at, check_name(name, "an attribute"))?;
    Some(name)
}

fn help(node: &Node, report: &mut Report<'_>) -> Option<Box<str>> {
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

/// Fields that are known, and can only say yet what holds anyway.
fn only_the_default(fields: &Fields<'_>, report: &mut Report<'_>) {
    fields.get("scope").and_then(|node| scope(node, report));
    if let Some(node) = fields.get("unit")
        && text(node, "unit", report).is_some_and(|unit| unit != "requests")
    {
        let message = format!("`unit: {}` is not supported yet", node.as_scalar().unwrap_or_default());
        report.error(node.at, message, "write `requests`, or leave `unit` out");
    }
    if let Some(node) = fields.get("advertise")
        && boolean(node, "advertise", report) == Some(false)
    {
        report.error(node.at, "`advertise: false` is not supported yet", "leave `advertise` out");
    }
}

fn scope(node: &Node, report: &mut Report<'_>) -> Option<()> {
    choice(node, "scope", &[(Field::built("host"), ()), (Field::reserved("fleet"), ())], report)
}

pub(crate) const MODES: &[(Field, Mode)] = &[
    (Field::built("enforce"), Mode::Enforce),
    (Field::built("shadow"), Mode::Shadow),
    (Field::built("disabled"), Mode::Disabled),
];

/// It goes into every refusal, of which many must fit a frame.
const HELP_BYTES_MAX: usize = 512;
