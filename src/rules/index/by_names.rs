//! The selection of requests that have the same names of attributes, found once: of each request only the lengths of
//! its values are compared.

use arrayvec::ArrayVec;

use super::{AttributeId, Candidates, Domain, Selection, length_bit};

/// The rules and list entries, disabled ones included, that all requests with certain names of attributes match, unless a
/// value may match others.
#[derive(Debug)]
pub struct NamesSelection {
    /// The number of each attribute, and the [`length_bit`] of each value that needs a selection of its own.
    attributes: ArrayVec<(AttributeId, u64), NAMES_MAX>,
    /// In the order of [`Domain::select`].
    pub matching: ArrayVec<u32, MATCHING_MAX>,
}

impl Domain {
    /// Finds what requests with these names of attributes match. `None` if that depends on values further than their lengths,
    /// or if there are too many names or rules.
    #[cold]
    pub fn select_by_names(&self, attributes: &[(&str, &str)]) -> Option<NamesSelection> {
        let anchored = &self.index.anchored;
        let (mut numbers, mut rules) = (ArrayVec::<_, NAMES_MAX>::new(), Vec::new());
        let mut candidates = Candidates { rules: &mut rules, lists: 0, unsure: false };
        candidates.take(&anchored.always);
        for (name, _) in attributes {
            let is_first = |number: &usize| numbers.iter().all(|(seen, _)| seen != number);
            let number = self.index.names.find(name).filter(is_first);
            let anchors = number.and_then(|number| anchored.anchors.get(number));
            let lengths = anchors.map_or(0, |anchors| {
                candidates.take(&anchors.present);
                anchors.lengths | length_bit("")
            });
            numbers.try_push((number.unwrap_or(UNUSED), lengths)).ok()?;
        }
        let is_sure = !candidates.unsure && rules.len() <= MATCHING_MAX;
        rules.sort_unstable();
        is_sure.then(|| NamesSelection { attributes: numbers, matching: rules.into_iter().collect() })
    }
}

impl NamesSelection {
    /// Selects as [`Domain::select`] does for attributes with these names. Returns false, with anything selected, if a value
    /// needs that.
    #[inline]
    pub fn select<'a>(
        &self,
        attributes: &[(&'a str, &'a str)],
        selection: &mut Selection<'a>,
        matching: &mut Vec<u32>,
    ) -> bool {
        if attributes.len() != self.attributes.len() {
            return false;
        }
        selection.values.clear();
        for ((_, value), (attribute, lengths)) in attributes.iter().zip(&self.attributes) {
            if lengths & length_bit(value) != 0 || selection.values.try_push((*attribute, value)).is_err() {
                return false;
            }
        }
        matching.clear();
        self.matching.iter().for_each(|number| matching.push(*number));
        true
    }
}

/// Stands for an attribute that no rule uses, or that the request has twice.
const UNUSED: AttributeId = AttributeId::MAX;

/// Requests with more attributes are selected one by one.
const NAMES_MAX: usize = 8;

const MATCHING_MAX: usize = 8;
