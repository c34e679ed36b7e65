//! Who asks most and who is refused most, rule by rule: a bounded sketch of digests. A text is kept only of attributes
//! that the rule says may be shown.

use parking_lot::Mutex;

use super::digest::Digest;
use super::sketch::{Entry, Ranking, Sketches};
use super::slots::{RULE_SLOTS, Slot};
use crate::clock::{Now, Timestamp};
use crate::rules::{Domain, Rule, Selection};

/// A sketch for each rule that is counted by name, and one for the rest.
#[derive(Debug)]
pub(super) struct Callers {
    by_slot: Box<[Mutex<Sketches>]>,
    halved: Mutex<Option<Timestamp>>,
}

/// What a key did at one rule, as far as it is noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'s, 'a> {
    pub(super) domain: &'s Domain,
    pub(super) rule: u32,
    pub(super) slot: Slot,
    pub(super) key: Digest,
    pub(super) selection: &'s Selection<'a>,
}

/// The callers of one rule that stand out, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopCallers {
    /// By what they asked for: one decision in 16 is looked at, and counts for 16.
    pub busiest: Vec<Caller>,
    /// By what was refused.
    pub refused: Vec<Caller>,
    /// By what would have been refused, had the rule been enforced.
    pub would_refuse: Vec<Caller>,
}

/// One caller of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// What tells it from others: 32 hexadecimal digits that say nothing else.
    pub digest: String,
    /// The values that the rule says may be shown.
    pub text: Option<Box<str>>,
    /// Units, surely no fewer.
    pub count: u64,
    /// So many more at most.
    pub error: u64,
}

impl Callers {
    pub(super) fn new() -> Callers {
        let by_slot = std::iter::repeat_with(Mutex::default).take(RULE_SLOTS).collect();
        Callers { by_slot, halved: Mutex::default() }
    }

    /// Notes a key. Where another thread is at the same rule it is passed over: nobody waits for a statistic.
    #[cold]
    pub(super) fn note(&self, ranking: Ranking, seen: &Seen<'_, '_>, units: u64) {
        let Some(mut sketches) = self.of(seen.slot).and_then(Mutex::try_lock) else { return };
        let [low, high] = [seen.key.hash(), seen.key.high()];
        sketches.add(ranking, [low, high], units, || seen.text());
    }

    /// What is noted at a slot.
    pub(super) fn top(&self, slot: Slot) -> TopCallers {
        let Some(sketches) = self.of(slot) else { return TopCallers::default() };
        let sketches = sketches.lock();
        let of = |ranking| stand_out(sketches.top(ranking).into_iter().map(Caller::of));
        TopCallers {
            busiest: of(Ranking::Busiest),
            refused: of(Ranking::Refused),
            would_refuse: of(Ranking::WouldRefuse),
        }
    }

    /// Forgets what is noted at a slot: its texts may no longer be shown.
    pub(super) fn forget(&self, slot: Slot) {
        if let Some(sketches) = self.of(slot) {
            *sketches.lock() = Sketches::default();
        }
    }

    /// Bytes that the sketches have allocated: at most some 5 KiB for each rule that is counted by name.
    pub(super) fn heap_bytes(&self) -> usize {
        self.by_slot.iter().map(|sketches| sketches.lock().heap_bytes()).sum()
    }

    /// Lets what was noted fade, every so often.
    pub(super) fn age(&self, now: Now) {
        let mut halved = self.halved.lock();
        let last = *halved.get_or_insert(now.at);
        if now.at.since(last) >= HALF_LIFE {
            *halved = Some(now.at);
            self.by_slot.iter().for_each(|sketches| sketches.lock().halve());
        }
    }

    fn of(&self, slot: Slot) -> Option<&Mutex<Sketches>> {
        self.by_slot.get(slot.number())
    }
}

impl Seen<'_, '_> {
    /// The values of the key that may be shown, as they were sent.
    fn text(&self) -> Option<Box<str>> {
        let rule: &Rule = self.domain.rules().get(self.rule as usize)?;
        if rule.show_keys.is_empty() {
            return None;
        }
        let values = rule.key.iter().zip(self.domain.key_values(self.rule, self.selection));
        let shown = values.filter(|(part, _)| rule.show_keys.contains(&part.attribute));
        let shown: Vec<String> = shown.map(|(part, value)| format!("{}={value}", part.attribute)).collect();
        Some(shown.join(" ").into())
    }
}

impl Caller {
    fn of(entry: Entry) -> Caller {
        let Entry { key: [low, high], count, error, text } = entry;
        Caller { digest: format!("{high:016x}{low:016x}"), text, count: count - error, error }
    }
}

/// Those of whom more is known than could be another's, the surest count first. Where many callers come alike, the sketch
/// takes each for all that went before it: none of them stands out.
fn stand_out(callers: impl Iterator<Item = Caller>) -> Vec<Caller> {
    let mut surest: Vec<Caller> =
        callers.filter(|caller| caller.count > 0 && caller.count >= caller.error).collect();
    surest.sort_by_key(|caller| (std::cmp::Reverse(caller.count), caller.error));
    surest
}

/// Who was busy ten minutes ago counts half.
const HALF_LIFE: std::time::Duration = std::time::Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::{Caller, stand_out};

    #[test]
    fn ranks_by_the_surely_counted() {
        let caller = |count, error| Caller { digest: format!("{count}"), text: None, count, error };
        // The first may have asked for more than all others, and surely for less than two of them.
        let callers =
            [caller(50, 49), caller(80, 0), caller(60, 10), caller(0, 0), caller(5, 6), caller(60, 0)];
        let ranked = stand_out(callers.into_iter()).into_iter().map(|caller| (caller.count, caller.error));
        assert_eq!(ranked.collect::<Vec<_>>(), [(80, 0), (60, 0), (60, 10), (50, 49)]);
    }
}
