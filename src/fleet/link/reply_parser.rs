//! Parses replies as their bytes arrive. Bounds the bytes of a reply, so that a faulty or foreign server costs at
//! most one bounded buffer. The parser of the `redis` crate bounds the nesting and allocates for values that have
//! come, not for lengths that are announced.

use std::io::{self, Read};

use redis::{Parser, Value};

use super::failure::{FailureClass, LinkError};

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
