//! Access of users to domains and pools, and the slots their processes may claim, by the settings. Users are numbers
//! (uids) here, never names.

use std::collections::{BTreeMap, BTreeSet};

use tracing::warn;

use super::membership::HelloRefusal;
use crate::protocol::Code;

/// The domains that not every user may use.
#[derive(Debug, Default)]
pub struct DomainAccess {
    /// The users of each domain that is not open to all.
    restricted: BTreeMap<Box<str>, BTreeSet<u32>>,
    /// The domains in which a negative charge need not name the charge that it refunds.
    trusted_refunds: BTreeSet<Box<str>>,
}

impl DomainAccess {
    /// Makes the access from domains and their users, and the domains in which a negative charge need not name the charge that
    /// it refunds. A domain without users, or not listed, is open to all.
    pub fn new(
        domains: impl IntoIterator<Item = (Box<str>, Vec<u32>)>,
        trusted_refunds: impl IntoIterator<Item = Box<str>>,
    ) -> DomainAccess {
        let restricted = domains.into_iter().filter(|(_, users)| !users.is_empty());
        DomainAccess {
            restricted: restricted.map(|(name, users)| (name, users.into_iter().collect())).collect(),
            trusted_refunds: trusted_refunds.into_iter().collect(),
        }
    }

    pub(super) fn trusts_refunds(&self, domain: &str) -> bool {
        self.trusted_refunds.contains(domain)
    }

    /// Whether any domain is closed to this user. Checked once per connection, so that most requests need no check of
    /// their domain.
    pub(super) fn is_restricted(&self, user: u32) -> bool {
        self.restricted.values().any(|users| !users.contains(&user))
    }

    pub(super) fn is_open(&self, domain: &str, user: u32) -> bool {
        self.restricted.get(domain).is_none_or(|users| users.contains(&user))
    }
}

/// The pools that have limits in the settings, by name.
#[derive(Debug, Default)]
pub struct PoolAccess(BTreeMap<Box<str>, PoolLimits>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    pub name: Box<str>,
    /// The users (uids) whose processes may join it; empty for all users.
    pub uids: Vec<u32>,
    /// The most slots that one process may claim; `None` for any number.
    pub slots_max: Option<u32>,
}

impl PoolAccess {
    /// Makes the access from the limits of pools. A pool that is not listed is open to all.
    pub fn new(pools: impl IntoIterator<Item = PoolLimits>) -> PoolAccess {
        PoolAccess(pools.into_iter().map(|limits| (limits.name.clone(), limits)).collect())
    }

    /// Checks that a process of this user may join this pool with this number of slots. Logs a refusal, as the
    /// clients then refuse its requests.
    pub(super) fn check(&self, pool: &str, user: u32, slots: u32) -> Result<(), HelloRefusal> {
        let Some(limits) = self.0.get(pool) else { return Ok(()) };
        // The name comes from the settings, so this logs no text of a client.
        let pool = &limits.name;
        let (code, message) = if !limits.uids.is_empty() && !limits.uids.contains(&user) {
            (Code::NotAllowed, format!("the pool `{pool}` is not open to user {user}"))
        } else if let Some(max) = limits.slots_max.filter(|max| slots > *max) {
            let message =
                format!("{slots} slots are more than the pool `{pool}` allows a process, which is {max}");
            (Code::Forbidden, message)
        } else {
            return Ok(());
        };
        warn!(user, "{message}: its requests are refused; help: see `pools.{pool}` in the settings");
        Err(HelloRefusal(code, message))
    }
}
