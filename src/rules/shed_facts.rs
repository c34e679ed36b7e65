//! The fields of a `shed` entry as text, for comparison.

use humantime::format_duration;

use super::facts::Fact;
use super::percent::Percent;
use super::shed::{CallerGrouping, Listen, Shed, SignalRule, SignalSource};

/// Lists the fields of an entry. A field missing here is missing in reported differences.
pub(super) fn shed_facts(shed: &Shed, priorities: &[Box<str>]) -> Vec<Fact> {
    let mut facts = Vec::new();
    facts.extend(shed.slots.map(|slots| ("slots", slots.to_string())));
    let CallerGrouping { by, rotate } = &shed.callers;
    facts.push(("callers", format!("{{by: [{}], rotate: {}}}", by.join(", "), format_duration(*rotate))));
    if let Some(own) = &shed.queue_age {
        let [others, critical] = [own.others, own.critical].map(format_duration);
        facts.push(("queue_age", format!("{{others: {others}, critical: {critical}, mode: {}}}", own.mode)));
    }
    if let Some(own) = &shed.workers {
        let ([good, bad], [after, full]) =
            ([own.good, own.bad].map(share), [own.after, own.full].map(format_duration));
        let mut text = format!("good: {good}, bad: {bad}, after: {after}, full: {full}");
        text.push_str(&format!(", leak: {}", leak(own.leak)));
        text.push_str(if own.shed_critical { ", shed_critical: true" } else { "" });
        text.push_str(if own.stripe_exact { ", stripe_exact: true" } else { "" });
        facts.push(("workers", format!("{{{text}, mode: {}}}", own.mode)));
    }
    if let Some(own) = &shed.brake {
        let bands: Vec<_> = own.bands.iter().map(|band| share(*band).to_string()).collect();
        facts.push(("brake", format!("{{bands: [{}], mode: {}}}", bands.join(", "), own.mode)));
    }
    if let Some(own) = &shed.fleet {
        let reserved_for = priorities.get(own.reserved_for).map_or("", |name| name);
        let reserve = share(own.reserve);
        facts.push(("fleet", format!("{{reserve: {reserve}, for: {reserved_for}, mode: {}}}", own.mode)));
    }
    if !shed.signals.is_empty() {
        let signals: Vec<_> = shed.signals.iter().map(signal).collect();
        facts.push(("signals", format!("{{{}}}", signals.join(", "))));
    }
    facts
}

/// Formats a signal as in a rules file.
fn signal(signal: &SignalRule) -> String {
    let is_queue = matches!(signal.source, SignalSource::AcceptQueue(_));
    let listen = match &signal.source {
        SignalSource::AcceptQueue(listen) => format!("listen: {listen}, "),
        _ => String::new(),
    };
    let points = signal.map.iter().map(|(reading, utilization)| {
        let reading = if is_queue { reading.to_string() } else { Percent(*reading).to_string() };
        format!("[{reading}, {}]", share(*utilization))
    });
    let points = points.collect::<Vec<_>>().join(", ");
    format!("{}: {{{listen}use: {}, map: [{points}]}}", signal.name, signal.counts)
}

/// Formats a leak as in a rules file.
fn leak((part, whole): (u32, u32)) -> String {
    if part == 0 { "0".to_owned() } else { format!("{part}/{whole}") }
}

fn share(thousandths: u16) -> Percent {
    Percent(u32::from(thousandths))
}

/// The form in rules files.
impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Port(port) => write!(f, ":{port}"),
            Listen::Path(path) => f.write_str(path),
        }
    }
}
