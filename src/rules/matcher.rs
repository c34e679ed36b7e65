//! The values of a condition, put so that a request's value is compared with few of them however many there are.

use super::finder::{Anchor, Finder};
use super::{Glob, Pattern, fold};

/// What values are meant: any of some patterns.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    /// Compared one by one.
    few: Vec<Pattern>,
    /// Those of which the case is ignored and that nothing else tells apart: the value is put in lower case once.
    any_case: Vec<Glob>,
    /// The values that are not meant, for each pattern that names some.
    not: Vec<Matcher>,
    /// Where there are many: those that a value could be found by.
    many: Option<Box<Finder<Pattern>>>,
}

impl Matcher {
    pub(super) fn new(patterns: &[Pattern]) -> Matcher {
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

    /// Whether the value is meant, which is not empty.
    #[inline]
    pub(super) fn holds(&self, value: &str) -> bool {
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

/// Comparing so many values costs no more than finding one.
const COMPARED_MAX: usize = 8;
