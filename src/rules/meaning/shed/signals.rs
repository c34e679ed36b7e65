//! Reader of `signals`: sources, and the mapping of samples to utilization.

use crate::rules::amount;
use crate::rules::de::{self, Mapping};
use crate::rules::file::{Point, SignalFields};
use crate::rules::percent::{self, WHOLE_SHARE};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::shed::{Listen, SignalRule, SignalSource};
use crate::rules::source::Report;
use crate::rules::values::Name;
use crate::rules::yaml::YamlNode;

pub(super) fn signals(node: &YamlNode, report: &mut Report<'_>) -> Option<Vec<SignalRule>> {
    let pairs = Mapping(node).pairs();
    if pairs.len() > SIGNALS_MAX {
        let message = format!("`signals` has {} entries", pairs.len());
        report.error(node.at, message, format!("write at most {SIGNALS_MAX}: each is read every second"));
        return None;
    }
    let mut signals: Vec<SignalRule> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let Some(Name(name)) = de::value(key, "signals", report) else { continue };
        if !report.is_new(key.at, name, signals.iter().map(|known| &*known.name), "signals") {
            continue;
        }
        if let Some(near) = near(name) {
            let message =
                format!("{} is a signal that the application pushes: no reading has this name", shown(name));
            report.warning(key.at, message, format!("did you mean `{near}`?"));
        }
        signals.extend(signal(name, value, report));
    }
    Some(signals)
}

fn signal(name: &str, node: &YamlNode, report: &mut Report<'_>) -> Option<SignalRule> {
    let fields: SignalFields<'_> = de::read(node, report)?;
    let mapping = Mapping(node);
    let source = match (name, fields.listen) {
        (ACCEPT_QUEUE, Some(text)) => {
            SignalSource::AcceptQueue(report.settle(mapping.at("listen"), listen(text.0))?)
        }
        (ACCEPT_QUEUE, None) => {
            if !mapping.has("listen") {
                let help =
                    "write `listen: \":8000\"`, the port of the application, or the path of its socket";
                report.error(node.at, "a signal needs `listen`", help);
            }
            return None;
        }
        (_, Some(_)) => {
            let message = "`listen` belongs to the signal `accept_queue`";
            report.error(mapping.at("listen"), message, "leave `listen` out");
            return None;
        }
        (name, None) => {
            let known = MACHINE.iter().find(|(known, _)| *known == name);
            known.map_or(SignalSource::Pushed, |(_, source)| source.clone())
        }
    };
    let map = match &fields.map {
        Some(points) => map(points, mapping, name == ACCEPT_QUEUE, report)?,
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
fn map(
    written: &[Point<'_>],
    mapping: Mapping<'_>,
    is_queue: bool,
    report: &mut Report<'_>,
) -> Option<Vec<(u32, u16)>> {
    if !(POINTS_MIN..=POINTS_MAX).contains(&written.len()) {
        let plural = if written.len() == 1 { "" } else { "s" };
        let help = format!("write {POINTS_MIN} to {POINTS_MAX}");
        report.error(mapping.at("map"), format!("`map` has {} point{plural}", written.len()), help);
        return None;
    }
    let mut points: Vec<(u32, u16)> = Vec::with_capacity(written.len());
    for Point(sample, utilization) in written {
        let reading = match is_queue {
            true => amount::read_from(sample.value, 0),
            false => percent::read(sample.value, 0, WHOLE_SHARE).map(u32::from),
        };
        let reading = report.settle(sample.at, reading)?;
        if let Some((before, below)) = points.last() {
            if *before >= reading {
                let help = "write them in rising order, each once";
                report.error(sample.at, "the readings of `map` do not rise", help);
                return None;
            }
            if *below > utilization.value.0 {
                let help = "a larger reading is never a smaller utilization: write at least as much";
                report.error(utilization.at, "the utilizations of `map` fall", help);
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
