//! Values in bodies of JSON. Input fails no request: lone surrogates and bytes that are not UTF-8 are replaced, numbers beyond
//! 64 bits become the largest, and of equal names of attributes or units the first counts. A repeated field is an error.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Names and their values, in order.
pub(super) type NamedTexts = Vec<(String, String)>;

pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    LossyText::deserialize(deserializer).map(|LossyText(text)| text)
}

pub(super) fn optional_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<LossyText>::deserialize(deserializer)?.map(|LossyText(text)| text))
}

pub(super) fn named_texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NamedTexts, D::Error> {
    let JsonObject(texts) = JsonObject::<Option<LossyText>>::deserialize(deserializer)?;
    Ok(texts.into_iter().map(|(name, text)| (name, present(text))).collect())
}

pub(super) fn descriptors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NamedTexts>, D::Error> {
    let read: Vec<Vec<(LossyText, Option<LossyText>)>> = Deserialize::deserialize(deserializer)?;
    let texts = |pairs: Vec<(LossyText, Option<LossyText>)>| {
        pairs.into_iter().map(|(name, value)| (name.0, present(value))).collect()
    };
    Ok(read.into_iter().map(texts).collect())
}

/// Returns the text of a value; `null` is as an empty one, which counts as absent.
fn present(value: Option<LossyText>) -> String {
    value.map_or_else(String::new, |LossyText(text)| text)
}

// A number of requests, or of each unit.
#[derive(Debug, JsonSchema)]
#[schemars(untagged, inline)]
pub(super) enum Units<N> {
    Requests(N),
    Each(#[schemars(with = "BTreeMap<String, N>")] Vec<(String, N)>),
}

pub(super) trait WholeNumber: FromStr {
    const EXPECTED: &str;

    /// The values of numbers below and above the type; `None`: such a number is a fault.
    const BEYOND: [Option<Self>; 2];
}

impl WholeNumber for u64 {
    const EXPECTED: &str = "a cost is a whole number of 0 or more, or a map from units to such numbers";
    const BEYOND: [Option<u64>; 2] = [None, Some(u64::MAX)];
}

impl WholeNumber for i64 {
    const EXPECTED: &str = "an amount is a whole number, or a map from units to such numbers";
    const BEYOND: [Option<i64>; 2] = [Some(i64::MIN), Some(i64::MAX)];
}

fn whole_number<N: WholeNumber>(digits: &str) -> Option<N> {
    digits.parse().ok().or_else(|| {
        // Every such number of JSON is whole, or infinite.
        let number = digits.parse::<f64>().ok().filter(|number| number.abs() >= 9.2e18)?;
        let [below, above] = N::BEYOND;
        if number < 0.0 { below } else { above }
    })
}

impl<'de, N: WholeNumber> Deserialize<'de> for Units<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Units<N>, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?.get();
        let number = |digits: &str| whole_number(digits).ok_or_else(|| D::Error::custom(N::EXPECTED));
        if !text.starts_with('{') {
            return number(text).map(Units::Requests);
        }
        let JsonObject(units) =
            serde_json::from_str::<JsonObject<&RawValue>>(text).map_err(D::Error::custom)?;
        let units = units.into_iter().map(|(unit, digits)| Ok((unit, number(digits.get())?)));
        units.collect::<Result<_, _>>().map(Units::Each)
    }
}

struct LossyText(String);

impl<'de> Deserialize<'de> for LossyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LossyText, D::Error> {
        struct TextVisitor;

        impl Visitor<'_> for TextVisitor {
            type Value = LossyText;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<LossyText, E> {
                Ok(LossyText(text.to_owned()))
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<LossyText, E> {
                Ok(LossyText(String::from_utf8_lossy(bytes).into_owned()))
            }
        }

        // As bytes, serde_json takes surrogates and other bytes.
        deserializer.deserialize_bytes(TextVisitor)
    }
}

struct JsonObject<V>(Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for JsonObject<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonObject<V>, D::Error> {
        struct ObjectVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for ObjectVisitor<V> {
            type Value = JsonObject<V>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonObject<V>, A::Error> {
                let (mut named, mut count) = (Vec::new(), 0);
                while let Some((LossyText(name), value)) = map.next_entry()? {
                    count += 1;
                    if count > NAMES_MAX {
                        return Err(A::Error::custom(format!("an object has at most {NAMES_MAX} names")));
                    }
                    if !named.iter().any(|(known, _)| *known == name) {
                        named.push((name, value));
                    }
                }
                Ok(JsonObject(named))
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Some times the attributes of a request, as some may be empty: more are not worth their time.
const NAMES_MAX: usize = 4 * crate::protocol::PAIRS_MAX;
