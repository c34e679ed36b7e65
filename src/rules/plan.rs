//! Compiled conditions and key of a rule, with attributes as numbers.

use arrayvec::ArrayVec;

use super::finder::{Anchor, Finder};
use super::{Condition, Glob, KeyPart, Pattern, fold};

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
        let step = |condition: &Condition| SelectionStep {
            attribute: intern(&condition.attribute),
            or_absent: condition.or_absent,
            matcher: Matcher::new(&condition.any_of),
        };
        let conditions = conditions.iter().map(step).collect();
        SelectionPlan { conditions, key: key.iter().map(|part| intern(&part.attribute)).collect() }
    }

    #[inline]
    pub(super) fn matches(&self, selection: &Selection<'_>) -> bool {
        let has = |attribute: &AttributeId| selection.value(*attribute).is_some();
        self.key.iter().all(has)
            && self.conditions.iter().all(|step| match selection.value(step.attribute) {
                Some(value) => step.matcher.holds(value),
                None => step.or_absent,
            })
    }

    pub(super) fn asks_only_for(&self, attribute: AttributeId) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.all(|step| step.attribute == attribute) && self.key.iter().all(|step| *step == attribute)
    }

    /// Returns the attributes that a matching request must have.
    pub(super) fn needed(&self) -> impl Iterator<Item = AttributeId> + '_ {
        let conditions = self.conditions.iter().filter(|step| !step.or_absent);
        conditions.map(|step| step.attribute).chain(self.key.iter().copied())
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

/// Matches a value that matches any of its patterns.
#[derive(Debug, Default)]
struct Matcher {
    /// Compared one by one.
    few: Vec<Pattern>,
    /// Globs without regard to case that are not in `many`. The value is lowercased once for all.
    any_case: Vec<Glob>,
    /// The negated patterns, one matcher for each [`Pattern::Not`].
    not: Vec<Matcher>,
    /// Patterns with an anchor, if there are more than [`COMPARED_MAX`] patterns.
    many: Option<Box<Finder<Pattern>>>,
}

impl Matcher {
    fn new(patterns: &[Pattern]) -> Matcher {
        let mut matcher = Matcher::default();
        let is_many = patterns.len() > COMPARED_MAX;
        let mut many = Vec::new();
        for pattern in patterns {
            match (pattern, Anchor::of(pattern)) {
                (_, Some((anchor, _))) if is_many => many.push((anchor, pattern.clone())),
                (Pattern::Not(patterns), _) => matcher.not.push(Matcher::new(patterns)),
                (Pattern::AnyCase(glob), _) => matcher.any_case.push(glob.clone()),
                _ => matcher.few.push(pattern.clone()),
            }
        }
        matcher.many = (!many.is_empty()).then(|| Box::new(Finder::new(many)));
        matcher
    }

    /// Whether the value, which is not empty, matches.
    #[inline]
    fn holds(&self, value: &str) -> bool {
        self.few.iter().any(|pattern| pattern.holds(value)) || self.holds_otherwise(value)
    }

    fn holds_otherwise(&self, value: &str) -> bool {
        let found = |many: &Finder<Pattern>| {
            many.any(value, |patterns| patterns.iter().any(|pattern| pattern.holds(value)))
        };
        self.not.iter().any(|matcher| !matcher.holds(value))
            || self.many.as_deref().is_some_and(found)
            || !self.any_case.is_empty()
                && fold::with_lowercase(value, |value| self.any_case.iter().any(|glob| glob.matches(value)))
    }
}

/// The maximum of one request: 8 descriptors of 16 pairs.
const ATTRIBUTES_MAX: usize = 128;

/// Up to this number, comparing all costs no more than a lookup.
const COMPARED_MAX: usize = 8;
