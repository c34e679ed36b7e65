//! Counts active switches by their origin. `GET /switches` lists them.

use std::fmt;

use super::{Scrape, Sheet};
use crate::engine::{Engine, SwitchOrigin, SwitchView, Target};

/// Number of active switches for every combination of origin and scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switches([([(&'static str, &'static str); 2], u64); 6]);

impl Switches {
    /// Also those that wait for a rule that is gone, as `tidegate switch` lists them.
    pub(super) fn of(engine: &Engine) -> Switches {
        let (here, everywhere) = (engine.switches(), engine.fleet_switches());
        let count = |by: &str, reach: &str| {
            let switches = here.iter().chain(&everywhere);
            switches.filter(|view| (said_by(view), reach_of(view)) == (by, reach)).count() as u64
        };
        let of = |by, reach| ([("by", by), ("reach", reach)], count(by, reach));
        Switches([
            of("host", "everything"),
            of("host", "rule"),
            of("fleet", "everything"),
            of("fleet", "rule"),
            of("guard", "rule"),
            ([("by", "file"), ("reach", "everything")], u64::from(engine.is_off())),
        ])
    }
}

pub(super) fn write(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let help = "What is in another mode than the files say, by who said so: host, fleet: by hand, on this host or to \
                all; guard; file: the file that allows everything";
    sheet.gauges("switches", help, scrape.switches.0)
}

fn said_by(view: &SwitchView) -> &'static str {
    match view.switch.by {
        SwitchOrigin::User(_) => "host",
        SwitchOrigin::Guard => "guard",
        SwitchOrigin::Fleet { .. } => "fleet",
    }
}

fn reach_of(view: &SwitchView) -> &'static str {
    match view.switch.target {
        Target::Daemon => "everything",
        Target::Rule(_) => "rule",
    }
}
