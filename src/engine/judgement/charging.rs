//! Charges after the fact, and refunds.

use super::Judgement;
use crate::engine::admission::settle_up;
use crate::engine::decision::{Conflict, Decision, NotCharged};
use crate::engine::repeats::{Grant, KnownName};
use crate::engine::request::Charge;
use crate::engine::spent;
use crate::engine::workspace::Workspace;
use crate::rules::Selection;

impl Judgement<'_> {
    /// Charges or refunds after the fact. Returns whether any rule applied.
    pub(in crate::engine) fn charge(
        &self,
        selection: &Selection<'_>,
        charge: &Charge<'_>,
        workspace: &mut Workspace,
    ) -> Result<bool, NotCharged> {
        if self.listed(&workspace.matching).is_some_and(|entry| entry.speaks) {
            return Ok(false);
        }
        workspace.gather_charge(self.domain, self.terms, selection, charge);
        if workspace.parts.is_empty() {
            return Ok(false);
        }
        let mut named = self.engine.repeats.named_charge(charge, &mut workspace.written);
        match named.as_ref().map_or(KnownName::Not, |named| named.find(self.now)) {
            KnownName::Not => {}
            KnownName::Other => return Err(Conflict.into()),
            KnownName::Granted(_) => return Ok(true),
        }
        if charge.of.is_some() && spent::is_negative(&charge.amount) {
            if !self.engine.take_spent(charge, &mut workspace.written, self.now) {
                return Ok(false);
            }
            workspace.keep_refunds_of_ends(self.domain);
        }
        let (parts, amounts) = workspace.parts_and_amounts();
        settle_up(&self.case(None), parts, amounts);
        if let Some(named) = &mut named {
            self.engine.keep_charged(charge, &mut workspace.written, self.now);
            let grant = Grant::of(&Decision::unlimited(), self.ruling.number, self.now);
            named.keep(grant, &self.engine.shards, self.now);
        }
        Ok(true)
    }
}
