//! A caller over a limit of his own is told so, exactly, on a full host too, and shedding does not count him.

use tidegate::clock::Now;

use crate::plan::{MILLI, SECOND};
use crate::real::Real;
use crate::shedder::{Asked, By, Said, Setting, Shedder, View};

/// The real engine beside a token bucket for the greedy caller, 5 a second and 10 at once, kept as a theoretical arrival
/// time: ITU-T I.371, annex A.
pub(crate) struct Watched {
    real: Real,
    arrival: u64,
    shed: [u64; 4],
    limited: u64,
}

impl Watched {
    pub(crate) fn new(setting: &Setting) -> Watched {
        Watched { real: Real::new(setting), arrival: 0, shed: [0; 4], limited: 0 }
    }

    fn check_greedy(&mut self, said: Said, at: u64) {
        let arrival = self.arrival.max(at) + 200 * MILLI;
        let wait = (arrival - at).saturating_sub(2 * SECOND);
        match said {
            Said::Limit => {
                let retry = self.real.retry.map(|retry| retry.0);
                assert_eq!(retry, Some(wait.div_ceil(1_000)), "the exact wait, at {at}");
                assert!(wait > 0, "limited within his limit, at {at}");
            }
            _ => assert_eq!(wait, 0, "{said:?} over his limit, at {at}"),
        }
        if matches!(said, Said::Grant { .. }) {
            self.arrival = arrival;
        }
    }
}

impl Shedder for Watched {
    fn ask(&mut self, asked: &Asked, at: u64) -> Said {
        let said = self.real.ask(asked, at);
        match said {
            Said::Shed { by } => self.shed[by as usize] += 1,
            Said::Limit => self.limited += 1,
            Said::Grant { .. } => {}
        }
        if asked.caller == 0 {
            self.check_greedy(said, at);
        } else {
            assert_ne!(said, Said::Limit, "only one caller has a limit");
        }
        said
    }

    fn release(&mut self, worker: u32, lease: u64, at: u64) {
        self.real.release(worker, lease, at);
    }

    fn tick(&mut self, queue: u32, at: u64) {
        self.real.tick(queue, at);
        if Now::at_nanos(at).at.as_nanos().is_multiple_of(60 * SECOND) {
            let totals = self.real.engine.totals();
            let refused =
                |rule: &str| totals.rules.iter().find(|known| &*known.rule == rule).map(|rule| rule.refuse);
            assert_eq!(refused("per-caller"), Some(self.limited));
            for by in [By::Brake, By::Workers, By::QueueAge] {
                assert_eq!(refused(by.rule()), Some(self.shed[by as usize]), "{by:?} counts what it refused");
            }
        }
    }

    fn view(&self) -> View {
        self.real.view()
    }
}
