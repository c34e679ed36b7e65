//! What was known of a key under another digest.

use super::{Case, Part};
use crate::engine::Engine;
use crate::engine::digest::{Digest, Salt};
use crate::limit::Quota;

impl Part {
    /// It goes along, if nothing is known under the present one.
    pub(in crate::engine) fn bring_along(&self, engine: &Engine, former: Digest, case: &Case<'_>) {
        let Some(law) = self.law(case) else { return };
        if let Quota::Share(quota) = &law.allowance.quota {
            // What tells the state from others of the key is the same under every secret.
            let salt = Salt::of_bits(self.digest.high() ^ self.key.high());
            engine.bring_along((former, self.key), (self.digest.tag(), salt), quota, case.now);
        }
    }
}
