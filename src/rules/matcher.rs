//! The compiled patterns of a condition: few comparisons per value even with many patterns.

use super::finder::{Anchor, Finder};
use super::{Glob, Pattern, fold};

/// Matches a value that matches any of its patterns.
#[derive(Debug, Default)]
pub(super) struct Matcher {
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

    /// Whether the value, which is not empty, matches.
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

/// Up to this number, comparing all costs no more than a lookup.
const COMPARED_MAX: usize = 8;
