//! What all keys have in common.

use crate::clock::Timestamp;
use std::time::Duration;

/// At a moment.
#[derive(Clone, Copy, Debug)]
pub(in crate::fleet) struct Pace {
    pub(in crate::fleet) now: Timestamp,
    /// Hosts that live.
    pub(in crate::fleet) hosts: u32,
    /// There and back.
    pub(in crate::fleet) round_trip: Duration,
    /// Redis is heard again, and others may live on their own parts still.
    pub(in crate::fleet) others_are_away: bool,
}
