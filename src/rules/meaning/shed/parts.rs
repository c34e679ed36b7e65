//! Reader of the parts of a `shed` entry, one by one.

use std::time::Duration;

use super::super::mode;
use super::super::spans::{Bounds, DAY, SECOND, span};
use crate::rules::amount;
use crate::rules::fields::{Fields, boolean, list, text};
use crate::rules::percent::{self, Percent};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::shed::{BrakeRule, FleetReserve, QueueAge, Workers};
use crate::rules::shed_fields::{BRAKE, QUEUE_AGE, RESERVE, WORKERS};
use crate::rules::source::{Report, Span};
use crate::rules::yaml::YamlNode;

pub(super) fn queue_age(node: &YamlNode, report: &mut Report<'_>) -> Option<QueueAge> {
    let fields = Fields::read(node, "`queue_age`", QUEUE_AGE, report)?;
    let default = QueueAge::default();
    let mode = mode(&fields, report);
    let others = span_or(&fields, "others", default.others, AGE, report);
    let critical = span_or(&fields, "critical", default.critical, AGE, report);
    let queue_age = QueueAge { mode: mode?, others: others?, critical: critical? };
    if queue_age.critical < queue_age.others {
        let at = fields.get("critical").or(fields.get("others")).unwrap_or(node).at;
        let mend = "let `critical` be the longer of the two";
        report.warning(at, "the most important is refused sooner than the others", mend);
    }
    Some(queue_age)
}

pub(super) fn workers(node: &YamlNode, report: &mut Report<'_>) -> Option<Workers> {
    let fields = Fields::read(node, "`workers`", WORKERS, report)?;
    let default = Workers::default();
    let mode = mode(&fields, report);
    let good = share_or(&fields, "good", default.good, report);
    let bad = share_or(&fields, "bad", default.bad, report);
    let after = span_or(&fields, "after", default.after, AFTER, report);
    let full = span_or(&fields, "full", default.full, FULL, report);
    let shed_critical = flag(&fields, "shed_critical", report);
    let stripe_exact = flag(&fields, "stripe_exact", report);
    let leak = leak(&fields, stripe_exact == Some(true), report);
    let workers = Workers {
        mode: mode?,
        good: good?,
        bad: bad?,
        after: after?,
        full: full?,
        leak: leak?,
        shed_critical: shed_critical?,
        stripe_exact: stripe_exact?,
    };
    let share = |share: u16| Percent(u32::from(share));
    if workers.good >= workers.bad {
        let at = fields.get("bad").or(fields.get("good")).unwrap_or(node).at;
        let message = format!("`good: {}` is not below `bad: {}`", share(workers.good), share(workers.bad));
        report.error(
            at,
            message,
            "the host recovers below `good` and sheds above `bad`: leave room in between",
        );
        return None;
    }
    let at = |name: &str| fields.get(name).unwrap_or(node).at;
    if workers.bad == WHOLE {
        let mend = "write less, such as 80%";
        report.warning(at("bad"), "`bad: 100%`: no pool is busier than that, so nothing is refused", mend);
    }
    if workers.full < FULL_CALM {
        let mend = "write at least 60s; 120s is known to be calm";
        report.warning(at("full"), "shedding that turns up in less than 60s may swing", mend);
    }
    Some(workers)
}

/// Reads the decrease per second: `1/1800`, or 0.
fn leak(fields: &Fields<'_>, exact: bool, report: &mut Report<'_>) -> Option<(u32, u32)> {
    let Some(node) = fields.get("leak") else {
        return Some(if exact { (0, 1) } else { Workers::default().leak });
    };
    let written = text(node, "leak", report)?;
    let leak = report.settle(node.at, fraction(written))?;
    if exact {
        let mend = "leave one of the two out: as it was published it has none";
        report.error(node.at, "`stripe_exact: true` and a `leak`: only one of them can hold", mend);
        return None;
    }
    Some(leak)
}

fn fraction(text: &str) -> Result<(u32, u32), ValueProblem> {
    if text == "0" {
        return Ok((0, 1));
    }
    let parts = text.split_once('/').map(|(part, whole)| (amount::parse(part), amount::parse(whole)));
    match parts {
        Some((Ok(_), Ok(0))) => {
            Err(ValueProblem::new(format!("`leak: {text}` divides by 0"), "write it like 1/1800"))
        }
        Some((Ok(0), Ok(_))) => Ok((0, 1)),
        Some((Ok(part), Ok(whole))) if part <= whole => Ok((part, whole)),
        Some((Ok(_), Ok(_))) => Err(ValueProblem::new(
            format!("`leak: {text}` is more than all of it in a second"),
            "write it like 1/1800",
        )),
        _ => Err(ValueProblem::new(
            format!("`leak` is a fraction, not {}", shown(text)),
            "write how much of the whole goes in a second, such as 1/1800, or 0",
        )),
    }
}

/// Reads the brake, with the span of its bands; without them they are empty, to be settled later.
pub(super) fn brake(node: &YamlNode, report: &mut Report<'_>) -> Option<(BrakeRule, Option<Span>)> {
    let fields = Fields::read(node, "`brake`", BRAKE, report)?;
    let mode = mode(&fields, report);
    let bands = match fields.get("bands") {
        Some(node) => Some((bands(node, report)?, node.at)),
        None => None,
    };
    let (bands, at) = bands.unzip();
    Some((BrakeRule { mode: mode?, bands: bands.unwrap_or_default() }, at))
}

fn bands(node: &YamlNode, report: &mut Report<'_>) -> Option<Vec<u16>> {
    let mend = "write a share of the slots for each priority but the first: `bands: [70%, 80%, 90%]`";
    let items = list(node, "bands", mend, report)?;
    let mut bands: Vec<u16> = Vec::with_capacity(items.len());
    for item in items {
        let band = report.settle(item.at, percent::read_from_0(item, "bands", WHOLE))?;
        if bands.last().is_some_and(|before| *before > band) {
            let mend = "start with the least important, whose share is the smallest";
            report.error(item.at, "`bands` go down: what is more important may use less", mend);
            return None;
        }
        bands.push(band);
    }
    Some(bands)
}

pub(crate) type NamedPart = (Box<str>, Span);

/// Reads the reserve, with the priority it is for, if written.
pub(super) fn reserve(node: &YamlNode, report: &mut Report<'_>) -> Option<(FleetReserve, Option<NamedPart>)> {
    let fields = Fields::read(node, "`fleet` in `shed`", RESERVE, report)?;
    let mode = mode(&fields, report);
    let share = fields.required("reserve", "write `reserve: 20%`", report);
    let share = share.and_then(|node| report.settle(node.at, percent::read(node, "reserve", RESERVE_MAX)));
    let reserved_for = match fields.get("for") {
        Some(node) => Some((text(node, "for", report)?.into(), node.at)),
        None => None,
    };
    Some((FleetReserve { mode: mode?, reserve: share?, reserved_for: 0 }, reserved_for))
}

fn flag(fields: &Fields<'_>, name: &str, report: &mut Report<'_>) -> Option<bool> {
    fields.get(name).map_or(Some(false), |node| boolean(node, name, report))
}

fn share_or(fields: &Fields<'_>, name: &str, default: u16, report: &mut Report<'_>) -> Option<u16> {
    match fields.get(name) {
        Some(node) => report.settle(node.at, percent::read(node, name, WHOLE)),
        None => Some(default),
    }
}

fn span_or(
    fields: &Fields<'_>,
    name: &str,
    default: Duration,
    bounds: Bounds,
    report: &mut Report<'_>,
) -> Option<Duration> {
    fields.get(name).map_or(Some(default), |node| span(node, name, bounds, report))
}

/// All of it, in thousandths.
const WHOLE: u16 = 1_000;

/// A reserve of everything would refuse all other requests.
const RESERVE_MAX: u16 = 999;

/// Longer waits reported by requests are not trusted.
const AGE: Bounds = [(1, "1ms"), (60 * SECOND, "60s")];

/// Shedding that starts after more than a day is no protection.
const AFTER: Bounds = [(SECOND, "1s"), (DAY, "1day")];

/// Below 30 s the control loop is unstable, as its effect is measured about 5 s late.
const FULL: Bounds = [(30 * SECOND, "30s"), (DAY, "1day")];

/// Below this value the loop is stable with a small margin only.
const FULL_CALM: Duration = Duration::from_secs(60);
