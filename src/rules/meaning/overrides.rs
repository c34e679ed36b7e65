//! Reader of `overrides` and `overrides_file`, which assign allowances of a rule to requests.

use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;

use super::classes::Classes;
use super::conditions::conditions;
use super::override_rows;
use crate::rules::fields::{Field, Fields, list, text};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::source::{Report, Span};
use crate::rules::yaml::YamlNode;
use crate::rules::{Condition, KeyPart, Overrides, Rows};

/// A reader of the terms of overrides, which a rule and its shadow rule must both support.
pub(super) trait Keepers {
    /// The quota of an override.
    type Terms: Copy + Eq + Hash;

    const ENTRY: &'static [Field];
    /// The field of an entry, and the column of a table, that has the quota.
    const COLUMN: &'static str;
    /// An example of that field, for messages.
    const EXAMPLE: &'static str;
    /// The columns of a table besides those of the key.
    const COLUMNS: &'static str;

    /// Whether a burst has a meaning.
    fn have_bursts(&self) -> bool {
        false
    }

    /// Reads the quota of an entry, with its span.
    fn of_entry(&self, fields: &Fields<'_>, report: &mut Report<'_>) -> Option<(Span, Self::Terms)>;

    /// Reads the quota of a cell.
    fn of_cell(&self, text: &str) -> Result<Self::Terms, ValueProblem>;

    fn with_burst(&self, terms: Self::Terms, _burst: u32) -> Self::Terms {
        terms
    }

    /// Checks that these terms are supported.
    fn check(&self, terms: &Self::Terms) -> Result<(), ValueProblem>;
}

/// Reads both fields; `None` if both are absent.
pub(super) fn overrides<K: Keepers>(
    fields: &Fields<'_>,
    key: &[KeyPart],
    keepers: &K,
    classes: &mut Classes<K::Terms>,
    report: &mut Report<'_>,
) -> Option<Arc<Overrides>> {
    let list = fields.get("overrides").map(|node| entries(node, keepers, classes, report));
    let rows = fields.get("overrides_file").map(|node| rows(node, key, keepers, classes, report));
    if list.is_none() && rows.is_none() {
        return None;
    }
    let (file, rows) = rows.flatten().unzip();
    Some(Arc::new(Overrides { list: list.unwrap_or_default(), rows: rows.unwrap_or_default(), file }))
}

fn entries<K: Keepers>(
    node: &YamlNode,
    keepers: &K,
    classes: &mut Classes<K::Terms>,
    report: &mut Report<'_>,
) -> Vec<(Vec<Condition>, u32)> {
    let mend = format!("write a list: `- {{match: {{plan: gold}}, {}}}`", K::EXAMPLE);
    let items = list(node, "overrides", &mend, report).unwrap_or_default();
    if items.len() > ENTRIES_MAX {
        let message = format!("`overrides` has {} entries", items.len());
        let mend =
            format!("write at most {ENTRIES_MAX}: they are looked at in turn; exact keys go into a file");
        report.error(node.at, message, mend);
        return Vec::new();
    }
    let mut entries = Vec::with_capacity(items.len());
    for (place, item) in items.iter().enumerate() {
        let Some(entry) = entry(item, keepers, classes, report) else { continue };
        if entry.0.is_empty() && place + 1 < items.len() {
            let message = "this override matches every request: those behind it are never looked at";
            report.warning(item.at, message, "put it last, or give it a `match`");
        }
        entries.push(entry);
    }
    entries
}

fn entry<K: Keepers>(
    node: &YamlNode,
    keepers: &K,
    classes: &mut Classes<K::Terms>,
    report: &mut Report<'_>,
) -> Option<(Vec<Condition>, u32)> {
    let fields = Fields::read(node, "an override", K::ENTRY, report)?;
    let matching = fields.required("match", "write which requests: `match: {plan: gold}`", report);
    let conditions = matching.and_then(|node| conditions(node, report));
    let (at, terms) = keepers.of_entry(&fields, report)?;
    let number = report.settle(at, classes.number(terms, |new| keepers.check(new)))?;
    Some((conditions?, number))
}

fn rows<K: Keepers>(
    node: &YamlNode,
    key: &[KeyPart],
    keepers: &K,
    classes: &mut Classes<K::Terms>,
    report: &mut Report<'_>,
) -> Option<(Box<str>, Rows)> {
    let name = text(node, "overrides_file", report)?;
    report.settle(node.at, check_file_name(name))?;
    if key.is_empty() {
        let message = "`overrides_file` lists keys, and this rule has one counter for all";
        report.error(node.at, message, "write `key: [user]`, or `overrides` with a `match`");
        return None;
    }
    let Some(read) = report.source().beside(name) else {
        let message = format!("{} cannot be found: these rules lie in no directory", shown(name));
        report.error(node.at, message, "read them from a file");
        return None;
    };
    let source = match read {
        Ok(source) => source,
        Err(unreadable) => {
            let table = format!("write a table with a header: the attributes of `key`, {}", K::COLUMNS);
            let mend = unreadable.problem.mend.as_deref().map_or(&*table, |mend| match mend {
                mend if mend.starts_with("split") => "split it: give each part to a rule of its own",
                mend => mend,
            });
            if unreadable.problem.position.line > 0 {
                // The error is in a line of the table.
                report.absorb(vec![*unreadable.problem]);
            } else {
                let message = format!("`overrides_file: {name}`: {}", unreadable.problem.message);
                report.error(node.at, message, mend);
            }
            return None;
        }
    };
    let mut about_table = Report::new(&source);
    let rows = override_rows::read(key, keepers, classes, &mut about_table);
    report.absorb(about_table.into_problems());
    Some((name.into(), rows))
}

/// Checks that the table is beside the rules file, with a name that reloads watch.
fn check_file_name(name: &str) -> Result<(), ValueProblem> {
    let plain = Path::new(name).file_name().is_some_and(|file| file.to_str() == Some(name));
    if !plain || name.contains('\\') {
        let message = format!("`overrides_file` is the name of a file beside this one, not {}", shown(name));
        return Err(ValueProblem::new(
            message,
            "put the table beside the rules file and write its name alone",
        ));
    }
    if name.starts_with('.') || !name.ends_with(".csv") {
        let message =
            format!("the name of a table ends in `.csv` and does not start with a dot: {}", shown(name));
        return Err(ValueProblem::new(message, "rename it, such as partners.csv"));
    }
    Ok(())
}

/// Entries are evaluated one by one for each request of the rule.
const ENTRIES_MAX: usize = 256;
