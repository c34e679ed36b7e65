//! How long a key has been in the soft part of its allowance.

use super::tag::{Fading, Tag};
use crate::clock::{Now, Timestamp};

/// A key that uses more than its quota, as its rule lets it for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Soft {
    /// The first request passed over, since it last had some of its quota left.
    pub(super) since: Timestamp,
    /// When it will have some of its quota left, if nothing else comes.
    pub(super) ends: Timestamp,
}

impl Fading for Soft {
    fn nanos_until_fresh(&self, _: Tag, now: Now) -> u64 {
        self.ends.as_nanos().saturating_sub(now.at.as_nanos())
    }
}
