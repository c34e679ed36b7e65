//! One line of a trace: of JSON, deserialized in place, or of a test.

use std::borrow::Cow;
use std::fmt;

use arrayvec::ArrayVec;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::clock::Timestamp;
use crate::protocol::{DESCRIPTORS_MAX, PAIRS_MAX};

/// A line. Fields that an op does not need may be absent; unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct JsonLine<'a> {
    /// Seconds as a decimal, verbatim.
    #[serde(borrow)]
    pub(super) t: LineTimeText<'a>,
    pub(super) op: Option<JsonText<'a>>,
    /// Any JSON value, verbatim.
    pub(super) id: Option<&'a RawValue>,
    pub(super) domain: Option<JsonText<'a>>,
    pub(crate) descriptors: Option<DescriptorTexts<'a>>,
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
        let mut descriptors = DescriptorTexts::default();
        descriptors.begin();
        JsonLine { descriptors: Some(descriptors), ..JsonLine::default() }
    }
}

/// The time of a line, verbatim; of a line of a test `null`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct LineTimeText<'a>(#[serde(borrow)] pub(super) &'a RawValue);

impl Default for LineTimeText<'_> {
    fn default() -> Self {
        LineTimeText(RawValue::NULL)
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

/// The strings of all descriptors in one list, and where each descriptor ends.
#[derive(Debug, Default)]
pub(crate) struct DescriptorTexts<'a> {
    texts: Vec<JsonText<'a>>,
    ends: ArrayVec<usize, DESCRIPTORS_MAX>,
    /// Set when there were more than `DESCRIPTORS_MAX`.
    too_many: bool,
}

impl<'a> DescriptorTexts<'a> {
    /// Appends an empty descriptor.
    pub(crate) fn begin(&mut self) {
        self.too_many |= self.ends.try_push(self.texts.len()).is_err();
    }

    /// Appends a pair to the last descriptor.
    pub(crate) fn push(&mut self, key: JsonText<'a>, value: JsonText<'a>) {
        self.texts.extend([key, value]);
        self.ends.last_mut().into_iter().for_each(|end| *end = self.texts.len());
    }

    /// The descriptors, each as alternating keys and values; `None` if there are too many.
    pub(super) fn each(&self) -> Option<impl Iterator<Item = &[JsonText<'a>]>> {
        let mut start = 0;
        let each = self
            .ends
            .iter()
            .map(move |end| self.texts.get(std::mem::replace(&mut start, *end)..*end).unwrap_or_default());
        (!self.too_many).then_some(each)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for DescriptorTexts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Descriptors;

        impl<'de> Visitor<'de> for Descriptors {
            type Value = DescriptorTexts<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of lists of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<DescriptorTexts<'de>, A::Error> {
                let texts = Vec::with_capacity(TEXTS_USUAL);
                let mut read = DescriptorTexts { texts, ends: ArrayVec::new(), too_many: false };
                while list.next_element_seed(Descriptor(&mut read.texts))?.is_some() {
                    read.too_many |= read.ends.try_push(read.texts.len()).is_err();
                }
                Ok(read)
            }
        }

        deserializer.deserialize_seq(Descriptors)
    }
}

/// Appends one descriptor to the strings of those before it.
struct Descriptor<'t, 'a>(&'t mut Vec<JsonText<'a>>);

impl<'de: 'a, 'a> serde::de::DeserializeSeed<'de> for Descriptor<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Descriptor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of texts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(text) = list.next_element()? {
            self.0.push(text);
        }
        Ok(())
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

/// Room for one typical descriptor.
const TEXTS_USUAL: usize = 2 * PAIRS_MAX;

const PLACES_MAX: usize = 9;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
