//! `overrides` and `overrides_file` as meant: which requests have which of a rule's allowances.

use std::path::Path;

use super::classes::{Classes, Terms};
use super::conditions::conditions;
use super::numbers::{Algorithm, Numbers};
use super::override_rows;
use crate::rules::fields::{Fields, list, text};
use crate::rules::problem::{Wrong, shown};
use crate::rules::source::{Report, Source};
use crate::rules::written::OVERRIDE;
use crate::rules::yaml::Node;
use crate::rules::{Condition, KeyPart, Overrides, Rows, amount, doubt, rate_text};

/// Those who must be able to keep what an override says: the rule, and its candidate.
pub(super) struct Keepers<'n> {
    pub(super) rule: &'n Numbers,
    pub(super) candidate: Option<&'n Numbers>,
}

impl Keepers<'_> {
    /// Whether a burst says anything.
    pub(super) fn have_bursts(&self) -> bool {
        self.each().any(|numbers| numbers.algorithm == Algorithm::TokenBucket)
    }

    /// Whether these terms can be kept.
    pub(super) fn check(&self, terms: &Terms) -> Result<(), Wrong> {
        self.each().try_for_each(|numbers| numbers.allowance(terms, None).map(drop))
    }

    fn each(&self) -> impl Iterator<Item = &Numbers> {
        std::iter::once(self.rule).chain(self.candidate)
    }
}

/// Reads both fields; `None` when neither is written.
pub(super) fn overrides(
    fields: &Fields<'_>,
    key: &[KeyPart],
    keepers: &Keepers<'_>,
    classes: &mut Classes,
    report: &mut Report<'_>,
) -> Option<Box<Overrides>> {
    let list = fields.get("overrides").map(|node| entries(node, keepers, classes, report));
    let rows = fields.get("overrides_file").map(|node| rows(node, key, keepers, classes, report));
    if list.is_none() && rows.is_none() {
        return None;
    }
    let (file, rows) = rows.flatten().unzip();
    Some(Box::new(Overrides { list: list.unwrap_or_default(), rows: rows.unwrap_or_default(), file }))
}

fn entries(
    node: &Node,
    keepers: &Keepers<'_>,
    classes: &mut Classes,
    report: &mut Report<'_>,
) -> Vec<(Vec<Condition>, u32)> {
    let mend = "write a list: `- {match: {plan: gold}, rate: 1000/s}`";
    let items = list(node, "overrides", mend, report).unwrap_or_default();
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

fn entry(
    node: &Node,
    keepers: &Keepers<'_>,
    classes: &mut Classes,
    report: &mut Report<'_>,
) -> Option<(Vec<Condition>, u32)> {
    let fields = Fields::read(node, "an override", OVERRIDE, report)?;
    let matching = fields.required("match", "write which requests: `match: {plan: gold}`", report);
    let conditions = matching.and_then(|node| conditions(node, report));
    let node = fields.required("rate", "write `rate: 1000/s`, or `rate: unlimited`", report);
    let rate = node.and_then(|node| {
        let text = text(node, "rate", report)?;
        report.settle(node.at, rate_text::parse(text))
    });
    let burst = match fields.get("burst") {
        Some(node) if !keepers.have_bursts() => {
            let message = "`burst` is a field of `token_bucket`, and this rule is none";
            report.error(node.at, message, "leave `burst` out");
            return None;
        }
        Some(node) => Some(report.settle(node.at, amount::read(node, "burst"))?),
        None => None,
    };
    let terms = Terms { rate: rate?, burst };
    let at = fields.get("burst").or(node)?.at;
    let number =
        report.settle(at, terms.check().and_then(|()| classes.number(terms, |new| keepers.check(new))))?;
    if keepers.rule.algorithm == Algorithm::TokenBucket
        && let Ok(Some(rate)) = rate?.steady()
    {
        doubt::about_period(rate, burst.unwrap_or(rate.count()), node?.at, report);
    }
    Some((conditions?, number))
}

fn rows(
    node: &Node,
    key: &[KeyPart],
    keepers: &Keepers<'_>,
    classes: &mut Classes,
    report: &mut Report<'_>,
) -> Option<(Box<str>, Rows)> {
    let name = text(node, "overrides_file", report)?;
    report.settle(node.at, check_file_name(name))?;
    if key.is_empty() {
        let message = "`overrides_file` lists keys, and this rule has one counter for all";
        report.error(node.at, message, "write `key: [user]`, or `overrides` with a `match`");
        return None;
    }
    let Some(directory) = report.source().directory() else {
        let message = format!("{} cannot be found: these rules lie in no directory", shown(name));
        report.error(node.at, message, "read them from a file");
        return None;
    };
    let source = match Source::read(&directory.join(name)) {
        Ok(source) => source,
        Err(unreadable) => {
            let mend = unreadable.problem.mend.as_deref().map_or(MEND_TABLE, |mend| match mend {
                mend if mend.starts_with("split") => "split it: give each part to a rule of its own",
                mend => mend,
            });
            if unreadable.problem.line_text.is_some() {
                // It stands in a line of the table.
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

/// Beside the rules file, and under a name that the daemon sees when it looks for changes.
fn check_file_name(name: &str) -> Result<(), Wrong> {
    let plain = Path::new(name).file_name().is_some_and(|file| file.to_str() == Some(name));
    if !plain || name.contains('\\') {
        let message = format!("`overrides_file` is the name of a file beside this one, not {}", shown(name));
        return Err(Wrong::new(message, "put the table beside the rules file and write its name alone"));
    }
    if name.starts_with('.') || !name.ends_with(".csv") {
        let message =
            format!("the name of a table ends in `.csv` and does not start with a dot: {}", shown(name));
        return Err(Wrong::new(message, "rename it, such as partners.csv"));
    }
    Ok(())
}

/// They are looked at one by one for every request that comes to the rule.
const ENTRIES_MAX: usize = 256;

const MEND_TABLE: &str = "write a table with a header: the attributes of `key`, `rate` and perhaps `burst`";
