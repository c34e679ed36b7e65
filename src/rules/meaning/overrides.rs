//! Reader of `overrides` and `overrides_file`, which assign allowances of a rule to requests.

use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::classes::QuotaClasses;
use super::{conditions_of, override_rows};
use crate::rules::de::{self, Mapping};
use crate::rules::file::CommonFields;
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::source::Report;
use crate::rules::yaml::YamlNode;
use crate::rules::{Condition, KeyPart, Overrides, Rows};

/// A reader of the terms of overrides, which a rule and its shadow rule must both support.
pub(super) trait OverrideReader {
    /// The fields of an entry.
    type Entry: DeserializeOwned;
    /// The quota of an override.
    type Terms: Copy + Eq + Hash;

    /// The field of an entry, and the column of a table, that has the quota.
    const COLUMN: &'static str;
    /// The columns of a table besides those of the key.
    const COLUMNS: &'static str;

    /// Whether a burst has a meaning.
    fn have_bursts(&self) -> bool {
        false
    }

    /// Returns the quota of an entry.
    fn of_entry(
        &self,
        fields: &Self::Entry,
        mapping: Mapping<'_>,
        report: &mut Report<'_>,
    ) -> Option<Self::Terms>;

    /// Reads the quota of a cell.
    fn of_cell(&self, text: &str) -> Result<Self::Terms, ValueProblem>;

    fn with_burst(&self, terms: Self::Terms, _burst: u32) -> Self::Terms {
        terms
    }

    /// Checks that these terms are supported.
    fn check(&self, terms: &Self::Terms) -> Result<(), ValueProblem>;
}

/// Reads both fields; `None` if both are absent.
pub(super) fn overrides<K: OverrideReader>(
    fields: &CommonFields<'_>,
    mapping: Mapping<'_>,
    key: &[KeyPart],
    keepers: &K,
    classes: &mut QuotaClasses<K::Terms>,
    report: &mut Report<'_>,
) -> Option<Arc<Overrides>> {
    let list = mapping.get("overrides").map(|_| entries(mapping, keepers, classes, report));
    let file = fields.overrides_file.as_ref().zip(mapping.get("overrides_file"));
    let rows = file.map(|(name, node)| rows(name.0, node, key, keepers, classes, report));
    if list.is_none() && rows.is_none() {
        return None;
    }
    let (file, rows) = rows.flatten().unzip();
    Some(Arc::new(Overrides { list: list.unwrap_or_default(), rows: rows.unwrap_or_default(), file }))
}

fn entries<K: OverrideReader>(
    mapping: Mapping<'_>,
    keepers: &K,
    classes: &mut QuotaClasses<K::Terms>,
    report: &mut Report<'_>,
) -> Vec<(Vec<Condition>, u32)> {
    let items = de::items(mapping, "overrides");
    if items.len() > ENTRIES_MAX {
        let message = format!("`overrides` has {} entries", items.len());
        let mend =
            format!("write at most {ENTRIES_MAX}: they are looked at in turn; exact keys go into a file");
        report.error(mapping.at("overrides"), message, mend);
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

fn entry<K: OverrideReader>(
    node: &YamlNode,
    keepers: &K,
    classes: &mut QuotaClasses<K::Terms>,
    report: &mut Report<'_>,
) -> Option<(Vec<Condition>, u32)> {
    let fields = de::read(node, report)?;
    let mapping = Mapping(node);
    let conditions = conditions_of(mapping, report);
    let terms = keepers.of_entry(&fields, mapping, report)?;
    let at = mapping.at(if mapping.has("burst") { "burst" } else { K::COLUMN });
    let number = report.settle(at, classes.number(terms, |new| keepers.check(new)))?;
    Some((conditions?, number))
}

fn rows<K: OverrideReader>(
    name: &str,
    node: &YamlNode,
    key: &[KeyPart],
    keepers: &K,
    classes: &mut QuotaClasses<K::Terms>,
    report: &mut Report<'_>,
) -> Option<(Box<str>, Rows)> {
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
