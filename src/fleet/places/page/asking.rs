//! Pending requests for a permit of one key.

use super::{GAP_SHORT, KeyPermitReply, PermitKeySync, PermitRequest};
use std::time::Duration;

impl PermitKeySync {
    pub(in crate::fleet) fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    pub(in crate::fleet) fn set_waiting(&mut self, waiting: u32) {
        self.waiting = waiting;
    }

    /// The pause after Redis granted less than the pending requests need; else zero. Hosts with more of the
    /// demand ask more often: ten equal hosts at most 400 times per second together, further ones 40 each.
    pub(in crate::fleet) fn refused_for(&self, ask: &PermitRequest, said: &KeyPermitReply) -> Duration {
        if said.grant >= ask.need {
            return Duration::ZERO;
        }
        let others = said.demand.checked_div(ask.demand.max(1)).unwrap_or(0);
        let times = u32::try_from(others).unwrap_or(u32::MAX);
        ASK_EVERY.saturating_mul(times).clamp(ASK_EVERY, GAP_SHORT)
    }
}

/// The interval of commands of all hosts together while no permit is free for pending requests.
const ASK_EVERY: Duration = Duration::from_micros(2_500);
