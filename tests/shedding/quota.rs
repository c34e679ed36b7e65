//! Tests that a caller over its own limit receives an exact 429 on a full host too, and shedding does not
//! count it.

use std::collections::HashMap;

use tidegate::clock::Micros;
use tidegate::engine::Engine;

use crate::plan::{MILLI, SECOND};
use crate::real::{Asked, Said};

/// A token bucket for the greedy caller, rate 5/s and burst 10, as a theoretical arrival time (ITU-T I.371,
/// annex A); and the refusals of each part.
#[derive(Debug, Default)]
pub(crate) struct QuotaCheck {
    arrival: u64,
    shed: HashMap<&'static str, u64>,
    limited: u64,
}

impl QuotaCheck {
    pub(crate) fn check(&mut self, asked: &Asked, said: Said, retry: Option<Micros>, at: u64) {
        match said {
            Said::Shed(by) => *self.shed.entry(by).or_default() += 1,
            Said::Limit => self.limited += 1,
            Said::Grant(_) => {}
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
        if matches!(said, Said::Grant(_)) {
            self.arrival = arrival;
        }
    }

    /// Checks that the totals of the engine agree.
    pub(crate) fn check_counts(&self, engine: &Engine) {
        let totals = engine.totals();
        let refused =
            |rule: &str| totals.rules.iter().find(|known| &*known.rule == rule).map(|rule| rule.refuse);
        assert_eq!(refused("per-caller"), Some(self.limited));
        for by in ["web/brake", "web/workers", "web/queue_age"] {
            let shed = self.shed.get(by).copied().unwrap_or(0);
            assert_eq!(refused(by), Some(shed), "{by} counts what it refused");
        }
    }
}
