//! The files that are written: rules that say where each comes from, and what stays of a tree, with the reasons.

use std::collections::HashSet;
use std::fmt::Write;

use super::Left;
use super::text::{comment, list, scalar};
use super::walk::{Found, Limited};
use crate::rules::Position;
use crate::rules::fields::NAME_BYTES_MAX;
use crate::rules::tree::{Amount, Branch, NodeLimit, ended_by_digest, rule_name_within};

/// The rules that do what one limit does, each as an entry of `limits`: one for each list of attributes that leads to it.
pub(super) fn rules(limited: &Limited<'_>) -> Vec<String> {
    let (Some(amount), Some(node)) = (limited.limit.amount, limited.path.last()) else { return Vec::new() };
    let texts = limited.texts();
    let rule = |(place, found): (usize, &Found<'_>)| {
        let mut name = rule_name_within(&texts, NAME_BYTES_MAX);
        if place > 0 {
            name = ended_by_digest(name.into(), &[&texts[..], &found.list].concat(), NAME_BYTES_MAX);
        }
        entry(&name, &node.position, found, amount, limited.limit.shadow || limited.limit.quota)
    };
    limited.found.iter().enumerate().map(rule).collect()
}

fn entry(name: &str, position: &Position, found: &Found<'_>, amount: Amount, shadow: bool) -> String {
    let mut lines = vec![format!("- name: {}", scalar(name))];
    if !found.conditions.is_empty() {
        let said = found
            .conditions
            .iter()
            .map(|(attribute, condition)| format!("{}: {condition}", scalar(attribute)));
        lines.push(format!("  match: {{{}}}", said.collect::<Vec<_>>().join(", ")));
    }
    let key: Vec<String> = found.key.iter().map(|attribute| scalar(attribute)).collect();
    lines.push(format!("  key: {}", list(&key)));
    lines.push("  algorithm: fixed_window".to_owned());
    lines.push(format!("  rate: {}", rate(amount)));
    lines.push("  refused: counted".to_owned());
    if shadow {
        lines.push("  mode: shadow".to_owned());
    }
    lines.extend(overrides(found, amount));
    let lines = lines.iter().map(|line| format!("  {line}\n")).collect::<String>();
    format!("  {}\n{lines}", comment(&place(position)))
}

/// What fits the patterns of a rule and led elsewhere in the tree is not limited by it. The first that matches holds, so what
/// is always meant stands first.
fn overrides(found: &Found<'_>, amount: Amount) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |attribute: &str, values: &str, rate: &str| {
        lines.push(format!("    - {{match: {{{}: {values}}}, rate: {rate}}}", scalar(attribute)));
    };
    let (whole, partly): (Vec<_>, Vec<_>) = found.except.iter().partition(|(_, except)| except.but.is_none());
    for (attribute, except) in whole.into_iter().chain(partly) {
        if let Some(but) = &except.but {
            line(attribute, but, &rate(amount));
        }
        line(attribute, &except.values, "unlimited");
    }
    if !lines.is_empty() {
        lines.insert(0, "  overrides:".to_owned());
    }
    lines
}

fn rate(amount: Amount) -> String {
    format!("{}/{}", amount.count, unit(amount).1)
}

/// A file of rules.
pub(super) fn rules_file(domain: &str, lists: &[String], rules: &[String]) -> String {
    let mut file = format!("{MADE}{SENDS}");
    for list in lists {
        file.push_str(&format!("{}\n", comment(&format!("  {list}"))));
    }
    let rules = rules.join("\n");
    file.push_str(&format!("domain: {}\ndefaults: {{scope: host}}\nlimits:\n{rules}", scalar(domain)));
    file
}

/// A file with what stays of a tree: the limits that have no native form, and the nodes that lead to them or past them.
pub(super) fn tree_file(
    domain: &str,
    tree: &[Branch],
    stays: &HashSet<*const Branch>,
    left: &[Left],
) -> String {
    let mut file =
        format!("{MADE}{STAYS}domain: {}\ndefaults: {{scope: host}}\ndescriptors:\n", scalar(domain));
    level(tree, 1, &Stays { stays, left }, &mut file);
    file
}

struct Stays<'s> {
    stays: &'s HashSet<*const Branch>,
    left: &'s [Left],
}

impl Stays<'_> {
    fn limit<'b>(&self, node: &'b Branch) -> Option<&'b NodeLimit> {
        node.limit.as_ref().filter(|_| self.stays.contains(&std::ptr::from_ref(node)))
    }

    fn leads(&self, node: &Branch) -> bool {
        self.limit(node).is_some() || node.branches.iter().any(|node| self.leads(node))
    }
}

/// All nodes of a level from which any leads to a limit that stays: one that does not hides others, as it did.
fn level(nodes: &[Branch], depth: usize, stays: &Stays<'_>, file: &mut String) {
    if !nodes.iter().any(|node| stays.leads(node)) {
        return;
    }
    let indent = "  ".repeat(depth);
    for node in nodes {
        let why = stays.left.iter().find(|left| left.position == node.position).map(|left| left.why);
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let mut line = |words: String| {
            // Writing into a text does not fail.
            let _ = writeln!(file, "{indent}{words}");
        };
        line(comment(&format!("{}{why}", place(&node.position))));
        line(format!("- key: {}", scalar(&node.key)));
        if let Some(value) = node.text.strip_prefix(&*node.key).and_then(|rest| rest.strip_prefix('_')) {
            line(format!("  value: {}", scalar(value)));
        }
        if node.share {
            line("  share_threshold: true".to_owned());
        }
        if let Some(limit) = stays.limit(node) {
            if limit.shadow {
                line("  shadow_mode: true".to_owned());
            }
            if limit.quota {
                line("  quota_mode: true".to_owned());
            }
            line(format!("  rate_limit: {{{}}}", rate_limit(limit)));
        }
        if node.branches.iter().any(|node| stays.leads(node)) {
            line("  descriptors:".to_owned());
            level(&node.branches, depth + 2, stays, file);
        }
    }
}

fn rate_limit(limit: &NodeLimit) -> String {
    let mut said = match limit.amount {
        None => vec!["unlimited: true".to_owned()],
        Some(amount) => {
            vec![format!("unit: {}", unit(amount).0), format!("requests_per_unit: {}", amount.count)]
        }
    };
    said.extend(limit.name.as_ref().map(|name| format!("name: {}", scalar(name))));
    let replaces: Vec<String> =
        limit.replaces.iter().map(|(name, _)| format!("{{name: {}}}", scalar(name))).collect();
    if !replaces.is_empty() {
        said.push(format!("replaces: {}", list(&replaces)));
    }
    said.join(", ")
}

fn place(position: &Position) -> String {
    format!("{}:{}", position.file, position.line)
}

/// The unit of a tree, and the period of a rate that has the same windows: those of whole days count from 1970 on.
fn unit(amount: Amount) -> (&'static str, &'static str) {
    let known = UNITS.iter().find(|(seconds, ..)| *seconds == amount.seconds);
    known.map_or(("second", "s"), |(_, unit, period)| (unit, period))
}

const UNITS: [(u32, &str, &str); 7] = [
    (1, "second", "s"),
    (60, "minute", "min"),
    (3_600, "hour", "h"),
    (DAY, "day", "day"),
    (7 * DAY, "week", "week"),
    (30 * DAY, "month", "30day"),
    (365 * DAY, "year", "365day"),
];

const DAY: u32 = 86_400;

const MADE: &str = "# Made by `tidegate import ratelimit`; each entry says where it comes from.\n";

const SENDS: &str = "\
# They decide as the tree did for requests that send, of each of these lists of which they have all attributes, one
# descriptor in this order, each attribute with one value that is not empty, and no other that the tree has limits for:
";

const STAYS: &str = "\
# What stays a tree: limits for which there is no rule that does the same, and the nodes that lead to them or past them.
";
