//! Which users may say that they work in which pools, and with how many slots, as the settings say. It knows numbers of
//! users, never who they are.

use std::sync::{Mutex, PoisonError};

use tracing::warn;

use super::word::Word;
use crate::clock::Timestamp;

/// The pools that something is said of.
#[derive(Debug, Default)]
pub struct PoolAccess {
    /// In order of their names.
    pools: Box<[PoolLimits]>,
    word: Mutex<Word>,
}

/// What holds for one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Its name.
    pub name: Box<str>,
    /// The users whose processes may work in it; none: whoever the socket lets in.
    pub users: Vec<u32>,
    /// The most slots that one process may say it has; `None`: any number.
    pub slots_max: Option<u32>,
}

/// Why a process may not work in a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Closed {
    #[error("the pool `{pool}` is not open to user {user}")]
    User { pool: Box<str>, user: u32 },
    #[error("{slots} slots are more than the pool `{pool}` allows a process, which is {max}")]
    Slots { pool: Box<str>, slots: u32, max: u32 },
}

impl PoolAccess {
    /// What holds for each pool. One that is not named is open to all.
    #[must_use]
    pub fn new(pools: impl IntoIterator<Item = PoolLimits>) -> PoolAccess {
        let mut pools: Vec<_> = pools.into_iter().collect();
        pools.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        PoolAccess { pools: pools.into_boxed_slice(), word: Mutex::default() }
    }

    /// Whether a process of this user may work in this pool, with so many slots. Says in the log when not, for then its
    /// requests go on without limits.
    pub(super) fn check(&self, pool: &str, user: u32, slots: u32, now: Timestamp) -> Result<(), Closed> {
        let found = self.pools.binary_search_by(|known| (*known.name).cmp(pool));
        let Some(limits) = found.ok().and_then(|index| self.pools.get(index)) else { return Ok(()) };
        let closed = if !limits.users.is_empty() && !limits.users.contains(&user) {
            Closed::User { pool: limits.name.clone(), user }
        } else if let Some(max) = limits.slots_max.filter(|max| slots > *max) {
            Closed::Slots { pool: limits.name.clone(), slots, max }
        } else {
            return Ok(());
        };
        self.tell(&closed, user, now);
        Err(closed)
    }

    /// The pool is one of the settings, so this is no text of a caller.
    fn tell(&self, closed: &Closed, user: u32, now: Timestamp) {
        let due = self.word.lock().unwrap_or_else(PoisonError::into_inner).is_due(now);
        if let Some(connections) = due {
            let (Closed::User { pool, .. } | Closed::Slots { pool, .. }) = closed;
            warn!(
                user,
                connections,
                "{closed}: what it asks is not judged; see `pools.{pool}` of the settings if it should be"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Closed, PoolAccess, PoolLimits};
    use crate::clock::Timestamp;

    #[test]
    fn a_pool_is_open_to_its_users_up_to_its_slots_and_every_other_pool_to_all() {
        let limits = |name: &str, users: &[u32], slots_max| PoolLimits {
            name: name.into(),
            users: users.into(),
            slots_max,
        };
        let access = PoolAccess::new([limits("web", &[33, 0], Some(8)), limits("any", &[], Some(0))]);
        let user = |user| Err(Closed::User { pool: "web".into(), user });
        let slots = |pool: &str, slots, max| Err(Closed::Slots { pool: pool.into(), slots, max });
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
