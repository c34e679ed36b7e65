//! Caller statistics: a sample of busy callers, all refused callers, and all callers of guarded rules.

use super::Judgement;
use crate::engine::callers::SeenRequest;
use crate::engine::check::{CheckStage, StageCheck};
use crate::engine::sketch::Ranking;
use crate::rules::Selection;

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

/// One decision in 16 is sampled for the busiest callers; every refusal counts for the most refused.
const SAMPLED_ONE_IN: u64 = 16;

/// 2⁶⁴ ÷ the golden ratio: its multiples are evenly distributed modulo 2⁶⁴ and have no short period.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
