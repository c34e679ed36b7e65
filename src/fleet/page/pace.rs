//! Inputs common to all keys of a tick.

use crate::clock::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(in crate::fleet) struct Pace {
    pub(in crate::fleet) now: Timestamp,
    pub(in crate::fleet) hosts: u32,
    pub(in crate::fleet) round_trip: Duration,
    /// Redis is reachable again, but other hosts may still be in fallback.
    pub(in crate::fleet) others_are_away: bool,
}
