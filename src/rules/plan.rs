//! Compiled conditions and key of a rule, with attributes as numbers.

use arrayvec::ArrayVec;

use super::matcher::Matcher;
use super::{Condition, KeyPart};

/// The number of an attribute that some rule uses.
pub(super) type AttributeId = usize;

#[derive(Debug, Default)]
pub(super) struct SelectionPlan {
    pub(super) conditions: Vec<SelectionStep>,
    pub(super) key: Vec<AttributeId>,
}

#[derive(Debug)]
pub(super) struct SelectionStep {
    pub(super) attribute: AttributeId,
    pub(super) or_absent: bool,
    matcher: Matcher,
}

/// The attributes of one request that some rule uses: the first value of each name.
#[derive(Debug, Default)]
pub struct Selection<'a> {
    pub(super) values: ArrayVec<(AttributeId, &'a str), ATTRIBUTES_MAX>,
}

impl SelectionPlan {
    pub(super) fn new(
        conditions: &[Condition],
        key: &[KeyPart],
        mut intern: impl FnMut(&str) -> AttributeId,
    ) -> SelectionPlan {
        let asked = |condition: &Condition| SelectionStep {
            attribute: intern(&condition.attribute),
            or_absent: condition.or_absent,
            matcher: Matcher::new(&condition.any_of),
        };
        let conditions = conditions.iter().map(asked).collect();
        SelectionPlan { conditions, key: key.iter().map(|part| intern(&part.attribute)).collect() }
    }

    #[inline]
    pub(super) fn matches(&self, selection: &Selection<'_>) -> bool {
        let has = |attribute: &AttributeId| selection.value(*attribute).is_some();
        self.key.iter().all(has)
            && self.conditions.iter().all(|asked| match selection.value(asked.attribute) {
                Some(value) => asked.matcher.holds(value),
                None => asked.or_absent,
            })
    }

    pub(super) fn asks_only_for(&self, attribute: AttributeId) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.all(|asked| asked.attribute == attribute)
            && self.key.iter().all(|asked| *asked == attribute)
    }

    /// Returns the attributes that a matching request must have.
    pub(super) fn needed(&self) -> impl Iterator<Item = AttributeId> + '_ {
        let conditions = self.conditions.iter().filter(|asked| !asked.or_absent);
        conditions.map(|asked| asked.attribute).chain(self.key.iter().copied())
    }
}

impl<'a> Selection<'a> {
    /// Returns the value of an attribute; an empty one is absent.
    #[inline]
    pub(super) fn value(&self, attribute: AttributeId) -> Option<&'a str> {
        let found = self.values.iter().find(|(known, _)| *known == attribute);
        found.map(|(_, value)| *value).filter(|value| !value.is_empty())
    }
}

/// The maximum of one request: 8 descriptors of 16 pairs.
const ATTRIBUTES_MAX: usize = 128;
