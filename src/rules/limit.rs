//! What a rule admits, and what becomes of what is too much.

use std::time::Duration;

use crate::limit::{Quota, token_bucket};

/// What a rule admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// By number: 0 is its own, the others are of the rule's overrides. `None` is unlimited. Never empty.
    pub allowances: Vec<Option<Allowance>>,
    /// What a refused request costs.
    pub refused: Refused,
    /// Once refused, refused for this long.
    pub block: Option<Duration>,
    /// How long callers may stay in the soft part of their allowance at a stretch; `None`: without end.
    pub soft_for: Option<Duration>,
}

/// What one key may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Its numbers.
    pub quota: Quota,
    /// What becomes of more.
    pub over: Over,
    /// How far CHARGE may go below zero, in units of the rule.
    pub max_debt: u32,
}

/// What becomes of more than the quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// It is refused.
    Refuse,
    /// It passes, marked and charged to the same state, as long as this larger quota admits it.
    Soft(Box<Quota>),
    /// It passes, marked and charged to a second state under this quota, while the pool has room.
    Elastic(Box<Quota>),
}

/// What a refused request costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refused {
    /// Nothing.
    #[default]
    Free,
    /// As much as if it had passed: whoever goes on asking stays refused. Windows only.
    Counted,
}

impl Limit {
    /// A plain limit: what is more is refused and costs nothing.
    #[must_use]
    pub fn new(quota: Quota) -> Limit {
        Limit { allowances: vec![Some(Allowance::new(quota))], ..Limit::unlimited() }
    }

    /// Nothing is refused.
    #[must_use]
    pub fn unlimited() -> Limit {
        Limit { allowances: vec![None], refused: Refused::Free, block: None, soft_for: None }
    }

    /// The allowance of a number; `None` is unlimited.
    #[inline]
    #[must_use]
    pub fn allowance(&self, number: u32) -> Option<&Allowance> {
        self.allowances.get(number as usize)?.as_ref()
    }

    /// Its own quota, unless it is unlimited.
    #[must_use]
    pub fn quota(&self) -> Option<&Quota> {
        self.allowance(0).map(|allowance| &allowance.quota)
    }
}

impl From<token_bucket::Quota> for Limit {
    fn from(quota: token_bucket::Quota) -> Limit {
        Limit::new(Quota::TokenBucket(quota))
    }
}

impl Allowance {
    /// What is more is refused; CHARGE may go one burst, or one N, below zero.
    #[must_use]
    pub fn new(quota: Quota) -> Allowance {
        let max_debt = quota.limit();
        Allowance { quota, over: Over::Refuse, max_debt }
    }
}
