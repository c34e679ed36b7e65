//! What a restart keeps of the rules in force.

use super::Ruling;
use crate::engine::digest::KeyHash;
use crate::engine::kept::{KeptRule, fingerprint};
use crate::rules::shed::Part;

impl Ruling {
    /// Tells these rules, by name and order, from others.
    pub(in crate::engine) fn fingerprint(&self, hash: &KeyHash) -> u64 {
        let mut names = Vec::new();
        for domain in self.rules.domains() {
            let rules = domain.rules().iter().map(|rule| &*rule.name);
            let lists = domain.lists().iter().map(|entry| &*entry.name);
            let sheds: Vec<_> =
                domain.sheds().iter().flat_map(|shed| Part::ALL.map(|part| shed.rule_name(part))).collect();
            for name in rules.chain(lists).chain(sheds.iter().map(|name| &**name)).chain([domain.name(), ""])
            {
                names.extend_from_slice(&name.len().to_le_bytes());
                names.extend_from_slice(name.as_bytes());
            }
        }
        hash.digest_bytes(&names).hash()
    }

    /// Under which quotas the buckets of its rules stand.
    pub(in crate::engine) fn kept(&self, hash: &KeyHash) -> Vec<KeptRule> {
        let domains = self.rules.domains().iter().zip(&self.domains);
        let rules = domains.flat_map(|(domain, terms)| domain.rules().iter().zip(&terms.rules));
        let kept = |(rule, terms): (&crate::rules::Rule, &super::Terms)| {
            let overrides = rule.overrides.as_deref();
            let candidate = rule.candidate.as_ref().zip(terms.candidate.as_ref());
            KeptRule {
                identity: terms.identity,
                own: (fingerprint(hash, &rule.limit, overrides), terms.own.generation),
                candidate: candidate
                    .map(|(limit, states)| (fingerprint(hash, limit, overrides), states.generation)),
            }
        };
        rules.map(kept).collect()
    }
}
