//! Counts releases and renewals of leases that the session does not hold, by the reason.

use serde::{Deserialize, Serialize};

use super::{Leases, Session, TABLES};
use crate::engine::sync::{AtomicU64, Ordering};

/// Why a session does not hold a lease that it named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotHeld {
    Ended,
    Foreign,
    /// This daemon has granted no lease of this number.
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct RecentLeaseCounts([AtomicU64; 3]);

/// RELEASE and RENEW of leases that the session did not hold, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotHeldTotals {
    /// The lease had ended: released twice, expired, or ended with its process.
    pub ended: u64,
    /// Another session holds it.
    pub foreign: u64,
    /// This daemon has granted no lease of this number. An invented number counts as `ended` with a probability
    /// of n / 2²⁴ for n leases held at once at the peak.
    pub unknown: u64,
}

impl RecentLeaseCounts {
    pub(super) fn totals(&self) -> NotHeldTotals {
        let of = |why: NotHeld| self.0.get(why as usize).map_or(0, |count| count.load(Ordering::Relaxed));
        NotHeldTotals {
            ended: of(NotHeld::Ended),
            foreign: of(NotHeld::Foreign),
            unknown: of(NotHeld::Unknown),
        }
    }
}

impl Leases {
    /// Counts a number that a session named and does not hold. It locks one table after the other, which is
    /// acceptable for a client error: each lock is held no longer than to end a lease.
    #[cold]
    pub(in crate::engine) fn count_not_held(&self, session: &Session, number: u64) {
        let hidden = self.numbers.decode_index(number);
        let mut why = NotHeld::Unknown;
        for table_number in 0..TABLES {
            let table = self.lock_table(table_number);
            match table.find(hidden, number).map(|(_, lease)| lease.member) {
                // The session is ending, and the lease with it.
                Some(member) if (table_number, member) == (session.0.table, session.0.member) => {
                    why = NotHeld::Ended;
                }
                Some(_) => {
                    why = NotHeld::Foreign;
                    break;
                }
                None if table.leases.was_allocated(hidden) => why = NotHeld::Ended,
                None => {}
            }
        }
        if let Some(count) = self.not_held.0.get(why as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
