//! Who comes and who is refused, as far as it is noted: busy callers by a sample, all that are refused, and all that come
//! to a rule that has just changed.

use super::Judgement;
use crate::engine::callers::Seen;
use crate::engine::part::{Part, Stage};
use crate::engine::sketch::Ranking;
use crate::rules::Selection;

impl Judgement<'_> {
    /// Notes who came and who was refused. `count`: of the decisions alike, which one it is; none: it is not counted.
    pub(super) fn note_callers(
        &self,
        count: Option<u64>,
        parts: &[Part],
        stage: Stage,
        selection: &Selection<'_>,
    ) {
        let Some(count) = count else { return };
        let is_sampled = is_sampled(count);
        if self.terms.is_guarded {
            self.note_guarded(parts, stage);
        }
        for part in parts.iter().filter(|part| stage.asks(part) && (is_sampled || !part.passes())) {
            let Part { rule, slot, key, cost, enforced, .. } = *part;
            let seen = Seen { domain: self.domain, rule, slot, key, selection };
            let refused = if enforced { Ranking::Refused } else { Ranking::WouldRefuse };
            self.note_caller(&seen, cost, is_sampled, (!part.passes()).then_some(refused));
        }
    }

    /// Notes who came to rules that have just changed, and whom they refused.
    #[cold]
    fn note_guarded(&self, parts: &[Part], stage: Stage) {
        for part in parts.iter().filter(|part| stage.asks(part) && part.enforced) {
            let terms = self.terms.rules.get(part.rule as usize);
            if let Some(guarding) = terms.and_then(|terms| terms.guarding.as_ref()) {
                guarding.note(part.key.hash(), !part.passes());
            }
        }
    }

    #[cold]
    pub(super) fn note_caller(
        &self,
        seen: &Seen<'_, '_>,
        cost: u32,
        is_busy: bool,
        refused: Option<Ranking>,
    ) {
        if let Some(ranking) = refused {
            self.engine.callers.note(ranking, seen, u64::from(cost));
        }
        if is_busy {
            self.engine.callers.note(Ranking::Busiest, seen, u64::from(cost).saturating_mul(SAMPLED_ONE_IN));
        }
    }
}

/// Whether the decision that makes the count so many is looked at. Not every sixteenth: of callers who come in turns
/// none must always be passed over.
pub(super) fn is_sampled(count: u64) -> bool {
    count.wrapping_mul(GOLDEN) < u64::MAX / SAMPLED_ONE_IN
}

/// One decision in so many is looked at for the busiest callers; every refusal is for the most refused.
const SAMPLED_ONE_IN: u64 = 16;

/// 2⁶⁴ ÷ the golden ratio: its multiples fall evenly over the circle, and in step with nothing.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
