//! Globs: `*` matches any run of characters, also an empty one and `/`. `\*` is a star.

use std::fmt;

use super::fold;

/// A compiled glob: the literal pieces between the stars.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Glob {
    /// At least one; n pieces surround n − 1 stars.
    pieces: Vec<Box<str>>,
}

impl Glob {
    /// Parses a glob. Each text is valid: a backslash not followed by a star is literal.
    pub(crate) fn parse(text: &str) -> Glob {
        let mut pieces = Vec::new();
        let mut piece = String::new();
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '\\' if characters.next_if_eq(&'*').is_some() => piece.push('*'),
                '*' => pieces.push(std::mem::take(&mut piece).into_boxed_str()),
                other => piece.push(other),
            }
        }
        pieces.push(piece.into_boxed_str());
        Glob { pieces }
    }

    /// Parses a glob of a descriptor tree, where stars cannot be escaped.
    pub(crate) fn without_escapes(text: &str) -> Glob {
        Glob { pieces: text.split('*').map(Into::into).collect() }
    }

    /// Returns the literal text of a glob without stars.
    pub(crate) fn as_literal(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [literal] => Some(literal),
            _ => None,
        }
    }

    pub(crate) fn lowercase(&self) -> Glob {
        Glob { pieces: self.pieces.iter().map(|piece| fold::lowercase(piece).into()).collect() }
    }

    /// Whether it matches every text: it consists of stars only.
    pub(crate) fn is_any(&self) -> bool {
        self.pieces.len() > 1 && self.pieces.iter().all(|piece| piece.is_empty())
    }

    /// Returns prefix and suffix of all matching values, and whether they suffice; `None` without a star.
    pub(super) fn ends(&self) -> Option<(&str, &str, bool)> {
        match self.pieces.as_slice() {
            [start, middle @ .., end] => Some((start, end, middle.iter().all(|piece| piece.is_empty()))),
            _ => None,
        }
    }

    /// Returns a part of all matching values, from between two stars, and whether having it suffices; `None` if there is none.
    pub(super) fn part(&self) -> Option<(&str, bool)> {
        let [start, middle @ .., end] = self.pieces.as_slice() else { return None };
        let longest = middle.iter().max_by_key(|piece| piece.len()).filter(|piece| !piece.is_empty())?;
        let part = longest.get(..longest.floor_char_boundary(PART_BYTES_MAX))?;
        let others = [start, end].into_iter().chain(middle).map(|piece| piece.len()).sum::<usize>();
        Some((part, others == part.len()))
    }

    /// Whether the whole value matches. Linear in the value for each piece, without backtracking.
    pub(crate) fn matches(&self, value: &str) -> bool {
        let [first, middle @ .., last] = self.pieces.as_slice() else {
            return self.as_literal() == Some(value);
        };
        // Comparing zero bytes took several times as long as the rest, so empty pieces are skipped.
        let mut rest = value;
        if !first.is_empty() {
            let Some(behind) = rest.strip_prefix(&**first) else { return false };
            rest = behind;
        }
        if !last.is_empty() {
            let Some(before) = rest.strip_suffix(&**last) else { return false };
            rest = before;
        }
        // The leftmost match of each piece leaves the most text for the others.
        for piece in middle.iter().filter(|piece| !piece.is_empty()) {
            match rest.find(&**piece) {
                Some(at) => rest = rest.get(at + piece.len()..).unwrap_or_default(),
                None => return false,
            }
        }
        true
    }
}

/// The written form: literal stars get a backslash.
impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, piece) in self.pieces.iter().enumerate() {
            let star = if number > 0 { "*" } else { "" };
            write!(f, "{star}{}", piece.replace('*', "\\*"))?;
        }
        Ok(())
    }
}

/// The bytes of a part that is looked up: enough to be rare, and a bound for the automaton that finds all of them.
const PART_BYTES_MAX: usize = 32;
