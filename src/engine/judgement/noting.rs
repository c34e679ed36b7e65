//! Caller statistics: a sample of busy callers, all refused callers, and all callers of guarded rules.

use super::Judgement;
use crate::engine::callers::SeenRequest;
use crate::engine::part::{CheckStage, StagePart};
use crate::engine::sketch::Ranking;
use crate::rules::Selection;

impl Judgement<'_> {
    /// Records callers and refusals. `count` is the number of equal decisions so far; `None`: record nothing.
    pub(super) fn note_callers(
        &self,
        count: Option<u64>,
        parts: &[StagePart],
        stage: CheckStage,
        selection: &Selection<'_>,
    ) {
        let Some(count) = count else { return };
        let is_sampled = is_sampled(count);
        if self.terms.is_guarded {
            self.note_guarded(parts, stage);
        }
        for part in parts.iter().filter(|part| stage.asks(part) && (is_sampled || !part.passes())) {
            let StagePart { rule, slot, key, cost, enforced, .. } = *part;
            let seen = SeenRequest { domain: self.domain, rule, slot, key, selection };
            let refused = if enforced { Ranking::Refused } else { Ranking::WouldRefuse };
            self.note_caller(&seen, cost, is_sampled, (!part.passes()).then_some(refused));
        }
    }

    #[cold]
    fn note_guarded(&self, parts: &[StagePart], stage: CheckStage) {
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
        seen: &SeenRequest<'_, '_>,
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

/// Whether the decision with this count is sampled. Not every sixteenth, as this could always skip one of
/// several alternating callers.
pub(super) fn is_sampled(count: u64) -> bool {
    count.wrapping_mul(GOLDEN) < u64::MAX / SAMPLED_ONE_IN
}

/// One decision in 16 is sampled for the busiest callers; every refusal counts for the most refused.
const SAMPLED_ONE_IN: u64 = 16;

/// 2⁶⁴ ÷ the golden ratio: its multiples are evenly distributed modulo 2⁶⁴ and have no short period.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
