//! Parses replies as their bytes arrive. Bounds the bytes of a reply, so that a faulty or foreign server costs at
//! most one bounded buffer. The parser of the `redis` crate bounds the nesting and allocates for values that have
//! come, not for lengths that are announced.

use std::io::{self, Read};

use redis::{Parser, Value};

use super::failure::{FailureClass, LinkError};

/// Parses the replies of one connection.
#[derive(Default)]
pub struct ReplyParser {
    parser: Parser,
    /// Bytes since the last reply.
    bytes: usize,
}

impl ReplyParser {
    /// Parses the next reply from the start of `incoming`, whose other bytes remain for the next call. `None` if
    /// the reply is not complete; its bytes have been taken.
    ///
    /// # Errors
    /// The bytes are malformed or exceed the bound. The parser is then of no further use.
    pub fn next(&mut self, incoming: &mut &[u8]) -> Result<Option<Value>, LinkError> {
        let bad = |why| Err(LinkError::new(FailureClass::Protocol, why));
        let before = incoming.len();
        let parsed = self.parser.parse_value(Incoming(incoming));
        self.bytes += before - incoming.len();
        match parsed {
            Ok(value) if is_of_resp2(&value) => {
                self.bytes = 0;
                Ok(Some(value))
            }
            Err(error) if error.is_timeout() && self.bytes > REPLY_BYTES_MAX => {
                bad("a reply of more than 512 KiB")
            }
            Err(error) if error.is_timeout() => Ok(None),
            Ok(_) | Err(_) => bad("the reply is not in the protocol of Redis"),
        }
    }
}

/// Reads bytes until none are left: more will come then, where a reader of a slice would report the end.
struct Incoming<'a, 'b>(&'a mut &'b [u8]);

impl Read for Incoming<'_, '_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { self.0.read(to) }
    }
}

/// Whether a server may send this value without a HELLO, which asks for the later protocol.
fn is_of_resp2(value: &Value) -> bool {
    match value {
        Value::Nil
        | Value::Int(_)
        | Value::BulkString(_)
        | Value::SimpleString(_)
        | Value::Okay
        | Value::ServerError(_) => true,
        Value::Array(values) => values.iter().all(is_of_resp2),
        _ => false,
    }
}

/// The largest reply: 32 cells take less than 4 kB. Values take up to fifty times their bytes of memory.
const REPLY_BYTES_MAX: usize = 512 << 10;

#[cfg(test)]
mod tests {
    use super::{LinkError, ReplyParser, Value};

    fn parse(bytes: &[u8]) -> Result<Option<Value>, LinkError> {
        ReplyParser::default().next(&mut &*bytes)
    }

    #[test]
    fn finds_replies_however_they_are_cut() {
        let two = b"*3\r\n:-7\r\n*2\r\n$5\r\na\r\nb:\r\n$-1\r\n*0\r\n+OK\r\n";
        let inner = Value::Array(vec![Value::BulkString(b"a\r\nb:".to_vec()), Value::Nil]);
        let expected = [Value::Array(vec![Value::Int(-7), inner, Value::Array(vec![])]), Value::Okay];
        for length in 1..=two.len() {
            let mut parser = ReplyParser::default();
            let mut found = Vec::new();
            for mut piece in two.chunks(length) {
                while let Some(value) = parser.next(&mut piece).unwrap() {
                    found.push(value);
                }
                assert!(piece.is_empty());
            }
            assert_eq!(found, expected, "{length}");
        }
    }

    #[test]
    fn refuses_oversized_and_malformed_replies() {
        let long = " more than 512 KiB";
        let garbled = "not in the protocol of Redis";
        let zeros = |first: &str| format!("{first}{}", "0".repeat(600 << 10));
        let table: &[(String, &str)] = &[
            (zeros("$536870912\r\n"), long),
            (zeros("+"), long),
            (zeros(":"), long),
            (format!("*1000000000\r\n{}", ":1\r\n".repeat(200 << 10)), long),
            (format!("*16000\r\n{}", format!("+{}\r\n", "x".repeat(4000)).repeat(300)), long),
            ("*1\r\n".repeat(1 << 14), garbled),
            ("*16000\r\n:1\r\n".repeat(1 << 14), garbled),
            (":99999999999999999999\r\n".into(), garbled),
            ("$99999999999999999999\r\n".into(), garbled),
            ("*18446744073709551615\r\n".into(), garbled),
            ("$1\r\nabc".into(), garbled),
            ("HTTP/1.1 400 Bad Request\r\n".into(), garbled),
            (">2\r\n+message\r\n+x\r\n".into(), garbled),
            ("*1\r\n%1\r\n+a\r\n+b\r\n".into(), garbled),
            ("\r\n".into(), garbled),
        ];
        for (text, expected) in table {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.ends_with(expected), "{text:.20}: {error}");
        }
        assert!(parse(b"+\xff\r\n").is_err());
        assert_eq!(parse(b"$600000\r\nabc"), Ok(None), "the announced length costs nothing");
    }
}
