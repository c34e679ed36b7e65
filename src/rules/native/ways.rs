//! Where an entry leads on one level of a tree, in the words of `match`: for each node the values that lead to it.
//!
//! A tree looks for the very text first, then for patterns in file order, then for the bare key, and never goes back. A rule
//! is looked at alone: so each says besides its own values which of them others take before it.

use super::text::{list, scalar};
use crate::rules::Glob;
use crate::rules::meaning::{VALUE_BYTES_MAX, VALUES_MAX};
use crate::rules::tree::Branch;

/// A node that an entry may lead to.
pub(super) struct Way<'b> {
    pub(super) node: &'b Branch,
    pub(super) values: Values,
    /// It counts apart for each value that leads here.
    pub(super) apart: bool,
}

/// The values of an attribute that lead to a node.
#[derive(Clone, Debug)]
pub(super) enum Values {
    /// All of them.
    All,
    /// Those of which this holds, as it stands in `match`.
    Matching(String),
    /// Those of which this holds, without what is taken before.
    Except(String, Except),
    /// No rule can say which, and why.
    Unsaid(&'static str),
}

/// What fits a pattern and leads elsewhere.
#[derive(Clone, Debug)]
pub(super) struct Except {
    /// As a value of `match`.
    pub(super) values: String,
    /// A value among them that does lead here: the text of the pattern, which another pattern fits.
    pub(super) but: Option<String>,
}

/// The nodes of a level that an entry with this key may lead to, which has no star.
pub(super) fn ways<'b>(level: &'b [Branch], key: &str) -> Vec<Way<'b>> {
    let exact: Vec<(&str, &Branch)> =
        level.iter().filter_map(|node| Some((value_behind(&node.text, key)?, node))).collect();
    let plain = exact.iter().filter(|(_, node)| !node.text.contains('*'));
    // No request has a longer one.
    let plain = plain.filter(|(value, _)| value.len() <= VALUE_BYTES_MAX);
    let mut ways: Vec<Way<'b>> = plain
        .map(|(value, node)| Way { node, values: Values::Matching(literal(value)), apart: false })
        .collect();
    let mut before = Before { exact: &exact, patterns: Vec::new(), unsaid: None };
    for node in level.iter().filter(|node| node.text.contains('*')) {
        let Some(pattern) = pattern(&node.text, key) else { continue };
        let own = exact.iter().find(|(_, other)| std::ptr::eq(*other, node)).map(|(value, _)| *value);
        ways.extend(before.by_pattern(node, own, pattern).map(|values| Way {
            node,
            values,
            apart: !node.share,
        }));
        match pattern {
            Ok(text) => before.patterns.push(Pattern { text, glob: Glob::without_escapes(text) }),
            Err(why) => before.unsaid = before.unsaid.or(Some(why)),
        }
    }
    let bare = level.iter().find(|node| *node.text == *key);
    ways.extend(bare.and_then(|node| Some(Way { node, values: before.by_key()?, apart: true })));
    ways
}

/// The value that an entry with this key has whose text is that of a node; an empty one is never sent.
fn value_behind<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.strip_prefix(key)?.strip_prefix('_').filter(|value| !value.is_empty())
}

/// The pattern that the value of an entry with this key must fit, for its text to fit that of a node; none if no text does.
fn pattern<'t>(text: &'t str, key: &str) -> Option<Result<&'t str, &'static str>> {
    if let Some(pattern) = value_behind(text, key) {
        return Some(match pattern {
            _ if pattern.contains("\\*") => Err("`match` takes a star behind a backslash for no pattern"),
            _ if pattern.len() > VALUE_BYTES_MAX => Err("its pattern is longer than any value"),
            _ => Ok(pattern),
        });
    }
    // Where its first star stands before the value begins.
    let (start, rest) = text.split_once('*')?;
    let entry = format!("{key}_");
    entry.starts_with(start).then(|| match rest.chars().all(|character| character == '*') {
        true => Ok("*"),
        false => Err("the star of a pattern beside it or above it begins in the key"),
    })
}

/// What the entry has been looked up by before.
struct Before<'b, 't> {
    /// The values that are the text of a node.
    exact: &'t [(&'b str, &'b Branch)],
    patterns: Vec<Pattern<'b>>,
    /// Why it cannot be said what came before.
    unsaid: Option<&'static str>,
}

struct Pattern<'b> {
    text: &'b str,
    glob: Glob,
}

impl<'b> Before<'b, '_> {
    /// The values that lead to a pattern: its own text, and what fits it, no other text and none of the patterns before.
    fn by_pattern(
        &self,
        node: &Branch,
        own: Option<&str>,
        pattern: Result<&'b str, &'static str>,
    ) -> Option<Values> {
        let text = match (pattern, self.unsaid) {
            (Err(why), _) | (_, Some(why)) => return Some(Values::Unsaid(why)),
            (Ok(text), None) => text,
        };
        let glob = Glob::without_escapes(text);
        let taken = self.patterns.iter().filter(|before| may_meet(&before.glob, &glob));
        let taken: Vec<&Pattern<'_>> = taken.collect();
        let own = own.filter(|own| taken.iter().any(|before| before.glob.matches(own))).map(literal);
        if taken.iter().any(|before| before.glob.is_any()) {
            return own.map(Values::Matching);
        }
        let others = self.exact.iter().filter(|(_, other)| !std::ptr::eq(*other, node));
        let others = others.filter(|(value, _)| value.len() <= VALUE_BYTES_MAX && glob.matches(value));
        let mut elsewhere: Vec<String> = others.map(|(value, _)| literal(value)).collect();
        elsewhere.extend(taken.iter().map(|before| scalar(before.text)));
        let fitting = match elsewhere.len() {
            0 => scalar(text),
            VALUES_MAX.. => return Some(Values::Unsaid(TOO_MANY)),
            _ if glob.is_any() => none_of(&elsewhere),
            _ => {
                let except = Except { values: list(&elsewhere), but: own };
                return Some(Values::Except(scalar(text), except));
            }
        };
        Some(Values::Matching(match own {
            Some(own) => list(&[own, fitting]),
            None => fitting,
        }))
    }

    /// The values that lead to the bare key: those that nothing else takes.
    fn by_key(&self) -> Option<Values> {
        if let Some(why) = self.unsaid {
            return Some(Values::Unsaid(why));
        }
        if self.patterns.iter().any(|pattern| pattern.glob.is_any()) {
            return None;
        }
        let values = self
            .exact
            .iter()
            .filter(|(value, node)| !node.text.contains('*') && value.len() <= VALUE_BYTES_MAX);
        let mut but: Vec<String> = values.map(|(value, _)| literal(value)).collect();
        // The text of a pattern fits it.
        but.extend(self.patterns.iter().map(|pattern| scalar(pattern.text)));
        Some(match but.len() {
            0 => Values::All,
            1..=VALUES_MAX => Values::Matching(none_of(&but)),
            _ => Values::Unsaid(TOO_MANY),
        })
    }
}

fn none_of(values: &[String]) -> String {
    match values {
        [only] => format!("{{not: {only}}}"),
        values => format!("{{not: {}}}", list(values)),
    }
}

/// A text to which a star is nothing but a star.
fn literal(value: &str) -> String {
    scalar(&value.replace('*', "\\*"))
}

/// Whether a value could fit both, as far as their ends tell.
fn may_meet(one: &Glob, other: &Glob) -> bool {
    let (Some((start, end, _)), Some((others_start, others_end, _))) = (one.ends(), other.ends()) else {
        return true;
    };
    (start.starts_with(others_start) || others_start.starts_with(start))
        && (end.ends_with(others_end) || others_end.ends_with(end))
}

const TOO_MANY: &str = "more values are taken before it than `match` may name";
