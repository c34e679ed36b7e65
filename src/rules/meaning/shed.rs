//! Reader of `shed` entries. Priorities are resolved once all files of the domain are read.

mod parts;
mod settle;
mod signals;

use super::name_of;
use crate::rules::de::{self, Mapping};
use crate::rules::file::{CallersFields, ShedFields};
use crate::rules::problem::shown;
use crate::rules::shed::{CallerGrouping, FleetReserve, Shed, ShedPart};
use crate::rules::source::{Report, Span};
use crate::rules::yaml::YamlNode;
use parts::{brake, workers};
use signals::signals;

#[derive(Debug)]
pub(crate) struct ReadShedEntry {
    /// The pool and its span, even if the entry has errors: no other entry may have the pool.
    pub(crate) pool: Option<(Box<str>, Span)>,
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
    reserved_for: Option<(Box<str>, Span)>,
}

pub(crate) fn shed(node: &YamlNode, report: &mut Report<'_>) -> ReadShedEntry {
    let entry = de::read(node, report).and_then(|fields| entry(&fields, Mapping(node), report));
    ReadShedEntry { pool: name_of(Mapping(node), "pool"), entry }
}

fn entry(fields: &ShedFields<'_>, mapping: Mapping<'_>, report: &mut Report<'_>) -> Option<UnsettledShed> {
    let part = |part: &ShedPart| mapping.get(part.name()).map(Mapping);
    let callers = fields.callers.as_ref().and_then(|own| callers(own, mapping, report)).unwrap_or_default();
    let queue_age = fields.queue_age.as_ref().zip(part(&ShedPart::QueueAge));
    let workers_of = fields.workers.as_ref().zip(part(&ShedPart::Workers));
    let signals = mapping.get("signals").and_then(|node| signals(node, report)).unwrap_or_default();
    let (name, at) = (fields.pool.0, mapping.at("pool"));
    if ShedPart::ALL.iter().all(|of| part(of).is_none()) && !mapping.has("signals") {
        let message = format!("nothing is refused in the pool {}: no part is written", shown(name));
        report.warning(at, message, "write a part, such as `workers: {}`, or leave the entry out");
    }
    let needs = ShedPart::ALL.into_iter().filter(|part| *part != ShedPart::QueueAge);
    let mut needs: Vec<_> = needs.filter_map(|part| Some((part, mapping.key(part.name())?))).collect();
    needs.sort_by_key(|(_, at)| at.byte);
    let brake_of = fields.brake.as_ref().zip(part(&ShedPart::Brake));
    let reserve = fields.fleet.as_ref().map(|own| FleetReserve {
        mode: own.mode.unwrap_or_default(),
        reserve: own.reserve.0,
        reserved_for: 0,
    });
    let reserved_for = fields.fleet.as_ref().and_then(|own| own.reserved_for);
    let reserved_for = reserved_for.zip(part(&ShedPart::Fleet));
    Some(UnsettledShed {
        shed: Shed {
            pool: name.into(),
            position: report.source().position(at),
            slots: fields.slots.map(u32::from),
            callers,
            queue_age: queue_age.map(|(own, mapping)| parts::queue_age(own, mapping, report)),
            workers: workers_of.and_then(|(own, mapping)| workers(own, mapping, report)),
            brake: brake_of.and_then(|(own, _)| brake(own, report)),
            fleet: reserve,
            signals,
        },
        needs,
        bands_at: brake_of.and_then(|(_, mapping)| Some(mapping.get("bands")?.at)),
        reserved_for: reserved_for.map(|(name, mapping)| (name.0.into(), mapping.at("for"))),
    })
}

fn callers(
    fields: &CallersFields<'_>,
    mapping: Mapping<'_>,
    report: &mut Report<'_>,
) -> Option<CallerGrouping> {
    let default = CallerGrouping::default();
    let rotate = fields.rotate.map_or(default.rotate, |rotate| rotate.0);
    let Some(by) = &fields.by else { return Some(CallerGrouping { rotate, ..default }) };
    let at = mapping.get("callers").map_or(mapping.0.at, |node| Mapping(node).at("by"));
    if by.is_empty() {
        let mend = "write attributes that name a caller: `by: [user, ip]`";
        report.error(at, "`by` has an empty list", mend);
        return None;
    }
    if by.len() > ATTRIBUTES_MAX {
        report.error(
            at,
            format!("`by` has {} attributes", by.len()),
            format!("write at most {ATTRIBUTES_MAX}"),
        );
        return None;
    }
    let mut names: Vec<Box<str>> = Vec::with_capacity(by.len());
    for item in by {
        let name = item.value.0;
        if names.iter().any(|known| **known == *name) {
            report.error(item.at, format!("{} is written twice in `by`", shown(name)), "keep one of the two");
            return None;
        }
        names.push(name.into());
    }
    Some(CallerGrouping { by: names, rotate })
}

/// The maximum of one descriptor.
const ATTRIBUTES_MAX: usize = 16;
