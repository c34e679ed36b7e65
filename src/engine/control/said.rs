//! What is said over the rules, as the ruling that is made of it looks it up. It is not looked at by requests.

use std::collections::HashMap;
use std::sync::Arc;

use super::{BlockedKeys, Guards, RuleName};
use crate::rules::Mode;

/// What is said over the rules.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Said<'c> {
    /// No rule is stricter than this.
    pub(in crate::engine) mode: Mode,
    /// Keys blocked by hand.
    pub(in crate::engine) blocked: &'c HashMap<RuleName, Arc<BlockedKeys>>,
    /// Keys blocked on all hosts.
    pub(in crate::engine) everywhere: &'c HashMap<RuleName, Arc<BlockedKeys>>,
    /// Rules whose callers are noted.
    pub(in crate::engine) guards: &'c Guards,
}

impl Said<'_> {
    pub(in crate::engine) fn blocked(&self, domain: &str, rule: &str) -> Option<Arc<BlockedKeys>> {
        of_rule(self.blocked, domain, rule)
    }

    pub(in crate::engine) fn blocked_everywhere(&self, domain: &str, rule: &str) -> Option<Arc<BlockedKeys>> {
        of_rule(self.everywhere, domain, rule)
    }
}

fn of_rule(
    blocked: &HashMap<RuleName, Arc<BlockedKeys>>,
    domain: &str,
    rule: &str,
) -> Option<Arc<BlockedKeys>> {
    if blocked.is_empty() {
        return None;
    }
    blocked.get(&RuleName { domain: domain.into(), rule: rule.into() }).cloned()
}
