//! From the rule as written to the rule as meant. Every error of a rule is noted; one is enough to leave it out.

use super::fields::{Field, Fields, boolean, check_name, choice, list, text};
use super::problem::{Wrong, shown};
use super::source::{Place, Report};
use super::written::{CONDITION, KEY_PART, RULE};
use super::yaml::{Node, Value};
use super::{Condition, Mode, Pattern, Rule, amount, doubt, rate_text};
use crate::limit::Rate;
use crate::limit::token_bucket::Quota;

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
    let quota = quota(fields, report);
    let mode = fields.get("mode").map_or(Some(Mode::default()), |node| choice(node, "mode", MODES, report));
    let help = fields.get("help").and_then(|node| help(node, report));
    only_the_default(fields, report);
    let (name, at) = name.clone()?;
    let position = report.source().position(at);
    let rule = Rule { name, position, conditions: conditions?, key: key?, quota: quota?, mode: mode?, help };
    doubt::about_key(&rule, fields.get("key").map_or(at, |node| node.at), report);
    Some(rule)
}

fn name(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<(Box<str>, Place)> {
    let node = fields.required("name", "write `name: …`: it stands in answers, logs and metrics", report)?;
    let name = text(node, "name", report)?;
    report.settle(node.at, check_name(name, "a rule"))?;
    Some((name.into(), node.at))
}

fn conditions(node: &Node, report: &mut Report<'_>) -> Option<Vec<Condition>> {
    let Value::Map(pairs) = &node.value else {
        let message = format!("`match` is a mapping, not {}", node.kind());
        report.error(node.at, message, "write `match: {attribute: value}`, or leave it out to match all");
        return None;
    };
    if pairs.len() > CONDITIONS_MAX {
        let message = format!("`match` has {} attributes", pairs.len());
        report.error(node.at, message, format!("write at most {CONDITIONS_MAX}: each costs every request"));
        return None;
    }
    let mut conditions: Vec<Condition> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let Some(attribute) = attribute(key, "match", report) else { continue };
        if conditions.iter().any(|known| *known.attribute == *attribute) {
            let message = format!("{} is written twice in `match`", shown(attribute));
            report.error(key.at, message, "write one list: any of its values will do");
            continue;
        }
        let any_of = patterns(attribute, value, report).unwrap_or_default();
        conditions.push(Condition { attribute: attribute.into(), any_of });
    }
    Some(conditions)
}

fn patterns(attribute: &str, node: &Node, report: &mut Report<'_>) -> Option<Vec<Pattern>> {
    let items = match &node.value {
        Value::List(items) => items.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if items.is_empty() {
        let message = format!("{} has an empty list: the rule could never match", shown(attribute));
        report.error(node.at, message, "write at least one value, or `\"*\"` for any");
        return None;
    }
    if items.len() > VALUES_MAX {
        let message = format!("{} has {} values", shown(attribute), items.len());
        report.error(node.at, message, format!("write at most {VALUES_MAX}, or a pattern with `*`"));
        return None;
    }
    let patterns: Vec<_> = items.iter().filter_map(|item| pattern(attribute, item, report)).collect();
    Some(patterns)
}

fn pattern(attribute: &str, node: &Node, report: &mut Report<'_>) -> Option<Pattern> {
    if let Value::Map(_) = node.value {
        // Only to say which of its fields is not there yet, or never will be.
        if Fields::read(node, "a value of `match`", CONDITION, report)?.is_empty() {
            report.error(
                node.at,
                format!("{} has no value", shown(attribute)),
                "write a text or a list of texts",
            );
        }
        return None;
    }
    let text = text(node, attribute, report)?;
    if text.len() > VALUE_BYTES_MAX {
        let message = format!("a value of {} has {} bytes", shown(attribute), text.len());
        report.error(node.at, message, format!("write at most {VALUE_BYTES_MAX}: no attribute is longer"));
        return None;
    }
    if text.is_empty() {
        let message = format!("an empty value of {} never matches", shown(attribute));
        report.warning(node.at, message, "an empty attribute counts as absent: leave this value out");
    }
    Some(Pattern::parse(text))
}

fn key(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Vec<Box<str>>> {
    let mend = "write `key: [user]` to count each user apart, `key: []` for one counter";
    let node = fields.required("key", mend, report)?;
    let mend = match node.as_scalar() {
        Some(name) => format!("write `key: [{name}]`"),
        None => mend.to_owned(),
    };
    let items = list(node, "key", &mend, report)?;
    if items.len() > KEY_ATTRIBUTES_MAX {
        let message = format!("`key` has {} attributes", items.len());
        report.error(node.at, message, format!("write at most {KEY_ATTRIBUTES_MAX}"));
        return None;
    }
    let mut key: Vec<Box<str>> = Vec::with_capacity(items.len());
    for item in items {
        if let Value::Map(_) = item.value {
            if Fields::read(item, "an entry of `key`", KEY_PART, report)?.is_empty() {
                report.error(item.at, "an entry of `key` is empty", "write the name of an attribute");
            }
            continue;
        }
        let Some(attribute) = attribute(item, "key", report) else { continue };
        if key.iter().any(|known| **known == *attribute) {
            report.error(
                item.at,
                format!("{} is written twice in `key`", shown(attribute)),
                "keep one of the two",
            );
            continue;
        }
        key.push(attribute.into());
    }
    Some(key)
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

fn quota(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Quota> {
    let node = fields.required("rate", "write `rate: 100/s`, or per min, h, day, week, month", report);
    let rate = node.and_then(|node| rate(node, report));
    let burst = match fields.get("burst") {
        Some(node) => Some((node.at, report.settle(node.at, amount::read(node, "burst"))?)),
        None => None,
    };
    let rate = rate?;
    let (at, burst) = burst.unwrap_or((node?.at, rate.count()));
    let quota = Quota::new(rate, burst).map_err(|error| {
        Wrong::new(format!("{error}: burst {burst} at {rate}"), "write a smaller `burst`, or a faster rate")
    });
    let quota = report.settle(at, quota)?;
    doubt::about_quota(&quota, node?.at, report);
    Some(quota)
}

fn rate(node: &Node, report: &mut Report<'_>) -> Option<Rate> {
    let text = text(node, "rate", report)?;
    report.settle(node.at, rate_text::parse(text))
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
    fields.get("algorithm").and_then(|node| choice(node, "algorithm", ALGORITHMS, report));
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

const ALGORITHMS: &[(Field, ())] = &[
    (Field::built("token_bucket"), ()),
    (Field::reserved("leaky_bucket"), ()),
    (Field::reserved("fixed_window"), ()),
    (Field::reserved("sliding_log"), ()),
    (Field::reserved("sliding_window"), ()),
];

/// Each is looked at for every request that comes near the rule.
const CONDITIONS_MAX: usize = 32;

/// Longer lists belong into a pattern, or into an attribute that the application adds.
const VALUES_MAX: usize = 1_000;

/// As many as one descriptor can hold.
const KEY_ATTRIBUTES_MAX: usize = 16;

/// The longest value that the socket carries.
const VALUE_BYTES_MAX: usize = 1_024;

/// It goes into every refusal, of which many must fit a frame.
const HELP_BYTES_MAX: usize = 512;
