//! Limits of rules: allowances, and the treatment of requests beyond them.

use std::time::Duration;

use crate::limit::{Quota, token_bucket};

/// The limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Allowances by number, never empty: 0 is the rule's own, others are overrides. `None` is unlimited.
    pub allowances: Vec<Option<Allowance>>,
    /// The cost of a refused request.
    pub refused: RefusedCost,
    /// How long a key stays refused after a refusal.
    pub block: Option<Duration>,
    /// The longest continuous use of the soft part; `None` for no bound.
    pub soft_for: Option<Duration>,
}

/// The allowance of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The quota.
    pub quota: Quota,
    /// The treatment of requests beyond the quota.
    pub over: OverTreatment,
    /// How far CHARGE may go below zero, in units of the rule.
    pub max_debt: u32,
}

/// The treatment of requests beyond the quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverTreatment {
    /// Refused.
    Refuse,
    /// Allowed, marked, and charged to the same state, while this larger quota admits it.
    Soft(Box<Quota>),
    /// Allowed, marked, and charged to a second state under this quota, while the pool has capacity.
    Elastic(Box<Quota>),
}

/// The cost of a refused request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum RefusedCost {
    /// Refused requests cost nothing.
    #[default]
    Free,
    /// Refused requests cost as much as allowed ones: frequent retries stay refused. Windows only.
    Counted,
}

impl Limit {
    /// Makes a limit that refuses requests beyond the quota, free of charge.
    #[must_use]
    pub fn new(quota: Quota) -> Limit {
        Limit { allowances: vec![Some(Allowance::new(quota))], ..Limit::unlimited() }
    }

    /// Makes a limit that refuses nothing.
    #[must_use]
    pub fn unlimited() -> Limit {
        Limit { allowances: vec![None], refused: RefusedCost::Free, block: None, soft_for: None }
    }

    /// Returns the allowance of a number; `None` is unlimited.
    #[inline]
    #[must_use]
    pub fn allowance(&self, number: u32) -> Option<&Allowance> {
        self.allowances.get(number as usize)?.as_ref()
    }

    /// Returns the rule's own quota, `None` if unlimited.
    #[must_use]
    pub fn quota(&self) -> Option<&Quota> {
        self.allowance(0).map(|allowance| &allowance.quota)
    }
}

impl From<token_bucket::TokenBucketQuota> for Limit {
    fn from(quota: token_bucket::TokenBucketQuota) -> Limit {
        Limit::new(Quota::TokenBucket(quota))
    }
}

impl Allowance {
    /// Makes an allowance that refuses requests beyond the quota, and lets CHARGE go one limit below zero.
    #[must_use]
    pub fn new(quota: Quota) -> Allowance {
        let max_debt = quota.limit();
        Allowance { quota, over: OverTreatment::Refuse, max_debt }
    }
}
