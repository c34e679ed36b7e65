//! Describes an entry of `shed` as text and as JSON. It decides nothing.

use humantime::format_duration;
use serde_json::{Map, Value, json};

use super::limit_json::{object, position};
use crate::clock::Micros;
use crate::rules::Domain;
use crate::rules::shed::{Shed, ShedPart, SignalSource, Workers};

/// Describes the requests that a part refuses, and when; `None` if it is not configured.
pub(super) fn part(domain: &Domain, shed: &Shed, part: ShedPart) -> Option<String> {
    let names = domain.priorities();
    match part {
        ShedPart::Fleet => shed.fleet.as_ref().map(|own| {
            let (kept, others) = names.split_at_checked(own.reserved_for + 1).unwrap_or((names, &[]));
            format!(
                "keeps {} of the slots for {}: {} together use at most {}",
                percent(own.reserve),
                kept.join(" and "),
                others.join(", "),
                percent(1_000_u16.saturating_sub(own.reserve))
            )
        }),
        ShedPart::Brake => shed.brake.as_ref().map(|own| {
            let bands = names.iter().rev().zip(&own.bands);
            let bands: Vec<_> = bands.map(|(name, band)| format!("{name} {}", percent(*band))).collect();
            format!(
                "while requests queue up, of the slots at most: {}; {} all",
                bands.join(", "),
                first(names)
            )
        }),
        ShedPart::Workers => shed.workers.as_ref().map(|own| workers(names, own)),
        ShedPart::QueueAge => shed.queue_age.as_ref().map(|own| {
            let [others, critical] = [own.others, own.critical].map(format_duration);
            match names.first() {
                Some(name) => {
                    format!("refuses what has waited more than {others}; {name} more than {critical}")
                }
                None => format!("refuses what has waited more than {others}"),
            }
        }),
    }
}

fn workers(names: &[Box<str>], own: &Workers) -> String {
    let [after, full] = [own.after, own.full].map(format_duration);
    let sheddable = names.get(usize::from(!own.shed_critical)..).unwrap_or_default();
    let turn: Vec<_> = sheddable.iter().rev().map(|name| &**name).collect();
    let never = if own.shed_critical { String::new() } else { format!(", never {}", first(names)) };
    let leak = match own.leak {
        (0, _) => "stays in between".to_owned(),
        (part, whole) => format!("recovers by {part}/{whole} a second in between"),
    };
    format!(
        "sheds above {} of the slots busy, recovers below {}, {leak}; at full load {after} to the first refusal and \
         {full} more to the last: {}{never}",
        percent(own.bad),
        percent(own.good),
        turn.join(", "),
    )
}

/// Describes the identity of callers.
pub(super) fn callers(shed: &Shed) -> String {
    format!(
        "by {}; who is refused changes over {}",
        shed.callers.by.join(", else "),
        format_duration(shed.callers.rotate)
    )
}

/// Lists the other signals.
pub(super) fn signals(shed: &Shed) -> String {
    let signals = shed.signals.iter().map(|signal| {
        let listen = match &signal.source {
            SignalSource::AcceptQueue(listen) => format!(" of {listen}"),
            SignalSource::Pushed => " (pushed)".to_owned(),
            _ => String::new(),
        };
        let counts = if signal.counts { "counts" } else { "shown only" };
        format!("{}{listen} {counts}", signal.name)
    });
    signals.collect::<Vec<_>>().join(", ")
}

/// Returns an entry as JSON, every key always present; parts that are off are null.
pub(super) fn json(domain: &Domain, shed: &Shed) -> Map<String, Value> {
    let mut all = position(&shed.position);
    let names = |names: &[Box<str>]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let says = |which: ShedPart| part(domain, shed, which);
    all.extend(object(json!({
        "pool": &*shed.pool,
        "slots": shed.slots,
        "callers": {"by": names(&shed.callers.by), "rotate_us": Micros::from(shed.callers.rotate).0},
        "fleet": shed.fleet.as_ref().map(|own| json!({
            "rule": shed.rule_name(ShedPart::Fleet),
            "mode": own.mode.name(),
            "bound": says(ShedPart::Fleet),
            "reserve_permille": own.reserve,
            "for": domain.priorities().get(own.reserved_for).map(|name| &**name),
        })),
        "brake": shed.brake.as_ref().map(|own| json!({
            "rule": shed.rule_name(ShedPart::Brake),
            "mode": own.mode.name(),
            "bound": says(ShedPart::Brake),
            "bands_permille": own.bands,
        })),
        "workers": shed.workers.as_ref().map(|own| json!({
            "rule": shed.rule_name(ShedPart::Workers),
            "mode": own.mode.name(),
            "bound": says(ShedPart::Workers),
            "good_permille": own.good,
            "bad_permille": own.bad,
            "after_us": Micros::from(own.after).0,
            "full_us": Micros::from(own.full).0,
            "leak": [own.leak.0, own.leak.1],
            "shed_critical": own.shed_critical,
            "stripe_exact": own.stripe_exact,
        })),
        "queue_age": shed.queue_age.as_ref().map(|own| json!({
            "rule": shed.rule_name(ShedPart::QueueAge),
            "mode": own.mode.name(),
            "bound": says(ShedPart::QueueAge),
            "others_us": Micros::from(own.others).0,
            "critical_us": Micros::from(own.critical).0,
        })),
        "signals": shed.signals.iter().map(|signal| json!({
            "name": &*signal.name,
            "listen": match &signal.source {
                SignalSource::AcceptQueue(listen) => Some(listen.to_string()),
                _ => None,
            },
            "pushed": signal.source == SignalSource::Pushed,
            "counts": signal.counts,
            "map": signal.map,
        })).collect::<Vec<_>>(),
    })));
    all
}

fn first(names: &[Box<str>]) -> &str {
    names.first().map_or("", |name| name)
}

fn percent(thousandths: u16) -> String {
    match (thousandths / 10, thousandths % 10) {
        (whole, 0) => format!("{whole}%"),
        (whole, tenth) => format!("{whole}.{tenth}%"),
    }
}
