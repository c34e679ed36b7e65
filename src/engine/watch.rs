//! What the rules in force say about one pool, in a form to shed by.

use crate::rules::shed::{Part, Shed};
use crate::rules::{Domain, Mode};
use crate::shed::chance;
use crate::shed::slow_law::SlowLaw;

/// What watches over one pool.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) shed: Shed,
    pub(super) law: SlowLaw,
    /// The priorities of its domain, the most important first.
    priorities: Vec<Box<str>>,
    /// No part is stricter than this.
    mode: Mode,
}

impl Watch {
    pub(super) fn new(domain: &Domain, shed: &Shed, mode: Mode) -> Watch {
        let law = shed.workers.as_ref().map_or_else(SlowLaw::default, |workers| SlowLaw {
            good: f64::from(workers.good) / 1_000.0,
            bad: f64::from(workers.bad) / 1_000.0,
            after: workers.after.as_secs_f64(),
            full: workers.full.as_secs_f64(),
            leak: if workers.stripe_exact {
                0.0
            } else {
                f64::from(workers.leak.0) / f64::from(workers.leak.1.max(1))
            },
        });
        Watch { shed: shed.clone(), law, priorities: domain.priorities().to_vec(), mode }
    }

    /// The mode of a part; none: it is off.
    pub(super) fn mode(&self, part: Part) -> Option<Mode> {
        let mode = self.shed.mode(part)?.max(self.mode);
        (mode != Mode::Disabled).then_some(mode)
    }

    /// Whether the brake is carried out.
    pub(super) fn brakes(&self) -> bool {
        self.mode(Part::Brake) == Some(Mode::Enforce)
    }

    /// Whether there is a slow law.
    pub(super) fn sheds(&self) -> bool {
        self.shed.workers.is_some()
    }

    /// The place of a priority among those that the slow law sheds, 0 being the first to go; none: it is never shed.
    pub(super) fn place(&self, priority: usize) -> Option<usize> {
        self.priorities.len().checked_sub(priority + 1).filter(|place| *place < self.sheddable())
    }

    /// How many priorities the slow law sheds: all but the most important, unless that is shed as well.
    pub(super) fn sheddable(&self) -> usize {
        let sheds_all = self.shed.workers.as_ref().is_some_and(|workers| workers.shed_critical);
        if sheds_all { self.priorities.len() } else { self.priorities.len().saturating_sub(1) }
    }

    /// With what chance a priority is refused by the slow law.
    pub(super) fn chance(&self, priority: usize, severity: f64) -> f64 {
        self.place(priority).map_or(0.0, |place| chance(severity, self.sheddable(), place))
    }

    /// The same of every priority, the least important first.
    pub(super) fn chances(&self, severity: f64) -> Vec<(Box<str>, f64)> {
        let each = self.priorities.iter().enumerate().rev();
        each.map(|(place, name)| (name.clone(), self.chance(place, severity))).collect()
    }

    /// What share of the slots a priority may use while the brake is on, in thousandths; none: all of them.
    pub(super) fn band(&self, priority: usize) -> Option<u16> {
        let from_last = self.priorities.len().checked_sub(priority + 1).filter(|_| priority > 0)?;
        self.shed.brake.as_ref()?.bands.get(from_last).copied()
    }

    /// Whether work of a priority is other work: what leaves alone what is kept back. Without a priority it is.
    pub(super) fn is_other(&self, priority: Option<usize>) -> bool {
        let reserved_for = self.shed.fleet.as_ref().map_or(0, |reserve| reserve.reserved_for);
        priority.is_none_or(|priority| priority > reserved_for)
    }
}
