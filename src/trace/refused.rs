//! The callers that each rule refused most, in bounded memory, named as in the trace.
//!
//! Space-saving (Metwally, Agrawal, El Abbadi, 2005), in batches: a full list drops its lesser half. A new
//! caller starts at the largest count that was dropped, which is recorded as its error: a count is never too
//! small, and too large by at most its error. A rule that refuses fewer callers than its list holds has exact
//! counts.

use std::collections::HashMap;

use crate::engine::Request;
use crate::rules::Domain;

/// The callers that one rule refused, or would have refused.
#[derive(Debug, Default)]
pub(super) struct MostRefused {
    by_key: HashMap<u64, RefusedCaller>,
    /// The largest count that was dropped.
    gone: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefusedCaller {
    /// The values of the rule's key, as in the trace.
    pub(super) text: Box<str>,
    /// An upper bound of its refusals.
    pub(super) count: u64,
    /// The most by which `count` is too large.
    pub(super) error: u64,
}

impl MostRefused {
    /// Returns the callers refused most, in descending order.
    pub(super) fn sorted(&self) -> Vec<RefusedCaller> {
        let mut all: Vec<&RefusedCaller> = self.by_key.values().collect();
        all.sort_by(|one, other| {
            (other.count, one.error, &one.text).cmp(&(one.count, other.error, &other.text))
        });
        all.into_iter().take(SHOWN_MAX).cloned().collect()
    }

    pub(super) fn note(&mut self, key: u64, text: impl FnOnce() -> Box<str>) {
        if let Some(caller) = self.by_key.get_mut(&key) {
            caller.count += 1;
            return;
        }
        if self.by_key.len() >= KEPT_MAX {
            self.drop_the_lesser_half();
        }
        let caller = RefusedCaller { text: text(), count: self.gone + 1, error: self.gone };
        self.by_key.insert(key, caller);
    }

    fn drop_the_lesser_half(&mut self) {
        let mut counts: Vec<(u64, u64)> =
            self.by_key.iter().map(|(key, caller)| (caller.count, *key)).collect();
        counts.sort_unstable();
        counts.truncate(counts.len() / 2);
        for (count, key) in counts {
            self.gone = self.gone.max(count);
            self.by_key.remove(&key);
        }
    }
}

/// The part of a request that identifies its caller under a rule; empty if the rule counts all together.
pub(super) fn text(domain: &Domain, number: u32, request: &Request<'_>) -> Box<str> {
    let (attributes, tree) = (request.descriptors.attributes, domain.tree());
    let value = |name: &str| {
        let found = attributes.iter().find(|(attribute, value)| *attribute == name && !value.is_empty());
        found.map(|(_, value)| *value)
    };
    let mut text = String::new();
    let mut add = |name: &str, value: &str| {
        let apart = if text.is_empty() { "" } else { " " };
        text.push_str(apart);
        text.push_str(name);
        text.push('=');
        text.push_str(value);
    };
    // A node of the tree counts by the descriptor that matched it.
    let found = |descriptor: &&[(&str, &str)]| tree.find(descriptor).is_some_and(|hit| hit.rule == number);
    let descriptor = request.descriptors.iter().find(found).unwrap_or_default();
    descriptor.iter().for_each(|(name, value)| add(name, value));
    let mut transformed = String::new();
    let key = domain.rules().get(number as usize).map(|rule| &*rule.key).unwrap_or_default();
    let of_key = key.iter().filter_map(|part| Some((part, value(&part.attribute)?)));
    for (part, value) in of_key {
        transformed.clear();
        part.transform.push(value, &mut transformed);
        add(&part.attribute, &transformed);
    }
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push('…');
    }
    text.into()
}

const SHOWN_MAX: usize = 20;

/// Callers kept per rule: any that causes more than one in 512 of the rule's refusals is kept. With texts
/// about 30 MB for 512 rules with thousands of callers each.
const KEPT_MAX: usize = 512;

/// Enough for an address and an account; callers control the length of values.
const TEXT_BYTES_MAX: usize = 120;

#[cfg(test)]
mod tests {
    use super::{KEPT_MAX, MostRefused};

    #[test]
    fn of_many_callers_the_most_refused_stay_and_counts_are_never_too_small() {
        let mut most = MostRefused::default();
        // Three callers cause every tenth refusal, among new ones.
        for turn in 0..20_000_u64 {
            let key = if turn % 10 == 0 { turn / 10 % 3 } else { 1_000 + turn };
            most.note(key, || key.to_string().into());
        }
        assert!(most.by_key.len() <= KEPT_MAX);
        for key in 0..3 {
            let caller = &most.by_key[&key];
            let exact = 2_000 / 3 + u64::from(key < 2_000 % 3);
            assert!(caller.count >= exact && caller.count - caller.error <= exact, "{caller:?}: {exact}");
            assert!(caller.error < exact / 2, "{caller:?}");
        }
    }
}
