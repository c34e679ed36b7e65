//! A limit on work that many hosts share, where its host has no idle place.

use super::{Case, Part};
use crate::engine::shards::Shard;
use crate::limit::places;

impl Part {
    /// Whether a call might bring the place that is lacking. What will have no lease holds none, and nobody asks for it.
    pub(super) fn lacks_place(
        &self,
        quota: &places::Quota,
        by_what_is_known: bool,
        case: &Case<'_>,
        shard: &Shard,
    ) -> bool {
        let places = shard.places.find(&self.digest);
        match by_what_is_known {
            true => quota.may_pass_elsewhere(places, case.now.at),
            false => case.leases && quota.may_bring(places, case.now.at),
        }
    }
}
