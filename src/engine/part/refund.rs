//! What was charged, as it is remembered to be given back.

use super::{Beyond, Part};
use crate::engine::digest::Digest;
use crate::engine::leases::Refund;
use crate::engine::ruling::Terms;

impl Part {
    /// The digest of its state.
    pub(in crate::engine) fn state(&self) -> Digest {
        self.digest
    }

    /// What it was charged.
    pub(in crate::engine) fn refund(&self, terms: &Terms) -> Refund {
        Refund {
            rule: terms.identity,
            digest: if self.beyond == Some(Beyond::Elastic) { self.elastic() } else { self.digest },
            salt: terms.states.of(self.allowance).1,
            allowance: self.allowance,
            cost: self.cost,
            is_beyond: self.beyond == Some(Beyond::Elastic),
        }
    }
}
