//! Resolution of the parts of a `shed` entry that depend on the priorities of its domain.

use super::super::priorities::nearest;
use super::UnsettledShed;
use crate::rules::percent::Percent;
use crate::rules::problem::shown;
use crate::rules::shed::{Shed, ShedPart};
use crate::rules::source::{Report, Span};

impl UnsettledShed {
    pub(crate) fn file(&self) -> &std::sync::Arc<str> {
        &self.shed.position.file
    }

    /// Resolves the priorities, of which there may be none, and reports errors.
    pub(crate) fn settle(mut self, priorities: &[Box<str>], report: &mut Report<'_>) -> Shed {
        if let (true, Some((part, at))) = (priorities.is_empty(), self.needs.first()) {
            // One error suffices, as one line repairs all.
            let message =
                format!("`{}` refuses by importance, and the domain has no `priorities`", part.name());
            report.error(*at, message, "write `priorities: [MOST IMPORTANT, …, LEAST]` once in the domain");
            return self.shed;
        }
        for (part, at) in std::mem::take(&mut self.needs) {
            match part {
                ShedPart::Brake => self.settle_brake(priorities, at, report),
                ShedPart::Fleet => self.settle_reserve(priorities, at, report),
                ShedPart::Workers => self.check_workers(priorities, at, report),
                ShedPart::QueueAge => {}
            }
        }
        self.shed
    }

    fn settle_brake(&mut self, priorities: &[Box<str>], at: Span, report: &mut Report<'_>) {
        let sheddable = priorities.len().saturating_sub(1);
        if sheddable == 0 {
            report.error(at, alone("brake", priorities), MEND_ALONE);
            return;
        }
        let Some(brake) = &mut self.shed.brake else { return };
        let Some(bands_at) = self.bands_at else {
            brake.bands = default_bands(sheddable);
            self.doubt_bands(priorities, at, report);
            return;
        };
        if brake.bands.len() == sheddable {
            self.doubt_bands(priorities, bands_at, report);
        } else {
            let message =
                format!("`bands` has {}, and {sheddable} priorities can be refused", brake.bands.len());
            let names: Vec<_> = priorities.iter().skip(1).rev().map(|name| shown(name)).collect();
            report.error(
                bands_at,
                message,
                format!("write one for each of {}, in this order", names.join(", ")),
            );
        }
    }

    /// Warns of bands that round up to all slots, although they are below 100 %.
    fn doubt_bands(&self, priorities: &[Box<str>], at: Span, report: &mut Report<'_>) {
        let (Some(slots), Some(brake)) = (self.shed.slots, &self.shed.brake) else { return };
        let is_all = |band: u16| {
            band < WHOLE
                && (u64::from(slots) * u64::from(band)).div_ceil(u64::from(WHOLE)) >= u64::from(slots)
        };
        let each = priorities.iter().skip(1).rev().zip(&brake.bands);
        let free: Vec<_> =
            each.filter(|(_, band)| is_all(**band)).map(|(name, _)| shown(name).to_string()).collect();
        if free.is_empty() {
            return;
        }
        let message = format!(
            "of `slots: {slots}` the band of {} is all: the brake keeps no slot free of that",
            free.join(", ")
        );
        // In whole percent: with one slot there is none to keep free.
        let most = (u64::from(slots) - 1) * 100 / u64::from(slots);
        let mend = if most == 0 {
            "leave `brake` out: of one slot there is none to keep free".to_owned()
        } else {
            format!("write at most {most}% for it: bands are rounded up to whole slots")
        };
        report.warning(at, message, mend);
    }

    fn settle_reserve(&mut self, priorities: &[Box<str>], at: Span, report: &mut Report<'_>) {
        let Some(reserve) = &mut self.shed.fleet else { return };
        let mut for_at = at;
        if let Some((name, name_at)) = &self.reserved_for {
            for_at = *name_at;
            let Some(place) = priorities.iter().position(|known| known == name) else {
                let message = format!("unknown priority {} in `for`", shown(name));
                report.error(*name_at, message, nearest(name, priorities));
                return;
            };
            reserve.reserved_for = place;
        }
        if reserve.reserved_for + 1 >= priorities.len() {
            let message = "the reserve is for every priority: it keeps nothing back";
            report.error(for_at, message, "write one in `for` that is more important than the last");
            return;
        }
        let left = u64::from(WHOLE.saturating_sub(reserve.reserve));
        if let Some(slots) = self.shed.slots.filter(|slots| u64::from(*slots) * left < u64::from(WHOLE)) {
            let share = Percent(u32::from(reserve.reserve));
            let message = format!(
                "of `slots: {slots}` a reserve of {share} leaves none to other work: all of it is refused"
            );
            report.warning(
                at,
                message,
                "write a smaller `reserve`: what is left is rounded down to whole slots",
            );
        }
    }

    fn check_workers(&self, priorities: &[Box<str>], at: Span, report: &mut Report<'_>) {
        let all = self.shed.workers.is_some_and(|workers| workers.shed_critical);
        if priorities.len() < 2 && !all && self.shed.workers.is_some() {
            report.error(at, alone("workers", priorities), MEND_ALONE);
        }
    }
}

fn alone(part: &str, priorities: &[Box<str>]) -> String {
    let only = priorities.first().map_or("", |name| name);
    format!("`{part}` never refuses the most important, and there is nothing but {}", shown(only))
}

/// Returns bands evenly spread from 70 % for the lowest priority to 90 %.
fn default_bands(sheddable: usize) -> Vec<u16> {
    let steps = u16::try_from(sheddable.saturating_sub(1)).unwrap_or(u16::MAX).max(1);
    (0..sheddable)
        .map(|place| {
            let place = u16::try_from(place).unwrap_or(u16::MAX);
            LOWEST + (HIGHEST - LOWEST).saturating_mul(place) / steps
        })
        .collect()
}

const MEND_ALONE: &str = "write a less important priority behind it in `priorities`";

/// All of it, in thousandths.
const WHOLE: u16 = 1_000;

const LOWEST: u16 = 700;
const HIGHEST: u16 = 900;
