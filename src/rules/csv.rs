//! CSV parser (RFC 4180) that records the position of each cell. A stray quote is an error.

use std::borrow::Cow;

use super::problem::ValueProblem;
use super::source::Span;

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
