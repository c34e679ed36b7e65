//! `struct.pack` and `struct.unpack` for the fields of the scripts: little-endian integers.

/// Packs numbers. Panics if one is no integer, is beyond the integers that Lua counts without gaps, or does not fit its field.
pub(crate) fn pack(format: &[u8], numbers: &[f64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 * numbers.len());
    let mut numbers = numbers.iter();
    for (width, is_signed) in fields(format) {
        let number = *numbers.next().unwrap();
        let whole = number as i64;
        assert!(whole as f64 == number && whole.unsigned_abs() <= EXACT_MAX, "{number} is not exact");
        let fits = width == 8
            || if is_signed { whole.abs() >> (8 * width - 1) == 0 } else { whole >> (8 * width) == 0 };
        assert!(fits, "{number} does not fit {width} bytes");
        bytes.extend_from_slice(&whole.to_le_bytes()[..width]);
    }
    assert!(numbers.next().is_none(), "more numbers than fields");
    bytes
}

/// Returns the numbers of a format that begins at the byte `at`, counted from 1, and where the next one begins.
pub(crate) fn unpack(format: &[u8], bytes: &[u8], at: usize) -> Vec<f64> {
    let mut numbers = Vec::with_capacity(format.len() / 2 + 1);
    let mut rest = &bytes[at - 1..];
    for (width, is_signed) in fields(format) {
        let (field, after) = rest.split_at(width);
        let is_negative = is_signed && field[width - 1] > 0x7f;
        let mut whole = [if is_negative { 0xff } else { 0 }; 8];
        whole[..width].copy_from_slice(field);
        numbers.push(i64::from_le_bytes(whole) as f64);
        rest = after;
    }
    numbers.push((bytes.len() - rest.len() + 1) as f64);
    numbers
}

/// The fields of a format: their width in bytes, and whether they are signed.
fn fields(format: &[u8]) -> impl Iterator<Item = (usize, bool)> {
    assert_eq!(format[0], b'<');
    format[1..].chunks(2).map(|field| match field {
        b"i8" => (8, true),
        b"i4" => (4, true),
        b"I4" => (4, false),
        b"I1" => (1, false),
        _ => panic!("a field {field:?}"),
    })
}

/// The largest integer up to which Lua counts without gaps.
const EXACT_MAX: u64 = 1 << 53;
