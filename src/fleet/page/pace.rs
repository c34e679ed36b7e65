//! Inputs common to all keys of a tick.

use crate::clock::Timestamp;
use std::time::Duration;

/// The inputs at one moment.
#[derive(Clone, Copy, Debug)]
pub(in crate::fleet) struct Pace {
    pub(in crate::fleet) now: Timestamp,
    /// Live hosts.
    pub(in crate::fleet) hosts: u32,
    /// The smoothed round trip.
    pub(in crate::fleet) round_trip: Duration,
    /// Redis is reachable again, but other hosts may still be in fallback.
    pub(in crate::fleet) others_are_away: bool,
}
