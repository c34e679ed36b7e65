//! Access of users to pools, and the slots their processes may claim, by the settings. Users are numbers (uids) here,
//! never names.

use tracing::warn;

use super::log_throttle::LogThrottle;
use crate::clock::Timestamp;

/// The pools that have limits in the settings.
#[derive(Debug, Default)]
pub struct PoolAccess {
    /// Sorted by name.
    pools: Box<[PoolLimits]>,
    throttle: LogThrottle,
}

/// The limits of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Its name.
    pub name: Box<str>,
    /// The users (uids) whose processes may join it; empty for all users.
    pub uids: Vec<u32>,
    /// The most slots that one process may claim; `None` for any number.
    pub slots_max: Option<u32>,
}

/// Why a process may not join a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PoolRefusal {
    #[error("the pool `{pool}` is not open to user {user}")]
    User { pool: Box<str>, user: u32 },
    #[error("{slots} slots are more than the pool `{pool}` allows a process, which is {max}")]
    Slots { pool: Box<str>, slots: u32, max: u32 },
}

impl PoolAccess {
    /// Makes the access from the limits of pools. A pool that is not listed is open to all.
    #[must_use]
    pub fn new(pools: impl IntoIterator<Item = PoolLimits>) -> PoolAccess {
        let mut pools: Vec<_> = pools.into_iter().collect();
        pools.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        PoolAccess { pools: pools.into_boxed_slice(), throttle: LogThrottle::default() }
    }

    /// Checks that a process of this user may join this pool with this number of slots. Logs a refusal, as the
    /// application then goes on without limits.
    pub(super) fn check(&self, pool: &str, user: u32, slots: u32, now: Timestamp) -> Result<(), PoolRefusal> {
        let found = self.pools.binary_search_by(|known| (*known.name).cmp(pool));
        let Some(limits) = found.ok().and_then(|index| self.pools.get(index)) else { return Ok(()) };
        let refusal = if !limits.uids.is_empty() && !limits.uids.contains(&user) {
            PoolRefusal::User { pool: limits.name.clone(), user }
        } else if let Some(max) = limits.slots_max.filter(|max| slots > *max) {
            PoolRefusal::Slots { pool: limits.name.clone(), slots, max }
        } else {
            return Ok(());
        };
        self.log_refusal(&refusal, user, now);
        Err(refusal)
    }

    /// Logs a refusal. The pool comes from the settings, so this logs no text of a client.
    fn log_refusal(&self, refusal: &PoolRefusal, user: u32, now: Timestamp) {
        if let Some(connections) = self.throttle.count_event(now) {
            let (PoolRefusal::User { pool, .. } | PoolRefusal::Slots { pool, .. }) = refusal;
            warn!(
                user,
                connections,
                "{refusal}: its requests are not checked; help: see `pools.{pool}` in the settings"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PoolAccess, PoolLimits, PoolRefusal};
    use crate::clock::Timestamp;

    #[test]
    fn pool_refuses_other_users_and_too_many_slots() {
        let limits = |name: &str, uids: &[u32], slots_max| PoolLimits {
            name: name.into(),
            uids: uids.into(),
            slots_max,
        };
        let access = PoolAccess::new([limits("web", &[33, 0], Some(8)), limits("any", &[], Some(0))]);
        let user = |user| Err(PoolRefusal::User { pool: "web".into(), user });
        let slots = |pool: &str, slots, max| Err(PoolRefusal::Slots { pool: pool.into(), slots, max });
        let table = [
            ("web", 33, 8, Ok(())),
            ("web", 0, 0, Ok(())),
            ("web", 1000, 1, user(1000)),
            ("web", 33, 9, slots("web", 9, 8)),
            ("any", 1000, 0, Ok(())),
            ("any", 1000, 1, slots("any", 1, 0)),
            ("we", 1000, u32::MAX, Ok(())),
        ];
        for (pool, user, slots, expected) in table {
            let is = access.check(pool, user, slots, Timestamp::from_nanos(0));
            assert_eq!(is, expected, "{pool} {user} {slots}");
        }
    }
}
