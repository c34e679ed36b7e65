//! What was charged, as it is remembered to be given back.

use super::{Beyond, Part};
use crate::engine::digest::{Digest, Salt};
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
            salt: self.salt(terms),
            allowance: self.allowance,
            cost: self.cost,
            of_candidate: self.is_candidate(),
            is_beyond: self.beyond == Some(Beyond::Elastic),
        }
    }

    fn salt(&self, terms: &Terms) -> Salt {
        let states = if self.is_candidate() { terms.candidate.as_ref() } else { Some(&terms.own) };
        states.map_or(Salt::NONE, |states| states.of(self.allowance).1)
    }
}
