//! Reader of `signals`: sources, and the mapping of samples to utilization.

use crate::rules::fields::{Fields, boolean, check_name, list, text};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::shed::{Listen, SignalRule, SignalSource};
use crate::rules::shed_fields::SIGNAL;
use crate::rules::source::Report;
use crate::rules::yaml::{Value, YamlNode};
use crate::rules::{amount, percent};

pub(super) fn signals(node: &YamlNode, report: &mut Report<'_>) -> Option<Vec<SignalRule>> {
    let Value::Map(pairs) = &node.value else {
        let message = format!("`signals` is a mapping, not {}", node.kind());
        report.error(node.at, message, "write `signals: {NAME: {use: false}}`");
        return None;
    };
    if pairs.len() > SIGNALS_MAX {
        let message = format!("`signals` has {} entries", pairs.len());
        report.error(node.at, message, format!("write at most {SIGNALS_MAX}: each is read every second"));
        return None;
    }
    let mut signals: Vec<SignalRule> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let Some(name) = text(key, "signals", report) else { continue };
        if report.settle(key.at, check_name(name, "a signal")).is_none() {
            continue;
        }
        if signals.iter().any(|known| *known.name == *name) {
            report.error(
                key.at,
                format!("{} is written twice in `signals`", shown(name)),
                "keep one of the two",
            );
            continue;
        }
        if let Some(near) = near(name) {
            let message = format!("{} is what the application pushes: no reading has this name", shown(name));
            report.warning(key.at, message, format!("did you mean `{near}`?"));
        }
        signals.extend(signal(name, value, report));
    }
    Some(signals)
}

fn signal(name: &str, node: &YamlNode, report: &mut Report<'_>) -> Option<SignalRule> {
    let fields = Fields::read(node, "a signal", SIGNAL, report)?;
    let source = match (name, fields.get("listen")) {
        (ACCEPT_QUEUE, _) => {
            let mend = "write `listen: \":8000\"`, the port of the application, or the path of its socket";
            let node = fields.required("listen", mend, report);
            let listen = node.and_then(|node| {
                let text = text(node, "listen", report)?;
                report.settle(node.at, listen(text))
            });
            listen.map(SignalSource::AcceptQueue)
        }
        (_, Some(node)) => {
            report.error(node.at, "`listen` belongs to the signal `accept_queue`", "leave `listen` out");
            None
        }
        (name, None) => Some(
            MACHINE
                .iter()
                .find(|(known, _)| *known == name)
                .map_or(SignalSource::Pushed, |(_, source)| source.clone()),
        ),
    };
    let counts = fields.get("use").map_or(Some(false), |node| boolean(node, "use", report));
    let is_queue = name == ACCEPT_QUEUE;
    let map = match fields.get("map") {
        Some(node) => map(node, is_queue, report),
        None => source.as_ref().map(default_map),
    };
    Some(SignalRule { name: name.into(), source: source?, counts: counts?, map: map? })
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
    let mend = match text.rsplit_once(':') {
        Some((_, digits)) if port(digits).is_some() => {
            format!("write \":{digits}\": the address plays no part")
        }
        Some((_, path)) if path.starts_with('/') => format!("write {}", path.trim_start_matches("//")),
        _ => "write a port, such as \":8000\", or the whole path of a Unix socket".to_owned(),
    };
    Err(ValueProblem::new(format!("`listen` is a port or a path, not {}", shown(text)), mend))
}

/// Reads points `[sample, utilization]`.
fn map(node: &YamlNode, is_queue: bool, report: &mut Report<'_>) -> Option<Vec<(u32, u16)>> {
    let mend = if is_queue {
        "write `[[0, 0%], [32, 100%]]`"
    } else {
        "write `[[0%, 0%], [50%, 80%], [90%, 100%]]`"
    };
    let items = list(node, "map", mend, report)?;
    if !(POINTS_MIN..=POINTS_MAX).contains(&items.len()) {
        let message = format!("`map` has {} point{}", items.len(), if items.len() == 1 { "" } else { "s" });
        report.error(node.at, message, format!("write {POINTS_MIN} to {POINTS_MAX}: {mend}"));
        return None;
    }
    let mut points: Vec<(u32, u16)> = Vec::with_capacity(items.len());
    for item in items {
        let (reading_at, reading, utilization_at, utilization) = match &item.value {
            Value::List(pair) => match pair.as_slice() {
                [reading, utilization] => (reading.at, reading, utilization.at, utilization),
                pair => {
                    report.error(item.at, format!("a point of `map` has {} values, not 2", pair.len()), mend);
                    return None;
                }
            },
            _ => {
                report.error(item.at, format!("a point of `map` is a list, not {}", item.kind()), mend);
                return None;
            }
        };
        let reading = match is_queue {
            true => report.settle(reading_at, amount::read_from(reading, "map", 0)),
            false => report.settle(reading_at, percent::read_from_0(reading, "map", WHOLE)).map(u32::from),
        };
        let utilization = report.settle(utilization_at, percent::read_from_0(utilization, "map", WHOLE));
        let (reading, utilization) = (reading?, utilization?);
        if let Some((before, below)) = points.last() {
            if *before >= reading {
                report.error(
                    reading_at,
                    "the readings of `map` do not rise",
                    "write them in rising order, each once",
                );
                return None;
            }
            if *below > utilization {
                let mend = "a larger reading is never a smaller utilization: write at least as much";
                report.error(utilization_at, "the utilizations of `map` fall", mend);
                return None;
            }
        }
        points.push((reading, utilization));
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

/// Returns the signal of the machine that may have been meant by another name.
fn near(name: &str) -> Option<&'static str> {
    let plain = name.to_lowercase().replace(['-', '.'], "_");
    let known = || MACHINE.iter().map(|(name, _)| *name).chain([ACCEPT_QUEUE]);
    if known().any(|known| known == name) {
        return None;
    }
    let distance = |known: &str| strsim::osa_distance(&plain, known);
    // At most a quarter of the letters may differ: a short name with one other letter is another word.
    known().min_by_key(|known| distance(known)).filter(|known| distance(known) * 4 <= known.len())
}

const ACCEPT_QUEUE: &str = "accept_queue";

/// The signals of the machine.
const MACHINE: &[(&str, SignalSource)] = &[
    ("cpu_pressure", SignalSource::CpuPressure),
    ("memory_pressure", SignalSource::MemoryPressure),
    ("io_pressure", SignalSource::IoPressure),
    ("cpu_quota", SignalSource::CpuQuota),
    ("cpu", SignalSource::Cpu),
];

/// All of it, in thousandths.
const WHOLE: u16 = 1_000;

/// All signals of the machine, and some of the application.
const SIGNALS_MAX: usize = 16;

/// The ends of a line.
const POINTS_MIN: usize = 2;

/// More points than are ever measured.
const POINTS_MAX: usize = 16;

/// The maximum of a socket address, without the terminating zero.
const PATH_BYTES_MAX: usize = 107;
