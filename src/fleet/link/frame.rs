//! Finds the end of a reply. Checks every length and depth against a bound before allocating, so that a
//! faulty or foreign server costs at most one bounded buffer. The `redis` crate parses complete replies only.

use arrayvec::ArrayVec;
use redis::Value;

/// Searches for the end of one reply while its bytes arrive.
#[derive(Debug, Default)]
pub struct Scanner {
    /// Bytes scanned.
    at: usize,
    /// Elements still missing in each open array.
    open: ArrayVec<u32, DEPTH_MAX>,
    elements: u32,
}

/// Why bytes are not a valid reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum BadReply {
    #[error("a reply of more than 1 MiB")]
    Long,
    #[error("a line that does not end")]
    EndlessLine,
    #[error("a reply nested too deeply")]
    Deep,
    #[error("a reply of too many elements")]
    Many,
    #[error("what came is not in Redis' protocol")]
    Garbled,
}

impl Scanner {
    /// Removes the first reply from `incoming` if it is complete.
    ///
    /// # Errors
    /// The bytes are malformed or exceed a bound.
    pub fn take(&mut self, incoming: &mut Vec<u8>) -> Result<Option<Value>, BadReply> {
        let Some(end) = self.end(incoming)? else { return Ok(None) };
        let reply = incoming.get(..end).ok_or(BadReply::Garbled)?;
        let value = redis::parse_redis_value(reply).map_err(|_| BadReply::Garbled)?;
        incoming.drain(..end);
        *self = Scanner::default();
        Ok(Some(value))
    }

    fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, BadReply> {
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            let Some((kind, line)) = line(rest)? else { return self.unless_long(None) };
            let after_line = self.at + 1 + line.len() + 2;
            let mut end = after_line;
            match kind {
                b'+' | b'-' => {}
                b':' => drop(number(line)?),
                b'$' => {
                    if let Some(length) = length(line)? {
                        end = after_line + usize::try_from(length).map_err(|_| BadReply::Long)? + 2;
                        self.unless_long(Some(end))?;
                        match bytes.get(..end) {
                            Some(whole) if whole.ends_with(b"\r\n") => {}
                            Some(_) => return Err(BadReply::Garbled),
                            None => return Ok(None),
                        }
                    }
                }
                b'*' => {
                    if let Some(count) = length(line)?.filter(|count| *count > 0) {
                        self.elements = self.elements.saturating_add(count);
                        if self.elements > ELEMENTS_MAX {
                            return Err(BadReply::Many);
                        }
                        self.open.try_push(count).map_err(|_| BadReply::Deep)?;
                        self.at = after_line;
                        continue;
                    }
                }
                _ => return Err(BadReply::Garbled),
            }
            self.at = end;
            if self.is_whole() {
                return self.unless_long(Some(end));
            }
        }
    }

    /// Whether the value that just ended completes the reply.
    fn is_whole(&mut self) -> bool {
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return false;
            }
            self.open.pop();
        }
        true
    }

    fn unless_long(&self, end: Option<usize>) -> Result<Option<usize>, BadReply> {
        if end.unwrap_or(self.at) > REPLY_BYTES_MAX { Err(BadReply::Long) } else { Ok(end) }
    }
}

/// The type byte and the text of the next line, if complete.
fn line(bytes: &[u8]) -> Result<Option<(u8, &[u8])>, BadReply> {
    let Some((kind, rest)) = bytes.split_first() else { return Ok(None) };
    if !b"+-:$*".contains(kind) {
        return Err(BadReply::Garbled);
    }
    let seen = rest.get(..LINE_BYTES_MAX + 2).unwrap_or(rest);
    match seen.windows(2).position(|pair| pair == b"\r\n") {
        Some(length) => Ok(Some((*kind, rest.get(..length).unwrap_or_default()))),
        None if rest.len() >= LINE_BYTES_MAX + 2 => Err(BadReply::EndlessLine),
        None => Ok(None),
    }
}

/// The length in a line; `None` for -1, the nil of RESP2.
fn length(line: &[u8]) -> Result<Option<u32>, BadReply> {
    match number(line)? {
        -1 => Ok(None),
        length => u32::try_from(length)
            .map(Some)
            .map_err(|_| if length < 0 { BadReply::Garbled } else { BadReply::Long }),
    }
}

fn number(line: &[u8]) -> Result<i64, BadReply> {
    let text = std::str::from_utf8(line).map_err(|_| BadReply::Garbled)?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(BadReply::Garbled);
    }
    text.parse().map_err(|_| BadReply::Garbled)
}

/// The largest reply; 32 cells take less than 4 kB.
const REPLY_BYTES_MAX: usize = 1 << 20;

/// The longest line: an error with a script's stack trace fits.
const LINE_BYTES_MAX: usize = 4096;

/// The deepest nesting: CLUSTER SLOTS has arrays of three levels.
const DEPTH_MAX: usize = 8;

/// The most elements of a reply: each takes about 60 bytes of memory, even if only few on the wire.
const ELEMENTS_MAX: u32 = 16_384;

#[cfg(test)]
mod tests {
    use super::{BadReply, Scanner, Value};

    fn take(bytes: &[u8]) -> Result<Option<Value>, BadReply> {
        Scanner::default().take(&mut bytes.to_vec())
    }

    #[test]
    fn a_reply_is_found_however_it_is_cut() {
        let two = b"*3\r\n:-7\r\n*2\r\n$5\r\na\r\nb:\r\n$-1\r\n*0\r\n+OK\r\n";
        let mut scanner = Scanner::default();
        let (mut incoming, mut found) = (Vec::new(), Vec::new());
        for byte in two {
            incoming.push(*byte);
            found.extend(scanner.take(&mut incoming).unwrap());
        }
        let inner = Value::Array(vec![Value::BulkString(b"a\r\nb:".to_vec()), Value::Nil]);
        assert_eq!(found, [Value::Array(vec![Value::Int(-7), inner, Value::Array(vec![])]), Value::Okay]);
        assert!(incoming.is_empty());
    }

    #[test]
    fn what_is_over_a_bound_is_refused_before_it_has_come() {
        let deep = "*1\r\n".repeat(9);
        let long_line = format!("+{}", "x".repeat(5000));
        let table: &[(&str, BadReply)] = &[
            ("$536870912\r\n", BadReply::Long),
            ("$1048577\r\n", BadReply::Long),
            ("$99999999999999\r\n", BadReply::Long),
            ("*1000000000\r\n", BadReply::Many),
            ("*16000\r\n*400\r\n", BadReply::Many),
            (&deep, BadReply::Deep),
            (&long_line, BadReply::EndlessLine),
            ("$-5\r\n", BadReply::Garbled),
            ("$+5\r\n", BadReply::Garbled),
            (":99999999999999999999\r\n", BadReply::Garbled),
            ("$1\r\nabc", BadReply::Garbled),
            ("HTTP/1.1 400 Bad Request\r\n", BadReply::Garbled),
            (">1", BadReply::Garbled),
            ("\r\n", BadReply::Garbled),
        ];
        for (text, expected) in table {
            assert_eq!(take(text.as_bytes()), Err(*expected), "{text:.20}");
        }
        assert_eq!(take(b"+\xff\r\n"), Err(BadReply::Garbled));
    }

    #[test]
    fn many_small_values_do_not_add_up_past_the_bound() {
        let mut bytes = b"*16000\r\n".to_vec();
        for _ in 0..300 {
            bytes.extend(format!("+{}\r\n", "x".repeat(4000)).bytes());
        }
        assert_eq!(take(&bytes), Err(BadReply::Long));
    }
}
