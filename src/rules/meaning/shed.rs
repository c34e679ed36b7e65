//! Reader of `shed` entries. Priorities are resolved once all files of the domain are read.

mod parts;
mod settle;
mod signals;

use super::attribute;
use super::spans::{Bounds, DAY, SECOND, span};
use crate::rules::amount;
use crate::rules::fields::{Fields, check_name, list, text};
use crate::rules::problem::shown;
use crate::rules::shed::{CallerGrouping, Shed, ShedPart};
use crate::rules::shed_fields::{CALLERS, SHED};
use crate::rules::source::{Report, Span};
use crate::rules::yaml::YamlNode;
use parts::{NamedPart, brake, queue_age, reserve, workers};
use signals::signals;

#[derive(Debug)]
pub(crate) struct MeantShed {
    /// The pool and its span, even if the entry has errors: no other entry may have the pool.
    pub(crate) pool: Option<NamedPart>,
    /// The entry. Unreadable parts are missing and reported.
    pub(crate) entry: Option<UnsettledShed>,
}

/// An entry with unresolved priorities.
#[derive(Debug)]
pub(crate) struct UnsettledShed {
    shed: Shed,
    /// The parts that need priorities, and the spans of their names.
    needs: Vec<(ShedPart, Span)>,
    /// The span of the brake's bands, if written.
    bands_at: Option<Span>,
    /// The priority that the reserve is for, if written.
    reserved_for: Option<NamedPart>,
}

pub(crate) fn shed(node: &YamlNode, report: &mut Report<'_>) -> MeantShed {
    let Some(fields) = Fields::read(node, "an entry of `shed`", SHED, report) else {
        return MeantShed { pool: None, entry: None };
    };
    let pool = pool(&fields, report);
    let entry = entry(pool.as_ref(), &fields, report);
    MeantShed { pool, entry }
}

fn pool(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<NamedPart> {
    let node = fields.required("pool", "write `pool: NAME`, as its processes say it", report)?;
    let name = text(node, "pool", report)?;
    report.settle(node.at, check_name(name, "a pool"))?;
    Some((name.into(), node.at))
}

fn entry(pool: Option<&NamedPart>, fields: &Fields<'_>, report: &mut Report<'_>) -> Option<UnsettledShed> {
    let slots = fields.get("slots").and_then(|node| report.settle(node.at, amount::read(node, "slots")));
    let callers = fields.get("callers").and_then(|node| callers(node, report)).unwrap_or_default();
    let queue_age = fields.get("queue_age").and_then(|node| queue_age(node, report));
    let workers = fields.get("workers").and_then(|node| workers(node, report));
    let brake = fields.get("brake").and_then(|node| brake(node, report));
    let fleet = fields.get("fleet").and_then(|node| reserve(node, report));
    let signals = fields.get("signals").and_then(|node| signals(node, report)).unwrap_or_default();
    let (name, at) = pool?;
    if ShedPart::ALL.iter().all(|part| fields.get(part.name()).is_none()) && fields.get("signals").is_none() {
        let mend = "write a part, such as `workers: {}`, or leave the entry out";
        report.warning(
            *at,
            format!("nothing is refused in the pool {}: no part is written", shown(name)),
            mend,
        );
    }
    let needs = fields.iter().filter_map(|(field, at, _)| {
        let part =
            ShedPart::ALL.into_iter().find(|part| part.name() == field && *part != ShedPart::QueueAge)?;
        Some((part, at))
    });
    let (brake, bands_at) = brake.unzip();
    let (fleet, reserved_for) = fleet.unzip();
    let position = report.source().position(*at);
    Some(UnsettledShed {
        shed: Shed {
            pool: name.clone(),
            position,
            slots,
            callers,
            queue_age,
            workers,
            brake,
            fleet,
            signals,
        },
        needs: needs.collect(),
        bands_at: bands_at.flatten(),
        reserved_for: reserved_for.flatten(),
    })
}

fn callers(node: &YamlNode, report: &mut Report<'_>) -> Option<CallerGrouping> {
    let fields = Fields::read(node, "`callers`", CALLERS, report)?;
    let default = CallerGrouping::default();
    let by = match fields.get("by") {
        Some(node) => by(node, report)?,
        None => default.by,
    };
    let rotate = match fields.get("rotate") {
        Some(node) => span(node, "rotate", ROTATE, report)?,
        None => default.rotate,
    };
    Some(CallerGrouping { by, rotate })
}

fn by(node: &YamlNode, report: &mut Report<'_>) -> Option<Vec<Box<str>>> {
    let mend = "write attributes that name a caller: `by: [user, ip]`";
    let items = list(node, "by", mend, report)?;
    if items.is_empty() {
        report.error(node.at, "`by` has an empty list", mend);
        return None;
    }
    if items.len() > ATTRIBUTES_MAX {
        report.error(
            node.at,
            format!("`by` has {} attributes", items.len()),
            format!("write at most {ATTRIBUTES_MAX}"),
        );
        return None;
    }
    let mut names: Vec<Box<str>> = Vec::with_capacity(items.len());
    for item in items {
        let name = attribute(item, "by", report)?;
        if names.iter().any(|known| **known == *name) {
            report.error(item.at, format!("{} is written twice in `by`", shown(name)), "keep one of the two");
            return None;
        }
        names.push(name.into());
    }
    Some(names)
}

/// The maximum of one descriptor.
const ATTRIBUTES_MAX: usize = 16;

/// Below a second, a retry would be decided anew.
const ROTATE: Bounds = [(SECOND, "1s"), (7 * DAY, "7day")];
