//! The snapshot as plain data: copied out during operation, restored before it begins. Serialization and
//! files are elsewhere.
//!
//! All times are on the engine's own timeline. A restoring process continues that timeline, so that the
//! downtime counts as elapsed.

mod copy;
mod previous_quotas;
mod restore;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

pub(super) use copy::copy_pieces;
pub(super) use previous_quotas::{PreviousQuotas, fingerprint, fingerprint_names};
pub(super) use restore::FIRST_RULE_SET;
pub use restore::{InvalidEntry, Restore};

pub use super::digest::{Digest, Salt};
pub use super::idempotency::{Grant, NamedGrant};
pub use super::leases::{Lease, LeaseCharge, LeaseCost, LeaseResource, OpenSession};
pub use super::refundable_costs::RefundableCost;
pub use crate::limit::QuotaLevel;

/// One entry of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SnapshotEntry {
    /// A fingerprint of the names and order of the rules in force. Precedes all grants.
    Rules(u64),
    /// The previous quotas of a rule's buckets.
    Rule(StoredRule),
    /// A pool.
    Pool(Box<StoredPool>),
    /// The arrival times of some token and leaky buckets, which are most keys: a list takes less than an entry each.
    Buckets(Vec<(Digest, u64)>),
    /// Some fixed windows: when their keys entered them, and their counts.
    Windows(Vec<(Digest, Timestamp, u32)>),
    /// A sliding window: when its newest bucket was first counted in, and the counts, newest first.
    SlidingWindow(Digest, Timestamp, Vec<u32>),
    /// A sliding log: times with their units, oldest first.
    Log(Digest, Vec<(u64, u32)>),
    /// A key of a fleet concurrency limit with leases, and the number of its limit.
    #[serde(rename = "Places")]
    Permits(Digest, u64),
    /// Some shares of fleet budgets: for an outage, the arrival times of the bucket of this host, and of the one in Redis by
    /// its last reply.
    Shares(Vec<(Digest, u64, u64)>),
    /// A blocked key and the end of its block.
    Block(Digest, Timestamp),
    /// A key above its soft limit: since when, and until when without further requests.
    Soft(Digest, Timestamp, Timestamp),
    /// The grant of a request with an idempotency key.
    Repeat(Digest, NamedGrant),
    /// The cost of a named grant or charge, until it is refunded.
    Spent(Digest, RefundableCost),
    /// A session.
    Session(Box<OpenSession>),
    /// A lease of the preceding session.
    Lease(Box<Lease>),
}

impl SnapshotEntry {
    /// Returns the number of keys of a list; 1 for other entries.
    pub fn count(&self) -> usize {
        match self {
            SnapshotEntry::Buckets(buckets) => buckets.len(),
            SnapshotEntry::Windows(windows) => windows.len(),
            SnapshotEntry::Shares(shares) => shares.len(),
            _ => 1,
        }
    }
}

/// The quotas under which a rule's buckets were last used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRule {
    /// Identifies the rule.
    pub identity: u64,
    /// The fingerprint of the quotas, and the mark on the buckets.
    pub quotas: (u64, u8),
}

/// A pool and the state of its shedding controller. The brake is not stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredPool {
    /// Its name.
    pub name: Box<str>,
    /// The controller's parameters: good, bad, after, full, leak.
    #[serde(rename = "law")]
    pub parameters: [f64; 5],
    /// The severity, s.
    pub severity: f64,
    /// How long no signal had arrived, in nanoseconds.
    pub silent_nanos: u64,
    /// The time of its last step.
    pub stepped: Timestamp,
}
