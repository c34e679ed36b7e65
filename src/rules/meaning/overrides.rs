//! Reader of `overrides` and `overrides_file`, which assign allowances of a rule to requests. A table has a
//! header, then a row of numbers for each key.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::conditions_of;
use super::limits::Numbers;
use crate::rules::csv::{Cell, CsvTable};
use crate::rules::de::{self, FileNode};
use crate::rules::file::{Algorithm, CommonFields, ConcurrencyOverrideFields, OverrideFields};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::rate_text::WrittenRate;
use crate::rules::rows::NotAdded;
use crate::rules::source::{Report, Span};
use crate::rules::values::{Max, VALUE_BYTES_MAX};
use crate::rules::{Condition, KeyPart, Overrides, Rows, amount, rate_text};

/// The reader of the overrides of one rule. It numbers their quotas from 1; 0 is the quota of the rule or its shadow rule. An
/// override equal to the rule is numbered too, as it differs from the shadow rule.
pub(super) struct OverridesReader<'k> {
    key: &'k [KeyPart],
    /// The rule and its shadow rule, which must both support each quota.
    keepers: &'k [&'k Numbers<'k>],
    /// The quotas from number 1 on.
    pub(super) quotas: Vec<OverrideQuota>,
    numbers: HashMap<OverrideQuota, u32>,
}

impl<'k> OverridesReader<'k> {
    pub(super) fn new(key: &'k [KeyPart], keepers: &'k [&'k Numbers<'k>]) -> OverridesReader<'k> {
        OverridesReader { key, keepers, quotas: Vec::new(), numbers: HashMap::new() }
    }

    /// Reads both fields; `None` if both are absent.
    pub(super) fn read(
        &mut self,
        fields: &CommonFields<'_>,
        mapping: FileNode<'_>,
    ) -> Option<Arc<Overrides>> {
        let list = mapping.get("overrides").map(|_| self.entries(mapping));
        let file = fields.overrides_file.as_ref().zip(mapping.get("overrides_file"));
        let rows = file.map(|(name, node)| self.rows(name.0, node));
        if list.is_none() && rows.is_none() {
            return None;
        }
        let (file, rows) = rows.flatten().unzip();
        Some(Arc::new(Overrides { list: list.unwrap_or_default(), rows: rows.unwrap_or_default(), file }))
    }

    /// The field of an entry, and the column of a table, that has the quota.
    fn column(&self) -> &'static str {
        if self.have(Algorithm::Concurrency) { "max" } else { "rate" }
    }

    fn have(&self, algorithm: Algorithm) -> bool {
        self.keepers.iter().any(|numbers| numbers.algorithm == algorithm)
    }

    /// Returns the number of a quota, after a check of a new one.
    fn number_of(&mut self, quota: OverrideQuota) -> Result<u32, ValueProblem> {
        if let Some(known) = self.numbers.get(&quota) {
            return Ok(*known);
        }
        quota.check()?;
        self.keepers.iter().try_for_each(|numbers| numbers.allowance(&quota, None).map(drop))?;
        self.quotas.push(quota);
        // Rows and entries are bounded far below 2³².
        let number = u32::try_from(self.quotas.len()).unwrap_or(u32::MAX);
        self.numbers.insert(quota, number);
        Ok(number)
    }

    fn entries(&mut self, mapping: FileNode<'_>) -> Vec<(Vec<Condition>, u32)> {
        let items = mapping.items("overrides");
        if items.len() > ENTRIES_MAX {
            let message = format!("`overrides` has {} entries", items.len());
            let help =
                format!("write at most {ENTRIES_MAX}: they are looked at in turn; exact keys go into a file");
            mapping.error_at("overrides", message, help);
            return Vec::new();
        }
        let mut entries = Vec::with_capacity(items.len());
        for (place, item) in items.clone().enumerate() {
            let Some(entry) = self.entry(item) else { continue };
            if entry.0.is_empty() && place + 1 < items.len() {
                let message = "this override matches every request: those behind it are never looked at";
                item.warn(message, "put it last, or give it a `match`");
            }
            entries.push(entry);
        }
        entries
    }

    fn entry(&mut self, mapping: FileNode<'_>) -> Option<(Vec<Condition>, u32)> {
        let quota = if self.have(Algorithm::Concurrency) {
            let ConcurrencyOverrideFields { max, .. } = mapping.read()?;
            OverrideQuota { rate: max.0, burst: None }
        } else {
            let OverrideFields { rate, burst, .. } = mapping.read()?;
            OverrideQuota { rate, burst: burst.map(u32::from) }
        };
        let conditions = conditions_of(mapping);
        if quota.burst.is_some() && !self.have(Algorithm::TokenBucket) {
            mapping.error_at("burst", NO_BURST, "leave `burst` out");
            return None;
        }
        let field = mapping.field(if mapping.has("burst") { "burst" } else { self.column() });
        let number = field.settle(self.number_of(quota))?;
        Some((conditions?, number))
    }

    fn rows(&mut self, name: &str, node: FileNode<'_>) -> Option<(Box<str>, Rows)> {
        node.settle(check_file_name(name))?;
        if self.key.is_empty() {
            let message = "`overrides_file` lists keys, and this rule has one counter for all";
            node.error(message, "write `key: [user]`, or `overrides` with a `match`");
            return None;
        }
        let Some(read) = node.report.source().read_table(name) else {
            let message = format!("{} cannot be found: these rules lie in no directory", shown(name));
            node.error(message, "read them from a file");
            return None;
        };
        let source = match read {
            Ok(source) => source,
            Err(unreadable) if unreadable.problem.position.line > 0 => {
                // The error is in a line of the table.
                node.report.absorb(vec![*unreadable.problem]);
                return None;
            }
            Err(unreadable) => {
                let help = match &*unreadable.problem.help {
                    help if help.starts_with("split") => "split it: give each part to a rule of its own",
                    help => help,
                };
                let message = format!("`overrides_file: {name}`: {}", unreadable.problem.message);
                node.error(message, help);
                return None;
            }
        };
        let about_table = Report::new(&source);
        let rows = self.read_table(&about_table);
        node.report.absorb(about_table.into_problems());
        Some((name.into(), rows))
    }

    /// Reads the rows of a table. Errors are reported, up to [`ERRORS_MAX`].
    fn read_table(&mut self, report: &Report<'_>) -> Rows {
        let source = report.source();
        let mut table = CsvTable::new(source.text());
        let mut cells = Vec::new();
        let Some(mut reader) = self.header(&mut table, &mut cells, report) else { return Rows::default() };
        while let Some(record) = table.next(&mut cells) {
            if report.errors() >= ERRORS_MAX {
                break;
            }
            if reader.rows.len() == ROWS_MAX {
                let help = "give callers a plan, and write an override for each plan";
                report.error(Span::START, format!("more than {ROWS_MAX} rows"), help);
                break;
            }
            match record {
                Err((at, wrong)) => drop(report.settle::<()>(at, Err(wrong))),
                Ok(()) => {
                    if let Err((cell, wrong)) = reader.row(&cells, self) {
                        let at = cells.get(cell).or(cells.last()).map(|cell| table.cell_span(cell));
                        report.settle::<()>(at.unwrap_or_default(), Err(wrong));
                    }
                }
            }
        }
        reader.rows.shrink();
        reader.rows
    }

    fn header<'t>(
        &self,
        table: &mut CsvTable<'t>,
        cells: &mut Vec<Cell<'t>>,
        report: &Report<'_>,
    ) -> Option<TableRows> {
        let (key, column) = (self.key, self.column());
        let wanted: Vec<&str> = key.iter().map(|part| &*part.attribute).chain([column]).collect();
        let example =
            format!("the first line names the columns: {}, and `burst` if it differs", wanted.join(","));
        match table.next(cells) {
            None => {
                report.error(Span::START, "the table is empty", example);
                return None;
            }
            Some(Err((at, wrong))) => return report.settle(at, Err(wrong)),
            Some(Ok(())) => {}
        }
        let errors_before = report.errors();
        for (place, cell) in cells.iter().enumerate() {
            let at = table.cell_span(cell);
            let name = &*cell.text;
            let known = wanted.contains(&name) || name == "burst";
            if !known {
                let near = de::nearest(name, wanted.iter().copied().chain(["burst"]), de::TYPO);
                let help = near.map_or(example.clone(), |near| format!("did you mean `{near}`?"));
                report.error(at, format!("unknown column {}", shown(name)), help);
            } else if cells.iter().take(place).any(|before| before.text == cell.text) {
                report.error(at, format!("a second column {}", shown(name)), "keep one of the two");
            } else if name == "burst" && !self.have(Algorithm::TokenBucket) {
                report.error(at, NO_BURST, "leave it out");
            }
        }
        if let Some(reserved) = key.iter().find(|part| [column, "burst"].contains(&&*part.attribute)) {
            let message =
                format!("the attribute {} has the name of another column", shown(&reserved.attribute));
            report.error(Span::START, message, "use `overrides` for this rule");
        }
        let find = |name: &str| cells.iter().position(|cell| cell.text == name);
        for name in wanted.iter().filter(|name| find(name).is_none()) {
            report.error(Span::START, format!("no column {}", shown(name)), example.clone());
        }
        if report.errors() > errors_before {
            return None;
        }
        let key = key.iter().map(|part| find(&part.attribute)).collect::<Option<Vec<_>>>()?;
        let (numbers, burst, count) = (find(column)?, find("burst"), cells.len());
        Some(TableRows {
            key,
            numbers,
            burst,
            count,
            rows: Rows::default(),
            lines: Vec::new(),
            text: Vec::new(),
        })
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OverrideQuota {
    pub(super) rate: WrittenRate,
    /// `None`: the number of the rate.
    pub(super) burst: Option<u32>,
}

impl OverrideQuota {
    /// Rejects a burst with an unlimited rate.
    pub(super) fn check(&self) -> Result<(), ValueProblem> {
        match (self.rate, self.burst) {
            (WrittenRate::Unlimited, Some(_)) => {
                Err(ValueProblem::new("`burst` where the rate is unlimited", "leave it out"))
            }
            _ => Ok(()),
        }
    }
}

struct TableRows {
    /// The column of each key attribute.
    key: Vec<usize>,
    /// The columns of the quotas, and the number of all.
    numbers: usize,
    burst: Option<usize>,
    count: usize,
    rows: Rows,
    /// The line of each row in insertion order.
    lines: Vec<u32>,
    /// The values of one key; the buffers are reused.
    text: Vec<String>,
}

impl TableRows {
    /// Adds a row. Errors carry the index of their cell.
    fn row(
        &mut self,
        cells: &[Cell<'_>],
        reader: &mut OverridesReader<'_>,
    ) -> Result<(), (usize, ValueProblem)> {
        let TableRows { numbers, burst, count, .. } = *self;
        if cells.len() != count {
            let message = format!("{} cells, and the header has {count}", cells.len());
            let help = "write one for each column; a value that holds a comma goes in quotes";
            return Err((count.min(cells.len().saturating_sub(1)), ValueProblem::new(message, help)));
        }
        for (place, cell) in cells.iter().enumerate() {
            if !cell.quoted && cell.text.trim() != cell.text {
                let message = format!("{} starts or ends with a space", shown(&cell.text));
                return Err((
                    place,
                    ValueProblem::new(message, "remove it, or put the cell in quotes if it is meant"),
                ));
            }
        }
        let text = |place: usize| cells.get(place).map_or("", |cell| &*cell.text);
        let burst = burst.filter(|place| !text(*place).is_empty());
        let read = |place: usize| read_burst(text(place)).map_err(|wrong| (place, wrong));
        let own_burst = burst.map(read).transpose()?;
        let rate = match reader.column() {
            "max" => Max::of_cell(text(numbers)).map(|max| max.0),
            _ => rate_text::parse(text(numbers)),
        };
        let quota = OverrideQuota { rate: rate.map_err(|wrong| (numbers, wrong))?, burst: own_burst };
        let number = reader.number_of(quota).map_err(|wrong| (burst.unwrap_or(numbers), wrong))?;
        self.fill(cells, reader.key)?;
        let first = self.key.first().copied().unwrap_or_default();
        match self.rows.insert(self.text.iter().map(String::as_str), number) {
            Ok(()) => {
                self.lines.push(cells.first().map_or(0, Cell::line));
                Ok(())
            }
            Err(NotAdded::Known(row)) => {
                let line = self.lines.get(row).copied().unwrap_or_default();
                let message = format!("a second row for the key {}", shown(&self.text.join(",")));
                Err((
                    first,
                    ValueProblem::new(message, format!("keep one of the two; the first is on line {line}")),
                ))
            }
            Err(NotAdded::Full) => {
                Err((first, ValueProblem::new("more than 4 GiB of keys", "write fewer rows")))
            }
        }
    }

    /// Transforms the key values of a row as those of a request are transformed.
    fn fill(&mut self, cells: &[Cell<'_>], key: &[KeyPart]) -> Result<(), (usize, ValueProblem)> {
        self.text.resize(key.len(), String::new());
        for ((part, place), value) in key.iter().zip(&self.key).zip(&mut self.text) {
            let cell = cells.get(*place).map_or("", |cell| &*cell.text);
            let attribute = shown(&part.attribute);
            if cell.is_empty() {
                let message = format!("no value for {attribute}: an empty attribute counts as absent");
                return Err((*place, ValueProblem::new(message, "write one, or leave the row out")));
            }
            if cell.len() > VALUE_BYTES_MAX {
                let message = format!("a value of {attribute} has {} bytes", cell.len());
                let help = format!("write at most {VALUE_BYTES_MAX}: no attribute is longer");
                return Err((*place, ValueProblem::new(message, help)));
            }
            value.clear();
            part.transform.push(cell, value);
        }
        Ok(())
    }
}

fn read_burst(text: &str) -> Result<u32, ValueProblem> {
    match amount::parse(text) {
        Ok(0) => Err(ValueProblem::new("`burst` is 0", "write at least 1")),
        Ok(burst) => Ok(burst),
        Err(wrong) => Err(ValueProblem { message: format!("`burst`: {}", wrong.message), ..wrong }),
    }
}

const NO_BURST: &str = "`burst` is a field of `token_bucket`, and this rule is none";

/// Entries are evaluated one by one for each request of the rule.
const ENTRIES_MAX: usize = 256;

/// A larger table should be a database: this one takes about 100 MB, and seconds at each reload.
const ROWS_MAX: usize = 1_000_000;

/// More errors are not worth listing.
const ERRORS_MAX: usize = 100;
