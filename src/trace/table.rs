//! Formats a text table with aligned columns.

use std::fmt;

/// Rows of cells. The first column is aligned left, the others right.
#[derive(Debug, Default)]
pub(crate) struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with a row of headings.
    pub(crate) fn new(headings: &[&str]) -> TextTable {
        TextTable { rows: vec![headings.iter().map(ToString::to_string).collect()] }
    }

    /// Formats rows below headings; `None` without rows.
    pub(crate) fn of_rows(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Option<String> {
        let mut table = TextTable::new(headings);
        table.rows.extend(rows);
        (table.rows.len() > 1).then(|| table.to_string())
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Removes the last columns.
    pub(super) fn without_last(mut self, columns: usize) -> TextTable {
        self.rows.iter_mut().for_each(|row| row.truncate(row.len().saturating_sub(columns)));
        self
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let widths: Vec<usize> = (0..columns).map(|column| self.width(column)).collect();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                line += &if column == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") };
            }
            let end = if number + 1 < self.rows.len() { "\n" } else { "" };
            write!(f, "{}{end}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Formats a number with its thousands separated.
pub(crate) fn count(number: u64) -> String {
    crate::page::count(number).replace('\u{202f}', " ")
}

/// Formats `other - one` with its sign; `=` if they are equal.
pub(super) fn difference(one: u64, other: u64) -> String {
    match other.cmp(&one) {
        std::cmp::Ordering::Equal => "=".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", count(other - one)),
        std::cmp::Ordering::Less => format!("-{}", count(one - other)),
    }
}

/// `1 line`, `2 lines`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::{TextTable, count, difference};

    #[test]
    fn thousands_stand_apart() {
        let table = [
            (0, "0"),
            (999, "999"),
            (1_000, "1 000"),
            (12_345, "12 345"),
            (1_234_567, "1 234 567"),
            (u64::MAX, "18 446 744 073 709 551 615"),
        ];
        for (number, expected) in table {
            assert_eq!(count(number), expected);
        }
        assert_eq!([difference(1, 1), difference(0, 1_000), difference(1_000, 0)], ["=", "+1 000", "-1 000"]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = TextTable::new(&["rule", "passed", "x"]);
        table.push(vec!["größer".into(), "1 000 000".into(), "1".into()]);
        table.push(vec!["a".into(), "0".into()]);
        assert_eq!(table.to_string(), "rule       passed  x\ngrößer  1 000 000  1\na               0");
    }
}
