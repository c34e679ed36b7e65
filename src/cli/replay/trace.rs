//! One line of a trace, as it is written.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::clock::Timestamp;

/// A line. What an op does not need may be absent; what is not known is passed over.
#[derive(Debug, Deserialize)]
pub(super) struct Line<'a> {
    /// Seconds as a decimal; kept as written.
    #[serde(borrow)]
    pub(super) t: &'a RawValue,
    #[serde(borrow, default)]
    pub(super) op: Option<Cow<'a, str>>,
    /// Any JSON value; kept as written.
    #[serde(borrow, default)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) domain: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) descriptors: Option<Vec<Vec<Text<'a>>>>,
    #[serde(default)]
    pub(super) cost: Option<Cost>,
    #[serde(borrow, default)]
    pub(super) priority: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) idem: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) queued_us: Option<u64>,
    #[serde(default)]
    pub(super) max_wait_us: Option<u64>,
}

/// A text that is borrowed where it holds no escapes.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// A cost in requests, or by unit.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Cost {
    Requests(u32),
    Units(std::collections::BTreeMap<String, u32>),
}

/// Reads seconds with at most nine places, exactly: no float has a part in it.
pub(super) fn time(text: &str) -> Option<Timestamp> {
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    let is_written_out = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || places.len() > PLACES_MAX || !is_written_out(whole) || !is_written_out(places) {
        return None;
    }
    let fraction = places.bytes().chain(std::iter::repeat(b'0')).take(PLACES_MAX);
    let fraction = fraction.fold(0, |nanos, digit| nanos * 10 + u64::from(digit - b'0'));
    let nanos = whole.parse::<u64>().ok()?.checked_mul(NANOS_PER_SECOND)?.checked_add(fraction)?;
    Some(Timestamp::from_nanos(nanos))
}

const PLACES_MAX: usize = 9;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::time;
    use crate::clock::Timestamp;

    #[test]
    fn seconds_are_read_exactly() {
        let table = [
            ("0", Some(0)),
            ("0.5", Some(500_000_000)),
            ("1.000000001", Some(1_000_000_001)),
            ("0.1", Some(100_000_000)),
            ("1732186800.123456789", Some(1_732_186_800_123_456_789)),
            ("1.0000000001", None),
            ("1e3", None),
            ("-1", None),
            ("\"1\"", None),
            ("null", None),
            (".5", None),
            ("18446744073.709551615", Some(u64::MAX)),
            ("18446744073.709551616", None),
        ];
        for (text, nanos) in table {
            assert_eq!(time(text).map(Timestamp::as_nanos), nanos, "{text}");
        }
    }
}
