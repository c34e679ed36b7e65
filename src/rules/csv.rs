//! CSV parser (RFC 4180) that records the position of each cell. A stray quote is an error.

use std::borrow::Cow;

use super::problem::ValueProblem;
use super::source::Span;

/// Reads a text record by record.
#[derive(Debug)]
pub(super) struct CsvTable<'t> {
    text: &'t str,
    at: CsvPosition,
}

/// A position in the text. Columns are computed only for messages.
#[derive(Clone, Copy, Debug)]
struct CsvPosition {
    byte: usize,
    line: u32,
    line_start: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Cell<'t> {
    /// The text without its quotes.
    pub(super) text: Cow<'t, str>,
    pub(super) quoted: bool,
    at: CsvPosition,
}

impl<'t> CsvTable<'t> {
    pub(super) fn new(text: &'t str) -> CsvTable<'t> {
        CsvTable { text, at: CsvPosition { byte: 0, line: 1, line_start: 0 } }
    }

    /// Reads the next record into `cells`, skipping empty lines; `None` at the end. Errors skip one line.
    pub(super) fn next(&mut self, cells: &mut Vec<Cell<'t>>) -> Option<Result<(), (Span, ValueProblem)>> {
        cells.clear();
        while self.ends_line() {}
        if self.rest().is_empty() {
            return None;
        }
        loop {
            match self.cell() {
                Ok(cell) => cells.push(cell),
                Err((at, wrong)) => {
                    let error = (self.span(at, 1), wrong);
                    self.at.byte += self.rest().find(['\n', '\r']).unwrap_or(self.rest().len());
                    return Some(Err(error));
                }
            }
            if self.rest().starts_with(',') {
                self.at.byte += 1;
            } else {
                self.ends_line();
                return Some(Ok(()));
            }
        }
    }

    pub(super) fn cell_span(&self, cell: &Cell<'_>) -> Span {
        self.span(cell.at, cell.text.chars().count() + if cell.quoted { 2 } else { 0 })
    }

    fn span(&self, at: CsvPosition, width: usize) -> Span {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let before = self.text.get(at.line_start..at.byte).unwrap_or_default().chars().count();
        Span { line: at.line, column: count(before + 1), width: count(width.max(1)), byte: count(at.byte) }
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at.byte..).unwrap_or_default()
    }

    /// Skips a line end, if there is one here.
    fn ends_line(&mut self) -> bool {
        let rest = self.rest().as_bytes();
        let bytes = match rest {
            [b'\r', b'\n', ..] => 2,
            [b'\n' | b'\r', ..] => 1,
            _ => return false,
        };
        let byte = self.at.byte + bytes;
        self.at = CsvPosition { byte, line: self.at.line.saturating_add(1), line_start: byte };
        true
    }

    fn cell(&mut self) -> Result<Cell<'t>, (CsvPosition, ValueProblem)> {
        let at = self.at;
        if self.rest().starts_with('"') {
            return self.quoted(at);
        }
        let rest = self.rest();
        let end = rest.bytes().position(|byte| matches!(byte, b',' | b'\n' | b'\r' | b'"'));
        let text = end.and_then(|end| rest.get(..end)).unwrap_or(rest);
        self.at.byte += text.len();
        if self.rest().starts_with('"') {
            let help = "write the whole cell in quotes, and each quote inside of it twice";
            return Err((
                self.at,
                ValueProblem::new("a quote inside of a cell that does not start with one", help),
            ));
        }
        Ok(Cell { text: Cow::Borrowed(text), quoted: false, at })
    }

    fn quoted(&mut self, at: CsvPosition) -> Result<Cell<'t>, (CsvPosition, ValueProblem)> {
        self.at.byte += 1;
        let start = self.at.byte;
        let mut doubled = false;
        loop {
            let rest = self.rest();
            let Some(stop) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\n')) else {
                let help = "end the cell with a quote; each quote inside of it is written twice";
                return Err((at, ValueProblem::new("a quote that is never closed", help)));
            };
            self.at.byte += stop + 1;
            match rest.as_bytes().get(stop..) {
                Some([b'\n', ..]) => {
                    self.at.line = self.at.line.saturating_add(1);
                    self.at.line_start = self.at.byte;
                }
                Some([_, b'"', ..]) => {
                    doubled = true;
                    self.at.byte += 1;
                }
                _ => break,
            }
        }
        let text = self.text.get(start..self.at.byte - 1).unwrap_or_default();
        if !matches!(self.rest().as_bytes().first(), None | Some(b',' | b'\n' | b'\r')) {
            let help = "put a comma behind the quote; a quote inside of a cell is written twice";
            return Err((self.at, ValueProblem::new("text behind the quote that ends a cell", help)));
        }
        let text = if doubled { Cow::Owned(text.replace("\"\"", "\"")) } else { Cow::Borrowed(text) };
        Ok(Cell { text, quoted: true, at })
    }
}

impl Cell<'_> {
    pub(super) fn line(&self) -> u32 {
        self.at.line
    }
}

#[cfg(test)]
mod tests {
    use super::CsvTable;

    /// Formats every record with the positions of its cells, or its error.
    fn read(text: &str) -> Vec<String> {
        let mut table = CsvTable::new(text);
        let (mut cells, mut shown) = (Vec::new(), Vec::new());
        while let Some(record) = table.next(&mut cells) {
            let cells = cells.iter().map(|cell| {
                let at = table.cell_span(cell);
                format!("{}:{}={}", at.line, at.column, cell.text)
            });
            shown.push(match record {
                Ok(()) => cells.collect::<Vec<_>>().join("|"),
                Err((at, wrong)) => format!("{}:{}!{}", at.line, at.column, wrong.message),
            });
        }
        shown
    }

    #[test]
    fn cells_have_their_positions() {
        let table: &[(&str, &[&str])] = &[
            ("", &[]),
            ("\n\r\n\n", &[]),
            ("a,b\n1,2\n", &["1:1=a|1:3=b", "2:1=1|2:3=2"]),
            ("a,b\r\n1,2", &["1:1=a|1:3=b", "2:1=1|2:3=2"]),
            ("a\r1\r", &["1:1=a", "2:1=1"]),
            ("a\n\n1\n", &["1:1=a", "3:1=1"]),
            ("é,b", &["1:1=é|1:3=b"]),
            (",\n", &["1:1=|1:2="]),
            ("\"a,b\",c", &["1:1=a,b|1:7=c"]),
            ("\"a\"\"b\",\"\"\n", &["1:1=a\"b|1:8="]),
            ("\"a\nb\",c\nd", &["1:1=a\nb|2:4=c", "3:1=d"]),
            ("a\"b,c\nd", &["1:2!a quote inside of a cell that does not start with one", "2:1=d"]),
            ("\"a\"b\nd", &["1:4!text behind the quote that ends a cell", "2:1=d"]),
            ("x,\"a\nd", &["1:3!a quote that is never closed"]),
        ];
        for (text, expected) in table {
            assert_eq!(read(text), *expected, "{text:?}");
        }
    }
}
