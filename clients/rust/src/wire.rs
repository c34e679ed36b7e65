//! MessagePack within the limits of the protocol, and the elements of a request. Uses no socket and no clock.

use sha2::{Digest, Sha256};

use crate::fault::Fault;

/// A MessagePack value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Nil,
    Bool(bool),
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    Text(String),
    Binary(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(String, Value)>),
}

/// The operations of requests, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Hello,
    Acquire,
    Release,
    Hit,
    Peek,
    Charge,
    Renew,
    Signal,
    Ping,
}

impl Op {
    /// Whether the reply is a decision.
    pub(crate) fn is_check(self) -> bool {
        matches!(self, Op::Acquire | Op::Hit | Op::Peek)
    }
}

/// A request about a domain, without its id.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) domain: String,
    pub(crate) descriptors: Vec<Vec<(String, String)>>,
    /// A number, or a map from units to numbers.
    pub(crate) cost: Value,
    pub(crate) priority: Option<String>,
    pub(crate) options: Vec<(String, Value)>,
}

/// The encoded elements of a request after its id.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Elements {
    count: u8,
    pub(crate) bytes: Vec<u8>,
}

impl Elements {
    pub(crate) fn new(values: &[Value]) -> Elements {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| write(&mut bytes, value));
        // The longest request has five.
        Elements { count: u8::try_from(values.len()).unwrap_or(u8::MAX), bytes }
    }

    /// Returns a whole frame. Without an id no reply is sent.
    pub(crate) fn frame(&self, op: Op, id: Option<u64>) -> Vec<u8> {
        let mut frame = vec![0, 0, 0, 0, 0x92 + self.count, op as u8];
        write(&mut frame, &id.map_or(Value::Nil, Value::Unsigned));
        frame.extend_from_slice(&self.bytes);
        let length = u32::try_from(frame.len() - 4).unwrap_or(u32::MAX).to_be_bytes();
        frame.splice(..4, length);
        frame
    }
}

impl Request {
    /// Encodes the request. Its longest values become digests until it fits into a frame.
    ///
    /// # Errors
    /// It does not fit without values.
    pub(crate) fn elements(&self) -> Result<Elements, Fault> {
        let mut descriptors = self.descriptors.clone();
        loop {
            let texts = |pairs: &Vec<(String, String)>| {
                let texts = pairs.iter().flat_map(|(key, value)| [key, value]);
                Value::Array(texts.map(|text| Value::Text(text.clone())).collect())
            };
            let domain = Value::Text(self.domain.clone());
            let mut values =
                vec![domain, Value::Array(descriptors.iter().map(texts).collect()), self.cost.clone()];
            let priority = self.priority.clone().map_or(Value::Nil, Value::Text);
            if self.op != Op::Charge && (priority != Value::Nil || !self.options.is_empty()) {
                values.push(priority);
            }
            if !self.options.is_empty() {
                values.push(Value::Map(self.options.clone()));
            }
            let elements = Elements::new(&values);
            if elements.bytes.len() <= FRAME_BYTES_MAX - ID_ROOM {
                return Ok(elements);
            }
            let values = descriptors.iter_mut().flatten().map(|(_, value)| value);
            let longest = values.max_by_key(|value| value.len()).filter(|value| value.len() > DIGEST_BYTES);
            let longest = longest.ok_or_else(|| Fault::invalid("the request does not fit into a frame"))?;
            *longest = digest(longest, 0);
        }
    }
}

/// Appends a value in its shortest form.
pub(crate) fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Nil => out.push(0xc0),
        Value::Bool(of) => out.push(0xc2 + u8::from(*of)),
        Value::Unsigned(number) => head(out, 0x00, 128, &[0xcc, 0xcd, 0xce, 0xcf], *number),
        Value::Negative(number) => match number {
            -32.. => out.push(number.to_be_bytes()[7]),
            _ => {
                let width = [1_usize, 2, 4].into_iter().find(|width| *number >= -(1_i64 << (8 * width - 1)));
                let width = width.unwrap_or(8);
                out.push(0xd0 + u8::try_from(width.ilog2()).unwrap_or_default());
                out.extend(number.to_be_bytes().iter().skip(8 - width));
            }
        },
        Value::Text(text) => {
            head(out, 0xa0, 32, &[0xd9, 0xda, 0xdb], text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        }
        Value::Binary(bytes) => {
            head(out, 0, 0, &[0xc4, 0xc5, 0xc6], bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
        Value::Array(values) => {
            head(out, 0x90, 16, &[0, 0xdc, 0xdd], values.len() as u64);
            values.iter().for_each(|value| write(out, value));
        }
        Value::Map(entries) => {
            head(out, 0x80, 16, &[0, 0xde, 0xdf], entries.len() as u64);
            for (key, value) in entries {
                write(out, &Value::Text(key.clone()));
                write(out, value);
            }
        }
    }
}

/// Appends the head of a value: in one byte below `below`, else a code by width (1, 2, 4, 8; 0: not that width) and the number.
fn head(out: &mut Vec<u8>, short: u8, below: u64, codes: &[u8], number: u64) {
    if number < below {
        return out.push(short + u8::try_from(number).unwrap_or_default());
    }
    let fits = |width: u32| width >= 8 || number < 1 << (8 * width);
    let code = codes.iter().zip([1_u32, 2, 4, 8]).find(|(code, width)| **code > 0 && fits(*width));
    let (code, width) = code.unwrap_or((&0xc1, 0));
    out.push(*code);
    out.extend(number.to_be_bytes().iter().skip(8 - width as usize));
}

/// Decodes a payload, which is exactly one array.
///
/// # Errors
/// Anything that the protocol forbids.
pub(crate) fn decode(payload: &[u8]) -> Result<Vec<Value>, Fault> {
    let mut rest = payload;
    match read(&mut rest, DEPTH_MAX) {
        Some(Value::Array(values)) if rest.is_empty() => Ok(values),
        _ => Err(Fault::protocol("malformed frame: not exactly one array of valid values")),
    }
}

fn read(rest: &mut &[u8], depth: u8) -> Option<Value> {
    let first = take(rest, 1)?.first().copied()?;
    Some(match first {
        0x00..=0x7f => Value::Unsigned(first.into()),
        0x80..=0x8f => read_map(rest, u64::from(first & 15), depth)?,
        0x90..=0x9f => read_array(rest, u64::from(first & 15), depth)?,
        0xa0..=0xbf => read_text(rest, u64::from(first & 31))?,
        0xc0 => Value::Nil,
        0xc2 | 0xc3 => Value::Bool(first == 0xc3),
        0xc4..=0xc6 => {
            let length = read_number(rest, 1 << (first - 0xc4))?;
            Value::Binary(take(rest, length)?.to_vec())
        }
        0xcc..=0xcf => Value::Unsigned(read_number(rest, 1 << (first - 0xcc))?),
        0xd0..=0xd3 => {
            let bits = 8 << (first - 0xd0);
            let number = read_number(rest, bits / 8)?;
            signed((number << (64 - bits)).cast_signed() >> (64 - bits))
        }
        0xd9..=0xdb => {
            let length = read_number(rest, 1 << (first - 0xd9))?;
            read_text(rest, length)?
        }
        0xdc | 0xdd => {
            let count = read_number(rest, 2 << (first - 0xdc))?;
            read_array(rest, count, depth)?
        }
        0xde | 0xdf => {
            let count = read_number(rest, 2 << (first - 0xde))?;
            read_map(rest, count, depth)?
        }
        0xe0..=0xff => Value::Negative(first.cast_signed().into()),
        _ => return None,
    })
}

fn take<'b>(rest: &mut &'b [u8], count: u64) -> Option<&'b [u8]> {
    let (taken, after) = rest.split_at_checked(usize::try_from(count).ok()?)?;
    *rest = after;
    Some(taken)
}

fn read_number(rest: &mut &[u8], width: u64) -> Option<u64> {
    Some(take(rest, width)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

pub(crate) fn signed(number: i64) -> Value {
    u64::try_from(number).map_or(Value::Negative(number), Value::Unsigned)
}

fn read_text(rest: &mut &[u8], length: u64) -> Option<Value> {
    Some(Value::Text(str::from_utf8(take(rest, length)?).ok()?.to_owned()))
}

fn read_array(rest: &mut &[u8], count: u64, depth: u8) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    // Grows by what is there, not by the count.
    (0..count).map(|_| read(rest, depth)).collect::<Option<_>>().map(Value::Array)
}

fn read_map(rest: &mut &[u8], count: u64, depth: u8) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    let mut entries: Vec<(String, Value)> = Vec::new();
    for _ in 0..count {
        let Value::Text(key) = read(rest, depth)? else { return None };
        if entries.iter().any(|(known, _)| *known == key) {
            return None;
        }
        entries.push((key, read(rest, depth)?));
    }
    Some(Value::Map(entries))
}

/// Checks the name of a domain, pool, unit, signal or attribute.
pub(crate) fn is_name(name: &str) -> bool {
    let is_valid = |character: char| !character.is_control() && character != ':' && character != '/';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_valid)
}

/// Shortens a value above 1 024 bytes.
pub(crate) fn shorten_value(value: String) -> String {
    if value.len() > VALUE_BYTES_MAX { digest(&value, VALUE_BYTES_KEPT) } else { value }
}

/// Shortens an idempotency key above 64 bytes.
pub(crate) fn shorten_idem(key: &str) -> String {
    if key.len() > IDEM_BYTES_MAX { digest(key, IDEM_BYTES_KEPT) } else { key.to_owned() }
}

/// Returns at most `kept` bytes of the text, and the digest of all of it.
fn digest(text: &str, kept: usize) -> String {
    let kept = (0..=kept).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    let sum = Sha256::digest(text.as_bytes());
    let hex: String = sum.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{}~{hex}", text.get(..kept).unwrap_or_default())
}

pub(crate) const FRAME_BYTES_MAX: usize = 16_384;
pub(crate) const DESCRIPTORS_MAX: usize = 8;
pub(crate) const PAIRS_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 1_024;
const VALUE_BYTES_KEPT: usize = 960;
const IDEM_BYTES_MAX: usize = 64;
const IDEM_BYTES_KEPT: usize = 30;
/// `~` and 32 digits.
const DIGEST_BYTES: usize = 33;
/// The array, the op, and the longest id.
const ID_ROOM: usize = 11;
const DEPTH_MAX: u8 = 4;

#[cfg(test)]
pub(crate) mod tests;
