//! Reads the lines of a trace: numbers them, bounds their length, skips empty ones.

use std::io::{self, BufRead, Read};

pub(super) struct Lines<'r> {
    input: &'r mut dyn BufRead,
    text: Vec<u8>,
    /// The number of the last line read, from 1.
    pub(super) number: u64,
    pub(super) bytes: u64,
}

pub(super) enum NextLine<'t> {
    /// A line that is not empty, with its line feed if it has one.
    Line { number: u64, text: &'t [u8] },
    /// A line above the bound, skipped entirely.
    TooLong { number: u64 },
    /// End of input.
    End,
}

impl<'r> Lines<'r> {
    pub(super) fn new(input: &'r mut dyn BufRead) -> Lines<'r> {
        Lines { input, text: Vec::new(), number: 0, bytes: 0 }
    }

    /// Reads the next line that is not empty.
    pub(super) fn next(&mut self) -> io::Result<NextLine<'_>> {
        loop {
            self.number += 1;
            let ended = self.line()?;
            if self.text.is_empty() {
                return Ok(NextLine::End);
            }
            if !ended && self.text.len() >= LINE_BYTES_MAX {
                self.skip_rest()?;
                return Ok(NextLine::TooLong { number: self.number });
            }
            if !self.text.trim_ascii().is_empty() {
                return Ok(NextLine::Line { number: self.number, text: &self.text });
            }
        }
    }

    /// Reads up to a line feed or the bound; returns whether a line feed was read.
    fn line(&mut self) -> io::Result<bool> {
        self.text.clear();
        let bound = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
        let read = (&mut *self.input).take(bound).read_until(b'\n', &mut self.text)?;
        self.bytes += u64::try_from(read).unwrap_or(u64::MAX);
        Ok(self.text.ends_with(b"\n"))
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        while !self.line()? && !self.text.is_empty() {}
        Ok(())
    }
}

/// The longest line. A frame has 16 KiB, at most six times as much as JSON or with a web server's escapes;
/// longer lines are no trace and must not fill the memory.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::{LINE_BYTES_MAX, Lines, NextLine};

    fn read(text: &[u8]) -> Vec<(u64, Option<Vec<u8>>)> {
        let mut input = text;
        let mut lines = Lines::new(&mut input);
        let mut read = Vec::new();
        loop {
            read.push(match lines.next().unwrap() {
                NextLine::Line { number, text } => (number, Some(text.to_vec())),
                NextLine::TooLong { number } => (number, None),
                NextLine::End => return read,
            });
        }
    }

    #[test]
    fn empty_lines_count_and_the_last_may_go_without_its_end() {
        let expected = [(1, Some(b"a\n".to_vec())), (4, Some(b"b".to_vec()))];
        assert_eq!(read(b"a\n\n \r\nb"), expected);
        assert_eq!(read(b""), []);
    }

    #[test]
    fn a_line_above_the_bound_is_passed_over() {
        let most = "x".repeat(LINE_BYTES_MAX - 1) + "\n";
        let (long, longest) = (format!("x{most}"), "x".repeat(3 * LINE_BYTES_MAX));
        let text = format!("{most}{long}a\n{longest}\nb\n{longest}");
        let expected = [
            (1, Some(most.into_bytes())),
            (2, None),
            (3, Some(b"a\n".to_vec())),
            (4, None),
            (5, Some(b"b\n".to_vec())),
            (6, None),
        ];
        assert!(read(text.as_bytes()) == expected);
    }
}
