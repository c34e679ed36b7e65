//! Charges after the fact, and refunds.

use super::Judgement;
use crate::engine::admission::settle_up;
use crate::engine::decision::{ChargeError, Decision};
use crate::engine::idempotency::Grant;
use crate::engine::refundable_costs;
use crate::engine::request::Charge;
use crate::engine::workspace::Workspace;
use crate::rules::Selection;

impl Judgement<'_> {
    /// Charges or refunds after the fact. Returns whether any rule applied.
    pub(in crate::engine) fn charge(
        &self,
        selection: &Selection<'_>,
        charge: &Charge<'_>,
        workspace: &mut Workspace,
    ) -> Result<bool, ChargeError> {
        if self.find_list_entry(&workspace.matching).is_some_and(|entry| entry.decides) {
            return Ok(false);
        }
        workspace.gather_charge(self.compiled, selection, charge);
        if workspace.checks.is_empty() {
            return Ok(false);
        }
        let mut named = self.engine.idempotency.lock_charge(charge, &mut workspace.hash_buffer);
        if let Some(named) = &named
            && named.find_grant(self.now)?.is_some()
        {
            return Ok(true);
        }
        let (mut refunded, mut context) = (None, self.check_context(None));
        if charge.refund_of.is_some() && refundable_costs::is_negative(&charge.amount) {
            let taken = self.engine.take_refundable_cost(charge, &mut workspace.hash_buffer, self.now);
            let Some(taken) = taken else { return Ok(false) };
            context.charged_at = Some(taken.at);
            refunded = taken.name.map(|name| (name, taken.at));
            workspace.exclude_lease_refunds(&self.compiled.domain);
        }
        let (checks, amounts) = workspace.checks_and_amounts();
        settle_up(&context, checks, amounts);
        if let Some(named) = &mut named {
            let name = named.digest();
            self.engine.record_refundable_charge(charge, name, &mut workspace.hash_buffer, self.now);
            let grant = Grant::from_decision(&Decision::unlimited(), self.rule_set.number, self.now);
            named.remember_grant(grant, &self.engine.shards, self.now);
        }
        // Both names may be in one shard.
        drop(named);
        if let Some((name, at)) = refunded {
            self.engine.idempotency.forget_if(&name, &self.engine.shards, |grant| grant.at == at);
        }
        Ok(true)
    }
}
