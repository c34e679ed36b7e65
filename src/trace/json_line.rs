//! One line of a trace: of JSON, deserialized in place, or of a test.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::clock::Timestamp;

/// A line. Fields that an op does not need may be absent; unknown fields are ignored.
#[derive(Debug, Deserialize)]
pub(crate) struct JsonLine<'a> {
    /// Seconds as a decimal, verbatim; of a test `null`.
    #[serde(borrow)]
    pub(super) t: &'a RawValue,
    pub(super) op: Option<JsonText<'a>>,
    /// Any JSON value, verbatim.
    pub(super) id: Option<&'a RawValue>,
    pub(super) domain: Option<JsonText<'a>>,
    /// Each as alternating keys and values.
    pub(crate) descriptors: Option<JsonList<JsonList<JsonText<'a>>>>,
    pub(crate) cost: Option<Quantity<'a>>,
    pub(crate) priority: Option<JsonText<'a>>,
    pub(crate) idem: Option<JsonText<'a>>,
    /// The `idem` that a charge refunds.
    pub(crate) of: Option<JsonText<'a>>,
    /// The `id` of the request that a charge refunds.
    pub(super) of_id: Option<&'a RawValue>,
    pub(crate) queued_us: Option<u64>,
    pub(crate) max_wait_us: Option<u64>,
    pub(crate) session: Option<JsonText<'a>>,
    pub(super) pool: Option<JsonText<'a>>,
    pub(super) slots: Option<u32>,
    pub(super) outcome: Option<JsonText<'a>>,
    pub(super) name: Option<JsonText<'a>>,
    pub(super) permille: Option<u64>,
    pub(crate) amount: Option<Quantity<'a>>,
    pub(super) rules: Option<JsonText<'a>>,
}

impl JsonLine<'_> {
    /// Returns a line with one empty descriptor and no other field.
    pub(crate) fn of_subject() -> Self {
        let line = serde_json::from_str(r#"{"t": null, "descriptors": [[]]}"#);
        line.unwrap_or_else(|error| unreachable!("{error} in a line of a subject"))
    }
}

/// A string, borrowed if it has no escapes.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct JsonText<'a>(#[serde(borrow)] Cow<'a, str>);

impl From<&str> for JsonText<'_> {
    fn from(text: &str) -> Self {
        JsonText(Cow::Owned(text.to_owned()))
    }
}

impl std::ops::Deref for JsonText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A list, whose elements say what is expected where there is none.
#[derive(Debug)]
pub(crate) struct JsonList<T>(pub(crate) Vec<T>);

pub(crate) trait JsonElement {
    const LIST: &'static str;
}

impl JsonElement for JsonText<'_> {
    const LIST: &'static str = "a list of texts";
}

impl JsonElement for JsonList<JsonText<'_>> {
    const LIST: &'static str = "a list of lists of texts";
}

impl<'de, T: JsonElement + Deserialize<'de>> Deserialize<'de> for JsonList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);

        impl<'de, T: JsonElement + Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
            type Value = JsonList<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::LIST)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonList<T>, A::Error> {
                let elements = std::iter::from_fn(|| list.next_element().transpose());
                elements.collect::<Result<_, _>>().map(JsonList)
            }
        }

        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

/// A cost or an amount: in requests, or by unit. Values beyond 64 bits are clamped; rules count far less.
#[derive(Debug)]
pub(crate) enum Quantity<'a> {
    Requests(i64),
    Units(Vec<(JsonText<'a>, i64)>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Quantity<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct QuantityVisitor;

        impl<'de> Visitor<'de> for QuantityVisitor {
            type Value = Quantity<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(QUANTITY)
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Quantity<'de>, E> {
                Ok(Quantity::Requests(i64::try_from(number).unwrap_or(i64::MAX)))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Quantity<'de>, E> {
                Ok(Quantity::Requests(number))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Quantity<'de>, A::Error> {
                let mut units: Vec<(JsonText<'de>, i64)> = Vec::new();
                while let Some((unit, number)) = map.next_entry::<JsonText<'de>, i128>()? {
                    let number = number.clamp(i64::MIN.into(), i64::MAX.into());
                    units.push((unit, i64::try_from(number).unwrap_or_default()));
                }
                Ok(Quantity::Units(units))
            }
        }

        deserializer.deserialize_any(QuantityVisitor)
    }
}

/// Parses seconds with at most 9 decimal places exactly, without floats.
pub(super) fn time(text: &str) -> Option<Timestamp> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_written_out = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || decimals.len() > PLACES_MAX || !is_written_out(whole) || !is_written_out(decimals)
    {
        return None;
    }
    let fraction = decimals.bytes().chain(std::iter::repeat(b'0')).take(PLACES_MAX);
    let fraction = fraction.fold(0, |nanos, digit| nanos * 10 + u64::from(digit - b'0'));
    let nanos = whole.parse::<u64>().ok()?.checked_mul(NANOS_PER_SECOND)?.checked_add(fraction)?;
    Some(Timestamp::from_nanos(nanos))
}

const QUANTITY: &str = "an integer, or a map of unit names to integers";

const PLACES_MAX: usize = 9;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
