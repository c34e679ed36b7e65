//! Reader of `shed` entries: their parts, and the mapping of samples of signals to utilization.

use std::time::Duration;

use super::suggest;
use crate::rules::amount;
use crate::rules::de::{self, FileNode};
use crate::rules::file::{BrakeFields, CallersFields, Point, ShedFields, SignalFields};
use crate::rules::percent::{self, Percent, WHOLE_SHARE};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::shed::{
    BrakeRule, CallerGrouping, FleetReserve, Listen, QueueAge, Shed, ShedPart, SignalRule, SignalSource,
    Workers,
};
use crate::rules::source::Report;
use crate::rules::values::{Fraction, Name};

/// Reads an entry. Parts with errors are left out. `priorities` are those of its domain, highest first, of
/// which there may be none; `None` if they are unknown.
pub(crate) fn shed(mapping: FileNode<'_>, priorities: Option<&[Box<str>]>) -> Option<Shed> {
    let fields: ShedFields<'_> = mapping.read()?;
    let part = |part: ShedPart| mapping.get(part.into());
    let callers = fields.callers.as_ref().and_then(|own| callers(own, mapping)).unwrap_or_default();
    if let Some((own, mapping)) = fields.queue_age.as_ref().zip(part(ShedPart::QueueAge)) {
        doubt_queue_age(own, mapping);
    }
    let workers_of = fields.workers.as_ref().zip(part(ShedPart::Workers));
    let signals = mapping.get("signals").and_then(signals).unwrap_or_default();
    let (name, at) = (fields.pool.0, mapping.field("pool"));
    if ShedPart::ALL.into_iter().all(|of| part(of).is_none()) && !mapping.has("signals") {
        let message = format!("nothing is refused in the pool {}: no part is written", shown(name));
        at.warn(message, "write a part, such as `workers: {}`, or leave the entry out");
    }
    let reserve = fields.fleet.as_ref().map(|own| FleetReserve {
        mode: own.mode.unwrap_or_default(),
        reserve: own.reserve.0,
        reserved_for: 0,
    });
    let mut shed = Shed {
        pool: name.into(),
        position: at.position(),
        slots: fields.slots.map(u32::from),
        callers,
        queue_age: fields.queue_age,
        workers: workers_of.and_then(|(own, mapping)| workers(own, mapping)),
        brake: fields.brake.as_ref().and_then(|own| brake(own, mapping.report)),
        fleet: reserve,
        signals,
    };
    if let Some(priorities) = priorities {
        let reserved_for = fields.fleet.as_ref().and_then(|own| own.reserved_for).map(|name| name.0);
        settle(&mut shed, reserved_for, mapping, priorities);
    }
    Some(shed)
}

fn callers(fields: &CallersFields<'_>, mapping: FileNode<'_>) -> Option<CallerGrouping> {
    let default = CallerGrouping::default();
    let rotate = fields.rotate.map_or(default.rotate, |rotate| rotate.0);
    let Some(by) = &fields.by else { return Some(CallerGrouping { rotate, ..default }) };
    let at = mapping.field("callers").field("by");
    if by.is_empty() {
        let help = "write attributes that name a caller: `by: [user, ip]`";
        at.error("`by` has an empty list", help);
        return None;
    }
    if by.len() > ATTRIBUTES_MAX {
        at.error(format!("`by` has {} attributes", by.len()), format!("write at most {ATTRIBUTES_MAX}"));
        return None;
    }
    let mut names: Vec<Box<str>> = Vec::with_capacity(by.len());
    for item in by {
        let name = item.value.0;
        if !mapping.report.is_new(item.at, name, names.iter().map(|known| &**known), "by") {
            return None;
        }
        names.push(name.into());
    }
    Some(CallerGrouping { by: names, rotate })
}

/// Warns of a `queue_age` that refuses the most important requests first.
fn doubt_queue_age(own: &QueueAge, mapping: FileNode<'_>) {
    if own.critical.0 < own.others.0 {
        let at = mapping.field(if mapping.has("critical") { "critical" } else { "others" });
        let help = "let `critical` be the longer of the two";
        at.warn("the most important is refused sooner than the others", help);
    }
}

fn workers(own: &Workers, mapping: FileNode<'_>) -> Option<Workers> {
    let leak = if own.stripe_exact { Fraction((0, 1)) } else { own.leak };
    let workers = Workers { leak, ..*own };
    if own.stripe_exact && mapping.has("leak") {
        let help = "leave one of the two out: as it was published it has none";
        mapping.error_at("leak", "`stripe_exact: true` and a `leak`: only one of them can hold", help);
        return None;
    }
    if workers.good.0 >= workers.bad.0 {
        let at = mapping.field(if mapping.has("bad") { "bad" } else { "good" });
        let [good, bad] = [workers.good.0, workers.bad.0].map(Percent);
        let help = "the host recovers below `good` and sheds above `bad`: leave room in between";
        at.error(format!("`good: {good}` is not below `bad: {bad}`"), help);
        return None;
    }
    if workers.bad.0 == WHOLE_SHARE {
        let message = "`bad: 100%`: no pool is busier than that, so nothing is refused";
        mapping.warn_at("bad", message, "write less, such as 80%");
    }
    if workers.full.0 < FULL_CALM {
        let help = "write at least 60s; 120s is known to be calm";
        mapping.warn_at("full", "shedding that turns up in less than 60s may swing", help);
    }
    Some(workers)
}

/// Checks the brake. Without bands they are empty, and depend on the priorities.
fn brake(own: &BrakeFields, report: &Report<'_>) -> Option<BrakeRule> {
    let bands = own.bands.as_deref().unwrap_or_default();
    if let Some([_, band]) =
        bands.windows(2).find(|pair| matches!(pair, [one, two] if one.value.0 > two.value.0))
    {
        let help = "start with the least important, whose share is the smallest";
        report.error(band.at, "`bands` go down: more important requests may use less", help);
        return None;
    }
    let bands = bands.iter().map(|band| band.value.0).collect();
    Some(BrakeRule { mode: own.mode.unwrap_or_default(), bands })
}

/// Checks the parts against the priorities, and completes what depends on them.
fn settle(shed: &mut Shed, reserved_for: Option<&str>, mapping: FileNode<'_>, priorities: &[Box<str>]) {
    if priorities.is_empty() {
        let needs = [ShedPart::Brake, ShedPart::Fleet, ShedPart::Workers].into_iter();
        let needs = needs.filter_map(|part| Some((part, mapping.key(part.into())?)));
        if let Some((part, at)) = needs.min_by_key(|(_, at)| at.at.byte) {
            // One error suffices, as one line repairs all.
            let message = format!("`{part}` refuses by importance, and the domain has no `priorities`");
            at.error(message, "write `priorities: [MOST IMPORTANT, …, LEAST]` once in the domain");
        }
        return;
    }
    let part = |part: ShedPart| mapping.key(part.into()).zip(mapping.get(part.into()));
    if let Some((at, own)) = part(ShedPart::Brake) {
        settle_brake(shed, priorities, at, own.get("bands"));
    }
    if let Some((at, own)) = part(ShedPart::Fleet) {
        settle_reserve(shed, priorities, at, reserved_for.zip(own.get("for")));
    }
    let never_sheds = priorities.len() < 2 && shed.workers.is_some_and(|workers| !workers.shed_critical);
    if let Some((at, _)) = part(ShedPart::Workers).filter(|_| never_sheds) {
        at.error(alone("workers", priorities), HELP_ALONE);
    }
}

fn settle_brake(shed: &mut Shed, priorities: &[Box<str>], at: FileNode<'_>, bands: Option<FileNode<'_>>) {
    let sheddable = priorities.len().saturating_sub(1);
    if sheddable == 0 {
        at.error(alone("brake", priorities), HELP_ALONE);
        return;
    }
    let Some(brake) = &mut shed.brake else { return };
    let Some(bands) = bands else {
        brake.bands = default_bands(sheddable);
        doubt_bands(shed, priorities, at);
        return;
    };
    if brake.bands.len() == sheddable {
        doubt_bands(shed, priorities, bands);
    } else {
        let message = format!("`bands` has {}, and {sheddable} priorities can be refused", brake.bands.len());
        let names: Vec<_> = priorities.iter().skip(1).rev().map(|name| shown(name)).collect();
        bands.error(message, format!("write one for each of {}, in this order", names.join(", ")));
    }
}

/// Warns of bands that round up to all slots, although they are below 100 %.
fn doubt_bands(shed: &Shed, priorities: &[Box<str>], at: FileNode<'_>) {
    let (Some(slots), Some(brake)) = (shed.slots, &shed.brake) else { return };
    let is_all = |band: u16| {
        band < WHOLE_SHARE
            && (u64::from(slots) * u64::from(band)).div_ceil(u64::from(WHOLE_SHARE)) >= u64::from(slots)
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
    let help = if most == 0 {
        "leave `brake` out: of one slot there is none to keep free".to_owned()
    } else {
        format!("write at most {most}% for it: bands are rounded up to whole slots")
    };
    at.warn(message, help);
}

fn settle_reserve(
    shed: &mut Shed,
    priorities: &[Box<str>],
    at: FileNode<'_>,
    reserved_for: Option<(&str, FileNode<'_>)>,
) {
    let Some(reserve) = &mut shed.fleet else { return };
    let mut for_at = at;
    if let Some((name, name_at)) = reserved_for {
        for_at = name_at;
        let Some(index) = priorities.iter().position(|known| **known == *name) else {
            let message = format!("unknown priority {} in `for`", shown(name));
            name_at.error(message, suggest(name, priorities));
            return;
        };
        reserve.reserved_for = index;
    }
    if reserve.reserved_for + 1 >= priorities.len() {
        let message = "the reserve is for every priority: it reserves no slot";
        for_at.error(message, "write one in `for` that is more important than the last");
        return;
    }
    let left = u64::from(WHOLE_SHARE.saturating_sub(reserve.reserve));
    if let Some(slots) = shed.slots.filter(|slots| u64::from(*slots) * left < u64::from(WHOLE_SHARE)) {
        let share = Percent(reserve.reserve);
        let message = format!(
            "of `slots: {slots}` a reserve of {share} leaves none to other work: all of it is refused"
        );
        at.warn(message, "write a smaller `reserve`: the rest is rounded down to whole slots");
    }
}

fn alone(part: &str, priorities: &[Box<str>]) -> String {
    let only = priorities.first().map_or("", |name| name);
    format!("`{part}` never refuses the most important priority, and there is only {}", shown(only))
}

/// Returns bands evenly spread from 70 % for the lowest priority to 90 %.
fn default_bands(sheddable: usize) -> Vec<u16> {
    let steps = u16::try_from(sheddable.saturating_sub(1)).unwrap_or(u16::MAX).max(1);
    (0..sheddable)
        .map(|index| {
            let index = u16::try_from(index).unwrap_or(u16::MAX);
            LOWEST + (HIGHEST - LOWEST).saturating_mul(index) / steps
        })
        .collect()
}

fn signals(node: FileNode<'_>) -> Option<Vec<SignalRule>> {
    let pairs = node.pairs();
    if pairs.len() > SIGNALS_MAX {
        let message = format!("`signals` has {} entries", pairs.len());
        node.error(message, format!("write at most {SIGNALS_MAX}: each is read every second"));
        return None;
    }
    let mut signals: Vec<SignalRule> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let Some(Name(name)) = key.value("signals") else { continue };
        if !key.report.is_new(key.at, name, signals.iter().map(|known| &*known.name), "signals") {
            continue;
        }
        if let Some(near) = near(name) {
            let message =
                format!("{} is a signal that the application pushes: no reading has this name", shown(name));
            key.warn(message, format!("did you mean `{near}`?"));
        }
        signals.extend(signal(name, value));
    }
    Some(signals)
}

fn signal(name: &str, mapping: FileNode<'_>) -> Option<SignalRule> {
    let fields: SignalFields<'_> = mapping.read()?;
    let source = match (name, fields.listen) {
        (ACCEPT_QUEUE, Some(text)) => {
            SignalSource::AcceptQueue(mapping.field("listen").settle(listen(text.0))?)
        }
        (ACCEPT_QUEUE, None) => {
            if !mapping.has("listen") {
                let help =
                    "write `listen: \":8000\"`, the port of the application, or the path of its socket";
                mapping.error("a signal needs `listen`", help);
            }
            return None;
        }
        (_, Some(_)) => {
            let message = "`listen` belongs to the signal `accept_queue`";
            mapping.error_at("listen", message, "leave `listen` out");
            return None;
        }
        (name, None) => {
            let known = MACHINE.iter().find(|(known, _)| *known == name);
            known.map_or(SignalSource::Pushed, |(_, source)| source.clone())
        }
    };
    let map = match &fields.map {
        Some(points) => map(points, mapping, name == ACCEPT_QUEUE)?,
        None => default_map(&source),
    };
    Some(SignalRule { name: name.into(), source, counts: fields.counts.unwrap_or_default(), map })
}

/// Parses `":8000"`, `8000` or `/run/app.sock`.
fn listen(text: &str) -> Result<Listen, ValueProblem> {
    let port =
        |text: &str| amount::parse(text).ok().and_then(|port| u16::try_from(port).ok()).filter(|it| *it > 0);
    if text.starts_with('/') && text.len() <= PATH_BYTES_MAX && !text.contains(char::is_control) {
        return Ok(Listen::Path(text.into()));
    }
    if let Some(port) = port(text.strip_prefix(':').unwrap_or(text)) {
        return Ok(Listen::Port(port));
    }
    let help = match text.rsplit_once(':') {
        Some((_, digits)) if port(digits).is_some() => {
            format!("write \":{digits}\": the address plays no part")
        }
        Some((_, path)) if path.starts_with('/') => format!("write {}", path.trim_start_matches("//")),
        _ => "write a port, such as \":8000\", or the whole path of a Unix socket".to_owned(),
    };
    Err(ValueProblem::new(format!("`listen` is a port or a path, not {}", shown(text)), help))
}

/// Checks points `[sample, utilization]`.
fn map(written: &[Point<'_>], mapping: FileNode<'_>, is_queue: bool) -> Option<Vec<(u32, u16)>> {
    if !(POINTS_MIN..=POINTS_MAX).contains(&written.len()) {
        let plural = if written.len() == 1 { "" } else { "s" };
        let help = format!("write {POINTS_MIN} to {POINTS_MAX}");
        mapping.error_at("map", format!("`map` has {} point{plural}", written.len()), help);
        return None;
    }
    let mut points: Vec<(u32, u16)> = Vec::with_capacity(written.len());
    for Point(sample, utilization) in written {
        let reading = match is_queue {
            true => amount::read_from(sample.value, 0),
            false => percent::read(sample.value, 0, WHOLE_SHARE).map(u32::from),
        };
        let reading = mapping.report.settle(sample.at, reading)?;
        if let Some((before, below)) = points.last() {
            if *before >= reading {
                let help = "write them in rising order, each once";
                mapping.report.error(sample.at, "the readings of `map` do not rise", help);
                return None;
            }
            if *below > utilization.value.0 {
                let help = "a larger reading is never a smaller utilization: write at least as much";
                mapping.report.error(utilization.at, "the utilizations of `map` fall", help);
                return None;
            }
        }
        points.push((reading, utilization.value.0));
    }
    Some(points)
}

/// Returns the default points: good, bad and full samples mean 70 %, 80 % and 100 %.
fn default_map(source: &SignalSource) -> Vec<(u32, u16)> {
    match source {
        SignalSource::AcceptQueue(_) => vec![(0, 0), (32, 1_000)],
        SignalSource::CpuPressure | SignalSource::IoPressure => {
            vec![(0, 0), (250, 700), (500, 800), (900, 1_000)]
        }
        SignalSource::MemoryPressure => vec![(0, 0), (20, 700), (50, 800), (200, 1_000)],
        SignalSource::CpuQuota | SignalSource::Cpu => vec![(0, 0), (800, 700), (900, 800), (1_000, 1_000)],
        SignalSource::Pushed => vec![(0, 0), (1_000, 1_000)],
    }
}

/// Returns the signal of the machine that may have been meant by another name: a short name with one other
/// letter is another word.
fn near(name: &str) -> Option<&'static str> {
    let known = MACHINE.iter().map(|(name, _)| *name).chain([ACCEPT_QUEUE]);
    de::nearest(name, known, 4).filter(|near| *near != name)
}

const HELP_ALONE: &str = "write a less important priority behind it in `priorities`";

const LOWEST: u16 = 700;
const HIGHEST: u16 = 900;

/// Below this value the loop is stable with a small margin only.
const FULL_CALM: Duration = Duration::from_secs(60);

/// The maximum of one descriptor.
const ATTRIBUTES_MAX: usize = 16;

const ACCEPT_QUEUE: &str = "accept_queue";

const MACHINE: &[(&str, SignalSource)] = &[
    ("cpu_pressure", SignalSource::CpuPressure),
    ("memory_pressure", SignalSource::MemoryPressure),
    ("io_pressure", SignalSource::IoPressure),
    ("cpu_quota", SignalSource::CpuQuota),
    ("cpu", SignalSource::Cpu),
];

/// All signals of the machine, and some of the application.
const SIGNALS_MAX: usize = 16;

/// The ends of a line.
const POINTS_MIN: usize = 2;

/// More points than are ever measured.
const POINTS_MAX: usize = 16;

/// The maximum of a socket address, without the terminating zero.
const PATH_BYTES_MAX: usize = 107;
