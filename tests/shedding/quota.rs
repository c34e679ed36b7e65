//! Tests that a caller over its own limit receives an exact 429 on a full host too, and shedding does not
//! count it.

use tidegate::clock::Micros;
use tidegate::engine::Engine;

use crate::plan::{MILLI, SECOND};
use crate::real::{Asked, By, Said};

/// A token bucket for the greedy caller, rate 5/s and burst 10, as a theoretical arrival time (ITU-T I.371,
/// annex A); and the refusals of each part.
#[derive(Debug, Default)]
pub(crate) struct QuotaCheck {
    arrival: u64,
    shed: [u64; 4],
    limited: u64,
}

impl QuotaCheck {
    pub(crate) fn check(&mut self, asked: &Asked, said: Said, retry: Option<Micros>, at: u64) {
        match said {
            Said::Shed { by } => self.shed[by as usize] += 1,
            Said::Limit => self.limited += 1,
            Said::Grant { .. } => {}
        }
        if asked.caller == 0 {
            self.check_greedy(said, retry, at);
        } else {
            assert_ne!(said, Said::Limit, "only one caller has a limit");
        }
    }

    fn check_greedy(&mut self, said: Said, retry: Option<Micros>, at: u64) {
        let arrival = self.arrival.max(at) + 200 * MILLI;
        let wait = (arrival - at).saturating_sub(2 * SECOND);
        match said {
            Said::Limit => {
                let retry = retry.map(|retry| retry.0);
                assert_eq!(retry, Some(wait.div_ceil(1_000)), "the exact wait, at {at}");
                assert!(wait > 0, "limited within his limit, at {at}");
            }
            _ => assert_eq!(wait, 0, "{said:?} over his limit, at {at}"),
        }
        if matches!(said, Said::Grant { .. }) {
            self.arrival = arrival;
        }
    }

    /// Checks that the totals of the engine agree.
    pub(crate) fn check_counts(&self, engine: &Engine) {
        let totals = engine.totals();
        let refused =
            |rule: &str| totals.rules.iter().find(|known| &*known.rule == rule).map(|rule| rule.refuse);
        assert_eq!(refused("per-caller"), Some(self.limited));
        for by in [By::Brake, By::Workers, By::QueueAge] {
            assert_eq!(refused(by.rule()), Some(self.shed[by as usize]), "{by:?} counts what it refused");
        }
    }
}
