//! What an application says about a request: attributes and costs.

use std::collections::HashSet;

use crate::fault::Fault;
use crate::wire::{DESCRIPTORS_MAX, PAIRS_MAX, Value, is_name, shorten_value, signed};

/// Names and values of a request, in this order. Empty values are not sent.
///
/// ```
/// use tidegate_client::Attributes;
/// let attributes = Attributes::from([("user", "u1")]).with("path", "/v1/charges");
/// # let _ = attributes;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    descriptors: Vec<Vec<(String, String)>>,
}

impl Attributes {
    /// Adds an attribute to the last descriptor.
    #[must_use]
    #[allow(clippy::needless_pass_by_value, reason = "callers write a text or a number")]
    pub fn with(mut self, name: impl Into<String>, value: impl ToString) -> Attributes {
        let pair = (name.into(), value.to_string());
        match self.descriptors.last_mut() {
            Some(descriptor) => descriptor.push(pair),
            None => self.descriptors.push(vec![pair]),
        }
        self
    }

    /// Begins a further descriptor, for descriptor trees.
    #[must_use]
    pub fn and(mut self, descriptor: impl Into<Attributes>) -> Attributes {
        self.descriptors.extend(descriptor.into().descriptors);
        self
    }

    /// Returns the descriptors as they are sent.
    pub(crate) fn checked(self) -> Result<Vec<Vec<(String, String)>>, Fault> {
        let mut descriptors = self.descriptors;
        for descriptor in &mut descriptors {
            descriptor.retain(|(_, value)| !value.is_empty());
            let pairs = std::mem::take(descriptor).into_iter();
            *descriptor = pairs.map(|(name, value)| (name, shorten_value(value))).collect();
            check_names(descriptor.iter().map(|(name, _)| &**name))?;
            if descriptor.len() > PAIRS_MAX {
                return Err(Fault::invalid(format!("more than {PAIRS_MAX} attributes")));
            }
        }
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(Fault::invalid(format!("more than {DESCRIPTORS_MAX} descriptors")));
        }
        Ok(descriptors)
    }
}

impl<K: Into<String>, V: ToString> FromIterator<(K, V)> for Attributes {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Attributes {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.to_string()));
        Attributes { descriptors: vec![pairs.collect()] }
    }
}

impl<K: Into<String>, V: ToString, const N: usize> From<[(K, V); N]> for Attributes {
    fn from(pairs: [(K, V); N]) -> Attributes {
        pairs.into_iter().collect()
    }
}

impl<K: Into<String>, V: ToString> From<Vec<(K, V)>> for Attributes {
    fn from(pairs: Vec<(K, V)>) -> Attributes {
        pairs.into_iter().collect()
    }
}

/// A request without attributes.
impl From<()> for Attributes {
    fn from((): ()) -> Attributes {
        Attributes::default()
    }
}

/// A cost: a number of requests, or a number for each unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost(pub(crate) Value);

impl From<u64> for Cost {
    fn from(requests: u64) -> Cost {
        Cost(Value::Unsigned(requests))
    }
}

impl<const N: usize> From<[(&str, u64); N]> for Cost {
    fn from(units: [(&str, u64); N]) -> Cost {
        Cost(Value::Map(
            units.into_iter().map(|(unit, cost)| (unit.to_owned(), Value::Unsigned(cost))).collect(),
        ))
    }
}

/// The amount of a charge, as [`Cost`]; a negative one is a refund.
#[derive(Clone, Debug, PartialEq)]
pub struct Amount(pub(crate) Value);

impl From<i64> for Amount {
    fn from(requests: i64) -> Amount {
        Amount(signed(requests))
    }
}

impl<const N: usize> From<[(&str, i64); N]> for Amount {
    fn from(units: [(&str, i64); N]) -> Amount {
        Amount(Value::Map(
            units.into_iter().map(|(unit, amount)| (unit.to_owned(), signed(amount))).collect(),
        ))
    }
}

/// Checks the names of units, if there are some. A frame holds each once, else it is malformed.
pub(crate) fn check_units(cost: &Value) -> Result<(), Fault> {
    let Value::Map(units) = cost else { return Ok(()) };
    let names: HashSet<&str> = units.iter().map(|(unit, _)| &**unit).collect();
    if names.len() < units.len() {
        return Err(Fault::invalid("a cost has a unit twice"));
    }
    check_names(names.into_iter())
}

pub(crate) fn check_names<'n>(mut names: impl Iterator<Item = &'n str>) -> Result<(), Fault> {
    if names.all(is_name) {
        return Ok(());
    }
    Err(Fault::invalid("a name has 1 to 64 bytes, without control characters, `:` and `/`"))
}

/// Names the attributes of a request, in a sentence.
pub(crate) fn name_attributes(descriptors: &[Vec<(String, String)>]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in descriptors.iter().flatten() {
        if !names.contains(&&**name) {
            names.push(name);
        }
    }
    match &*names {
        [] => "without attributes".to_owned(),
        names => format!("with the attributes {}", names.join(", ")),
    }
}
