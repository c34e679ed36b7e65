//! Reader of an `overrides_file` table: a header, then a row of numbers for each key.

use super::classes::QuotaClasses;
use super::conditions::VALUE_BYTES_MAX;
use super::overrides::OverrideReader;
use crate::rules::csv::{Cell, CsvTable};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::rows::NotAdded;
use crate::rules::source::{Report, Span};
use crate::rules::{KeyPart, Rows, amount};

/// The indexes of the columns.
struct Columns {
    /// One for each key attribute.
    key: Vec<usize>,
    numbers: usize,
    burst: Option<usize>,
    count: usize,
}

/// Reads the rows of a table. Errors are reported, up to [`ERRORS_MAX`].
pub(super) fn read<K: OverrideReader>(
    key: &[KeyPart],
    keepers: &K,
    classes: &mut QuotaClasses<K::Terms>,
    report: &mut Report<'_>,
) -> Rows {
    let source = report.source();
    let mut table = CsvTable::new(source.text());
    let mut cells = Vec::new();
    let Some(columns) = header(&mut table, &mut cells, key, keepers, report) else { return Rows::default() };
    let mut reader = RowReader { key, columns, rows: Rows::default(), lines: Vec::new(), text: Vec::new() };
    while let Some(record) = table.next(&mut cells) {
        if report.errors() >= ERRORS_MAX {
            break;
        }
        if reader.rows.len() == ROWS_MAX {
            let mend = "give callers a plan, and write an override for each plan";
            report.error(Span::START, format!("more than {ROWS_MAX} rows"), mend);
            break;
        }
        match record {
            Err((at, wrong)) => drop(report.settle::<()>(at, Err(wrong))),
            Ok(()) => {
                if let Err((cell, wrong)) = reader.row(&cells, keepers, classes) {
                    let at = cells.get(cell).or(cells.last()).map(|cell| table.place_of(cell));
                    report.settle::<()>(at.unwrap_or_default(), Err(wrong));
                }
            }
        }
    }
    reader.rows.shrink();
    reader.rows
}

fn header<'t, K: OverrideReader>(
    table: &mut CsvTable<'t>,
    cells: &mut Vec<Cell<'t>>,
    key: &[KeyPart],
    keepers: &K,
    report: &mut Report<'_>,
) -> Option<Columns> {
    let wanted: Vec<&str> = key.iter().map(|part| &*part.attribute).chain([K::COLUMN]).collect();
    let example = format!("the first line names the columns: {}", wanted.join(","));
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
        let at = table.place_of(cell);
        let name = &*cell.text;
        let known = wanted.contains(&name) || name == "burst";
        if !known {
            let near = wanted
                .iter()
                .chain(&["burst"])
                .find(|known| strsim::osa_distance(known, &name.trim().to_lowercase()) * 3 <= known.len());
            let mend = near.map_or(example.clone(), |near| format!("did you mean `{near}`?"));
            report.error(at, format!("unknown column {}", shown(name)), mend);
        } else if cells.iter().take(place).any(|before| before.text == cell.text) {
            report.error(at, format!("a second column {}", shown(name)), "keep one of the two");
        } else if name == "burst" && !keepers.have_bursts() {
            report.error(at, "`burst` is a field of `token_bucket`, and this rule is none", "leave it out");
        }
    }
    if let Some(reserved) = key.iter().find(|part| [K::COLUMN, "burst"].contains(&&*part.attribute)) {
        let message = format!("the attribute {} has the name of another column", shown(&reserved.attribute));
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
    Some(Columns { key, numbers: find(K::COLUMN)?, burst: find("burst"), count: cells.len() })
}

struct RowReader<'k> {
    key: &'k [KeyPart],
    columns: Columns,
    rows: Rows,
    /// The line of each row in insertion order.
    lines: Vec<u32>,
    /// The values of one key; the buffers are reused.
    text: Vec<String>,
}

impl RowReader<'_> {
    /// Adds a row. Errors carry the index of their cell.
    fn row<K: OverrideReader>(
        &mut self,
        cells: &[Cell<'_>],
        keepers: &K,
        classes: &mut QuotaClasses<K::Terms>,
    ) -> Result<(), (usize, ValueProblem)> {
        let Columns { numbers, burst, count, .. } = self.columns;
        if cells.len() != count {
            let message = format!("{} cells, and the header has {count}", cells.len());
            let mend = "write one for each column; a value that holds a comma goes in quotes";
            return Err((count.min(cells.len().saturating_sub(1)), ValueProblem::new(message, mend)));
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
        let mut terms = keepers.of_cell(text(numbers)).map_err(|wrong| (numbers, wrong))?;
        let burst = burst.filter(|place| !text(*place).is_empty());
        if let Some(place) = burst {
            let burst = read_burst(text(place)).map_err(|wrong| (place, wrong))?;
            terms = keepers.with_burst(terms, burst);
        }
        let number = classes.number(terms, |new| keepers.check(new));
        let number = number.map_err(|wrong| (burst.unwrap_or(numbers), wrong))?;
        self.fill(cells)?;
        let first = self.columns.key.first().copied().unwrap_or_default();
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
    fn fill(&mut self, cells: &[Cell<'_>]) -> Result<(), (usize, ValueProblem)> {
        self.text.resize(self.key.len(), String::new());
        for ((part, place), value) in self.key.iter().zip(&self.columns.key).zip(&mut self.text) {
            let cell = cells.get(*place).map_or("", |cell| &*cell.text);
            let attribute = shown(&part.attribute);
            if cell.is_empty() {
                let message = format!("no value for {attribute}: an empty attribute counts as absent");
                return Err((*place, ValueProblem::new(message, "write one, or leave the row out")));
            }
            if cell.len() > VALUE_BYTES_MAX {
                let message = format!("a value of {attribute} has {} bytes", cell.len());
                let mend = format!("write at most {VALUE_BYTES_MAX}: no attribute is longer");
                return Err((*place, ValueProblem::new(message, mend)));
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

/// A larger table should be a database: this one takes about 100 MB, and seconds at each reload.
const ROWS_MAX: usize = 1_000_000;

/// More errors are not worth listing.
const ERRORS_MAX: usize = 100;
