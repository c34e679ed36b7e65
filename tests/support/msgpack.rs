//! The subset of MessagePack that the protocol needs, to and from JSON values.

use serde_json::{Map, Value};

/// A frame of one value.
pub(crate) fn frame(value: &Value) -> Vec<u8> {
    let mut payload = Vec::new();
    write(value, &mut payload);
    framed(&payload)
}

/// A frame of these bytes.
pub(crate) fn framed(payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes().to_vec();
    frame.extend_from_slice(payload);
    frame
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
        Value::Number(number) => {
            if let Some(small) = number.as_u64().filter(|number| *number < 0x80) {
                out.push(u8::try_from(small).unwrap());
            } else if let Some(number) = number.as_u64() {
                out.push(0xcf);
                out.extend_from_slice(&number.to_be_bytes());
            } else {
                out.push(0xd3);
                out.extend_from_slice(&number.as_i64().unwrap().to_be_bytes());
            }
        }
        Value::String(text) => {
            out.push(0xda);
            out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        Value::Array(values) => {
            out.push(0xdc);
            out.extend_from_slice(&u16::try_from(values.len()).unwrap().to_be_bytes());
            values.iter().for_each(|value| write(value, out));
        }
        Value::Object(pairs) if pairs.len() == 1 && pairs.contains_key("bin") => {
            // Binary data, in the notation of the golden frames, as JSON has none.
            let bytes = hex(pairs["bin"].as_str().unwrap());
            out.extend_from_slice(&[0xc4, u8::try_from(bytes.len()).unwrap()]);
            out.extend_from_slice(&bytes);
        }
        Value::Object(pairs) => {
            out.push(0xde);
            out.extend_from_slice(&u16::try_from(pairs.len()).unwrap().to_be_bytes());
            for (key, value) in pairs {
                write(&Value::from(key.as_str()), out);
                write(value, out);
            }
        }
    }
}

fn hex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Decodes exactly one value.
pub(crate) fn read(payload: &[u8]) -> Value {
    let mut rest = payload;
    let value = read_value(&mut rest);
    assert!(rest.is_empty(), "bytes follow the value: {payload:02x?}");
    value
}

fn read_value(rest: &mut &[u8]) -> Value {
    let kind = take(rest, 1)[0];
    match kind {
        0x00..=0x7f => Value::from(kind),
        0x80..=0x8f => read_map(rest, usize::from(kind & 0x0f)),
        0x90..=0x9f => read_array(rest, usize::from(kind & 0x0f)),
        0xa0..=0xbf => read_text(rest, usize::from(kind & 0x1f)),
        0xc0 => Value::Null,
        0xc2 | 0xc3 => Value::from(kind == 0xc3),
        0xcc..=0xcf => Value::from(read_unsigned(rest, 1 << (kind - 0xcc))),
        0xd9..=0xdb => {
            let length = read_unsigned(rest, 1 << (kind - 0xd9));
            read_text(rest, usize::try_from(length).unwrap())
        }
        0xdc => {
            let length = read_unsigned(rest, 2);
            read_array(rest, usize::try_from(length).unwrap())
        }
        _ => panic!("no reply has a {kind:#x}"),
    }
}

fn read_unsigned(rest: &mut &[u8], bytes: usize) -> u64 {
    take(rest, bytes).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn read_text(rest: &mut &[u8], length: usize) -> Value {
    Value::from(std::str::from_utf8(take(rest, length)).unwrap())
}

fn read_array(rest: &mut &[u8], length: usize) -> Value {
    Value::Array((0..length).map(|_| read_value(rest)).collect())
}

fn read_map(rest: &mut &[u8], length: usize) -> Value {
    let pairs = (0..length).map(|_| (read_value(rest).as_str().unwrap().to_owned(), read_value(rest)));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> &'a [u8] {
    let (taken, left) = rest.split_at(bytes);
    *rest = left;
    taken
}
