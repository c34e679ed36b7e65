//! Reader of `descriptors`: nodes and their limits. Reports fields that have no effect here.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::fleet::{DefaultScope, of_descriptor, shared};
use crate::limit::Quota;
use crate::limit::fixed_window::{FixedWindowQuota, WindowAlign, WindowPeriod};
use crate::rules::de::{FileNode, suggest};
use crate::rules::file::{DescriptorFields, RateLimitFields};
use crate::rules::problem::shown;
use crate::rules::source::{Report, Span};
use crate::rules::tree::{Branch, NodeLimit};
use crate::rules::values::{Text, VALUE_BYTES_MAX};
use crate::rules::yaml::Value;
use crate::rules::{Allowance, Limit, Mode, Position, RefusedCost, Rule, check_name};

/// Reads the descriptors of a file.
pub(in crate::rules) fn descriptors(file: FileNode<'_>, given: DefaultScope) -> Vec<Branch> {
    let mut reader = TreeReader { given, depth: 0, idle: BTreeMap::new() };
    let branches = reader.level(file);
    reader.report_idle();
    branches
}

struct TreeReader<'n> {
    given: DefaultScope,
    depth: usize,
    /// Fields without effect: the first of each, and the number of uses.
    idle: BTreeMap<&'static str, (FileNode<'n>, usize)>,
}

struct TreeEntry<'n> {
    key: &'n str,
    value: Option<&'n str>,
    node: FileNode<'n>,
}

impl<'n> TreeReader<'n> {
    /// Reads the nodes below this one.
    fn level(&mut self, above: FileNode<'n>) -> Vec<Branch> {
        // The first of each text.
        let mut known: HashMap<Cow<'_, str>, (Span, &str)> = HashMap::new();
        let mut branches = Vec::new();
        for mapping in above.items("descriptors") {
            let fields: Option<DescriptorFields<'_>> = mapping.read();
            let entry = fields.as_ref().and_then(|fields| TreeEntry::new(fields, mapping));
            if let Some(entry) = &entry {
                match known.entry(entry.text()) {
                    Entry::Occupied(first) => entry.report_second(*first.get()),
                    Entry::Vacant(free) => drop(free.insert((entry.node.at, entry.key))),
                }
            }
            branches.extend(self.node(entry.as_ref(), fields.as_ref(), mapping));
        }
        branches
    }

    /// Reads a node. Its subtree is read even after errors.
    fn node(
        &mut self,
        entry: Option<&TreeEntry<'_>>,
        fields: Option<&DescriptorFields<'_>>,
        mapping: FileNode<'n>,
    ) -> Option<Branch> {
        let text = entry.map_or("".into(), TreeEntry::text);
        let share = fields.is_some_and(|fields| fields.share_threshold == Some(true));
        if share && !text.contains('*') {
            let message = format!("`share_threshold` needs a `*`, and {} has none", shown(&text));
            let help = "write a pattern, such as `value: \"files/*\"`, or leave `share_threshold` out";
            mapping.error_at("share_threshold", message, help);
        }
        let limit = fields.and_then(|fields| self.limit(fields, mapping));
        if let Some(entry) = entry {
            self.doubt(entry);
        }
        if let Some(fields) = fields {
            self.notice_idle(fields, mapping);
        }
        self.depth += 1;
        let branches = self.level(mapping);
        self.depth -= 1;
        let TreeEntry { key, node, .. } = *entry?;
        Some(Branch { key: key.into(), text: text.into(), position: node.position(), share, limit, branches })
    }

    fn limit(&self, fields: &DescriptorFields<'_>, mapping: FileNode<'_>) -> Option<NodeLimit> {
        let [shadow, quota] = [fields.shadow_mode, fields.quota_mode].map(Option::unwrap_or_default);
        let Some((limit, node)) = fields.rate_limit.as_ref().zip(mapping.get("rate_limit")) else {
            for (field, _) in
                [("shadow_mode", shadow), ("quota_mode", quota)].into_iter().filter(|(_, is)| *is)
            {
                let message = format!("`{field}` has no effect on a descriptor without `rate_limit`");
                let help = "nodes do not inherit it: write it beside each `rate_limit` that it is meant for";
                mapping.warn_at(field, message, help);
            }
            return None;
        };
        let name = limit.name.map(|name| name.0).filter(|name| !name.is_empty());
        let own = rate_limit(limit, node);
        let replaces = replaces(limit, name, node.report);
        let own = own?;
        let fleet = of_descriptor(self.given, &own);
        let own = match &fleet {
            Some(settings) => shared(own, settings),
            None => own,
        };
        let position = mapping.field("key").position();
        let mode = if shadow || quota { Mode::Shadow } else { Mode::Enforce };
        let rule = Rule { mode, is_quota: quota && !shadow, fleet, ..Rule::new("", position, own) };
        Some(NodeLimit { rule, name: name.map(Into::into), replaces })
    }

    /// Warns of a node that no request can reach.
    fn doubt(&self, entry: &TreeEntry<'_>) {
        if self.depth == ENTRIES_MAX {
            let message = format!("no request reaches this: a descriptor has at most {ENTRIES_MAX} entries");
            entry.node.warn(message, "nest less");
        }
        let text = entry.text();
        if let Some(star) = text.find('*') {
            if star + 1 < text.len() {
                let message = format!("the pattern {} has a star that is not its end", shown(&text));
                let help =
                    format!("here it matches; the service takes such a star as it is before {STARS_SINCE}");
                entry.node.warn(message, help);
            }
            return;
        }
        // All possible ends of a request's key.
        let mut keys = text.match_indices('_').filter_map(|(end, _)| text.get(..end));
        let longest = entry.value.map_or(0, str::len);
        if longest > VALUE_BYTES_MAX {
            let message = format!("no request has this value: it has {longest} bytes");
            let help = format!("write at most {VALUE_BYTES_MAX}, or a pattern with `*`");
            entry.node.warn(message, help);
        } else if let Err(wrong) = check_name(entry.key, "an entry")
            && keys.all(|key| check_name(key, "an entry").is_err())
        {
            let message = format!("no request has this key: {}", wrong.message);
            entry.node.warn(message, wrong.help);
        }
    }

    fn notice_idle(&mut self, fields: &DescriptorFields<'_>, mapping: FileNode<'n>) {
        let are_set = [
            fields.detailed_metric == Some(true),
            fields.value_to_metric == Some(true),
            fields.metadata.is_some(),
        ];
        for ((name, _), _) in IDLE.iter().zip(are_set).filter(|(_, is_set)| *is_set) {
            self.idle.entry(name).or_insert((mapping.field(name), 0)).1 += 1;
        }
    }

    fn report_idle(self) {
        for (name, help) in IDLE {
            let Some((first, count)) = self.idle.get(name) else { continue };
            let times = match count {
                1 => String::new(),
                count => format!(", {count} times in this file"),
            };
            first.warn(format!("`{name}` has no effect{times}"), *help);
        }
    }
}

impl<'n> TreeEntry<'n> {
    fn new(fields: &DescriptorFields<'n>, mapping: FileNode<'n>) -> Option<TreeEntry<'n>> {
        let node = mapping.field("key");
        let Some(Text(key)) = fields.key else {
            // An invalid key was reported.
            if mapping.get("key").is_none_or(|node| node.value == Value::Null) {
                let help = "write `key: NAME`, as the application sends it";
                node.error("a descriptor needs `key`", help);
            }
            return None;
        };
        if key.is_empty() {
            let help = "write the name of the entry, as the application sends it";
            node.error("the `key` of a descriptor is empty", help);
            return None;
        }
        // envoyproxy/ratelimit treats an empty value as absent.
        let value = fields.value.map(|value| value.0).filter(|value| !value.is_empty());
        Some(TreeEntry { key, value, node })
    }

    /// Returns the text of the node: `key_value`, or the key alone.
    fn text(&self) -> Cow<'n, str> {
        match self.value {
            Some(value) => format!("{}_{value}", self.key).into(),
            None => self.key.into(),
        }
    }

    fn report_second(&self, (Span { line, .. }, first): (Span, &str)) {
        let text = shown(&self.text());
        if *first == *self.key {
            let message = format!("a second descriptor {text} on its level");
            self.node.error(message, format!("keep one of the two; the first is on line {line}"));
            return;
        }
        let message = format!(
            "the descriptor {text} is the one on line {line}: key and value are compared as one text"
        );
        self.node.error(message, "keep one of the two: either is found by both ways to write it");
    }
}

/// Makes a limit: windows aligned to the Unix epoch, in which refused requests count.
fn rate_limit(fields: &RateLimitFields<'_>, mapping: FileNode<'_>) -> Option<Limit> {
    let unlimited = fields.unlimited.unwrap_or_default();
    match (fields.requests_per_unit, unlimited) {
        (None, false) => {
            let message = "without `requests_per_unit` every request is refused";
            let help = "write how many may pass, or `requests_per_unit: 0` if none is meant";
            mapping.warn(message, help);
        }
        (Some(_), true) => {
            let message = "`requests_per_unit` has no effect beside `unlimited`";
            mapping.warn_at("requests_per_unit", message, "leave one of the two out");
        }
        (None, true) | (Some(_), false) => {}
    }
    let (at, unit) = (mapping.field("unit"), fields.unit.map(|unit| unit.0.to_lowercase()));
    let known = unit.as_ref().and_then(|unit| UNITS.iter().find(|(known, _)| known == unit));
    match (&unit, known, unlimited) {
        (None, _, false) => {
            let help = "write `unit: second`, minute, hour, day, week, month or year, or `unlimited: true`";
            mapping.error("`rate_limit` needs `unit`", help);
        }
        (Some(unit), Some(_), true) => {
            let message = format!("an unlimited descriptor has no unit, and this says {}", shown(unit));
            at.error(message, "leave out `unit`, or `unlimited`");
        }
        (Some(_), None, true) => {
            at.warn("`unit` has no effect beside `unlimited`", "leave it out");
        }
        (Some(unit), None, false) => {
            let help = suggest(unit, &UNITS.map(|(known, _)| known));
            at.error(format!("unknown unit {}", shown(unit)), help);
        }
        (None, _, true) | (Some(_), Some(_), false) => {}
    }
    let allowance = match unlimited {
        true => None,
        false => {
            let (_, seconds) = known?;
            let count = fields.requests_per_unit.map_or(0, |count| count.0);
            let period = WindowPeriod::Nanos(u64::from(*seconds) * SECOND_NANOS);
            let quota = FixedWindowQuota::new(count, period, WindowAlign::Epoch);
            let quota =
                quota.unwrap_or_else(|_| unreachable!("no window of a unit is too long or too short"));
            Some(Allowance::new(Quota::FixedWindow(quota)))
        }
    };
    Some(Limit { allowances: vec![allowance], refused: RefusedCost::Counted, ..Limit::unlimited() })
}

fn replaces(
    fields: &RateLimitFields<'_>,
    own: Option<&str>,
    report: &Report<'_>,
) -> Vec<(Box<str>, Position)> {
    let mut replaces = Vec::new();
    for item in fields.replaces.iter().flatten() {
        let (at, name) = item.value.name.map_or((item.at, ""), |name| (name.at, name.value.0));
        if name.is_empty() {
            let help = "write the `name` of the `rate_limit` that is replaced, or leave the entry out";
            report.error(at, "an entry of `replaces` is empty", help);
        } else if own == Some(name) {
            let message = format!("{} replaces itself", shown(name));
            report.error(at, message, "name another limit, or leave the entry out");
        } else {
            replaces.push((name.into(), report.source().position(at)));
        }
    }
    replaces
}

/// Fields that are accepted without effect, and the help.
const IDLE: &[(&str, &str)] = &[
    (
        "detailed_metric",
        "leave it out: metrics are by rule, and the busiest callers of a rule are shown apart",
    ),
    (
        "value_to_metric",
        "leave it out: metrics are by rule, and the busiest callers of a rule are shown apart",
    ),
    ("metadata", "leave it out: replies carry none"),
];

/// The first version of envoyproxy/ratelimit with patterns that match a star at any position.
const STARS_SINCE: &str = "v1.4.1-0.20260312062621-6bcd4d2f8eda";

/// Maxima of the wire protocol: entries of a descriptor, bytes of a value.
const ENTRIES_MAX: usize = 16;

/// As envoyproxy/ratelimit counts: a month is 30 days and a year 365, independent of the calendar.
const UNITS: [(&str, u32); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", DAY),
    ("week", 7 * DAY),
    ("month", 30 * DAY),
    ("year", 365 * DAY),
];

const DAY: u32 = 86_400;

const SECOND_NANOS: u64 = 1_000_000_000;
