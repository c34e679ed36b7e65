//! Requests that wait for a place of one key.

use super::{GAP_SHORT, PlacesAsk, PlacesPage, PlacesSaid};
use std::time::Duration;

impl PlacesPage {
    /// Whether somebody waits for a place.
    pub(in crate::fleet) fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// So many wait for a place.
    pub(in crate::fleet) fn set_waiting(&mut self, waiting: u32) {
        self.waiting = waiting;
    }

    /// For how long nobody here is to ask again, where there was no place for who waits. Zero: there was. However many hosts
    /// ask, together they do so some hundred times a second: those oftener that have more of the demand.
    pub(in crate::fleet) fn refused_for(&self, ask: &PlacesAsk, said: &PlacesSaid) -> Duration {
        if said.grant >= ask.need {
            return Duration::ZERO;
        }
        let others = said.demand.checked_div(ask.demand.max(1)).unwrap_or(0);
        let times = u32::try_from(others).unwrap_or(u32::MAX);
        ASK_EVERY.saturating_mul(times).clamp(ASK_EVERY, GAP_SHORT)
    }
}

/// Where there is no place for who waits, all hosts together ask once in this time.
const ASK_EVERY: Duration = Duration::from_micros(2_500);
