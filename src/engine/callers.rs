//! The busiest and the most refused callers per rule: a bounded sketch of digests. Texts are stored only for
//! attributes listed in `show_keys`.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::check::{CheckStage, StageCheck};
use super::digest::{Digest, ShownDigest};
use super::judgement::Judgement;
use super::sketch::{Ranking, SketchEntry, Sketches};
use super::slots::{RULE_SLOTS, Slot};
use crate::clock::{Now, Timestamp};
use crate::rules::{Domain, Rule, Selection};

#[derive(Debug)]
pub(super) struct CallerSketch {
    by_slot: Box<[Mutex<Sketches>]>,
    halved: Mutex<Option<Timestamp>>,
}

/// One request of a key at one rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenRequest<'s, 'a> {
    pub(super) domain: &'s Domain,
    pub(super) rule: u32,
    pub(super) slot: Slot,
    pub(super) key: Digest,
    pub(super) selection: &'s Selection<'a>,
}

/// The top callers of one rule, or of several, largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopCallers {
    /// By requested units: one decision in 16 is sampled and counts 16 times.
    pub busiest: Vec<Caller>,
    pub refused: Vec<Caller>,
    /// By units that an enforced rule would have refused.
    pub would_refuse: Vec<Caller>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Caller {
    pub domain: Box<str>,
    pub rule: Box<str>,
    /// The keyed digest: 32 hexadecimal digits.
    pub digest: String,
    /// The values of attributes in `show_keys`.
    pub text: Option<Box<str>>,
    /// A lower bound of its units.
    pub count: u64,
    /// The largest possible undercount.
    pub error: u64,
    /// The unit of the rule; `None`: requests.
    pub unit: Option<Box<str>>,
}

impl CallerSketch {
    pub(super) fn new() -> CallerSketch {
        let by_slot = std::iter::repeat_with(Mutex::default).take(RULE_SLOTS).collect();
        CallerSketch { by_slot, halved: Mutex::default() }
    }

    /// Adds units to a key. Skips it if another thread holds the sketch: statistics never block a decision.
    #[cold]
    pub(super) fn record_request(&self, ranking: Ranking, seen: &SeenRequest<'_, '_>, units: u64) {
        let Some(mut sketches) = self.sketches_of_slot(seen.slot).and_then(Mutex::try_lock) else { return };
        let [low, high] = [seen.key.hash(), seen.key.high()];
        sketches.add(ranking, [low, high], units, || seen.text());
    }

    pub(super) fn top(&self, slot: Slot, domain: &str, rule: &str) -> TopCallers {
        let Some(sketches) = self.sketches_of_slot(slot) else { return TopCallers::default() };
        let sketches = sketches.lock();
        let shown = |key: Digest| ShownDigest::new(&key, domain, rule).to_hex().to_string();
        let caller = |(key, SketchEntry { count, error, text })| Caller {
            domain: domain.into(),
            rule: rule.into(),
            digest: shown(Digest::from_words(key)),
            text,
            count: count - error,
            error,
            unit: None,
        };
        let of = |ranking| stand_out(sketches.entries(ranking).map(caller));
        TopCallers {
            busiest: of(Ranking::Busiest),
            refused: of(Ranking::Refused),
            would_refuse: of(Ranking::WouldRefuse),
        }
    }

    /// Clears a slot, as its texts may no longer be shown.
    pub(super) fn forget(&self, slot: Slot) {
        if let Some(sketches) = self.sketches_of_slot(slot) {
            *sketches.lock() = Sketches::default();
        }
    }

    /// Heap bytes of the sketches: at most about 5 KiB per named rule.
    pub(super) fn heap_bytes(&self) -> usize {
        self.by_slot.iter().map(|sketches| sketches.lock().heap_bytes()).sum()
    }

    /// Halves all counts once per half-life.
    pub(super) fn age(&self, now: Now) {
        let mut halved = self.halved.lock();
        let last = *halved.get_or_insert(now.at);
        if now.at.since(last) >= HALF_LIFE {
            *halved = Some(now.at);
            self.by_slot.iter().for_each(|sketches| sketches.lock().halve());
        }
    }

    fn sketches_of_slot(&self, slot: Slot) -> Option<&Mutex<Sketches>> {
        self.by_slot.get(slot.number())
    }
}

impl SeenRequest<'_, '_> {
    /// The shown values of the key, as received.
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
    /// Returns the text if the rule shows it, else the first digits of the digest.
    pub fn name(&self) -> &str {
        self.text.as_deref().unwrap_or_else(|| self.digest.get(..DIGEST_SHOWN).unwrap_or(&self.digest))
    }
}

/// Selects callers whose certain count is at least the error, largest first. With many equally active
/// callers, the sketch inherits counts and no caller stands out.
fn stand_out(callers: impl Iterator<Item = Caller>) -> Vec<Caller> {
    let mut surest: Vec<Caller> =
        callers.filter(|caller| caller.count > 0 && caller.count >= caller.error).collect();
    surest.sort_by_key(|caller| (std::cmp::Reverse(caller.count), caller.error));
    surest
}

impl Judgement<'_> {
    /// Records callers and refusals. `count` is the number of equal decisions so far; `None`: record nothing.
    pub(super) fn record_callers(
        &self,
        count: Option<u64>,
        checks: &[StageCheck],
        stage: CheckStage,
        selection: &Selection<'_>,
    ) {
        let Some(count) = count else { return };
        let is_sampled = is_sampled(count);
        if self.compiled.is_guarded {
            self.record_guarded_callers(checks, stage);
        }
        for check in
            checks.iter().filter(|check| stage.includes_check(check) && (is_sampled || !check.passes()))
        {
            let StageCheck { rule, slot, key, cost, enforced, .. } = *check;
            let seen = SeenRequest { domain: &self.compiled.domain, rule, slot, key, selection };
            let refused = if enforced { Ranking::Refused } else { Ranking::WouldRefuse };
            self.record_caller(&seen, cost, is_sampled, (!check.passes()).then_some(refused));
        }
    }

    #[cold]
    fn record_guarded_callers(&self, checks: &[StageCheck], stage: CheckStage) {
        for check in checks.iter().filter(|check| stage.includes_check(check) && check.enforced) {
            let compiled_rule = self.compiled.rules.get(check.rule as usize);
            if let Some(guarding) =
                compiled_rule.and_then(|compiled_rule| compiled_rule.caller_sample.as_ref())
            {
                guarding.record_caller(check.key.hash(), !check.passes());
            }
        }
    }

    #[cold]
    pub(super) fn record_caller(
        &self,
        seen: &SeenRequest<'_, '_>,
        cost: u32,
        is_busy: bool,
        refused: Option<Ranking>,
    ) {
        if let Some(ranking) = refused {
            self.engine.callers.record_request(ranking, seen, u64::from(cost));
        }
        if is_busy {
            self.engine.callers.record_request(
                Ranking::Busiest,
                seen,
                u64::from(cost).saturating_mul(SAMPLED_ONE_IN),
            );
        }
    }
}

/// Whether the decision with this count is sampled. Not every sixteenth, as this could always skip one of
/// several alternating callers.
pub(super) fn is_sampled(count: u64) -> bool {
    count.wrapping_mul(GOLDEN) < u64::MAX / SAMPLED_ONE_IN
}

/// Digits of a digest that distinguish callers by eye.
const DIGEST_SHOWN: usize = 16;

const HALF_LIFE: std::time::Duration = std::time::Duration::from_secs(600);

/// One decision in 16 is sampled for the busiest callers; every refusal counts for the most refused.
const SAMPLED_ONE_IN: u64 = 16;

/// 2⁶⁴ ÷ the golden ratio: its multiples are evenly distributed modulo 2⁶⁴ and have no short period.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
