//! Load shedding of a pool as configured. Controllers elsewhere interpret it.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::condition::joined;
use super::file::MODE;
use super::percent::Percent;
use super::rule::{RuleField, text};
use super::values::{DAY, Fraction, PercentText, SECOND, Time};
use super::words::span;
use super::{Mode, Position};

/// One entry of `shed`: the controllers of one pool. An absent part is off.
#[derive(Clone, Debug, PartialEq)]
pub struct Shed {
    /// The pool, shed in one domain only.
    pub pool: Box<str>,
    pub(crate) position: Position,
    /// The number of slots if the processes do not report it.
    pub(crate) slots: Option<u32>,
    pub(crate) callers: CallerGrouping,
    /// Refuses requests that have waited too long.
    pub(crate) queue_age: Option<QueueAge>,
    /// Sheds gradually and by priority while workers are busy.
    pub workers: Option<Workers>,
    /// Sheds immediately and by priority while requests queue.
    pub brake: Option<BrakeRule>,
    /// Reserves slots for the highest priorities.
    pub fleet: Option<FleetReserve>,
    /// Signals, in file order.
    pub(crate) signals: Vec<SignalRule>,
}

/// The grouping of requests by caller: one caller is shed or allowed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerGrouping {
    /// The first of these attributes that a request has identifies its caller.
    pub(crate) by: Vec<Box<str>>,
    /// The time after which all shed callers have been replaced by others.
    pub(crate) rotate: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename = "`queue_age`", default)]
#[schemars(rename = "queue_age", extend("x-place" = "`queue_age`"))]
pub struct QueueAge {
    /// how long all but the most important may have waited, up to 60s. Default: `500ms`.
    pub(crate) others: Age,
    /// how long the most important may have waited, up to 60s. Default: `2500ms`.
    pub(crate) critical: Age,
    #[schemars(description = MODE)]
    pub(crate) mode: Mode,
}

/// Longer waits reported by requests are not trusted.
type Age = Time<1, { 60 * SECOND }>;

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename = "`workers`", default)]
#[schemars(rename = "workers", extend("x-place" = "`workers`"))]
pub struct Workers {
    /// below this share of busy slots the host recovers. Default: `70%`.
    pub(crate) good: PercentText,
    /// above this share of busy slots it sheds more. Default: `80%`.
    pub(crate) bad: PercentText,
    /// at full load from rest, the time to the first refusal, 1s to 1day. Default: `28s`.
    pub(crate) after: After,
    /// at full load, the time from the first refusal to the last, 30s to 1day; less than 60s is warned of. Default: `120s`.
    pub(crate) full: Full,
    /// by how much it recovers in a second between `good` and `bad`: a fraction, or 0. Default: `1/1800`, with `stripe_exact` 0.
    pub(crate) leak: Fraction,
    /// whether the most important is shed as well, last. Default: `false`.
    pub(crate) shed_critical: bool,
    /// the law as it was published: no leak, a fresh draw for each request. Default: `false`.
    pub(crate) stripe_exact: bool,
    #[schemars(description = MODE)]
    pub(crate) mode: Mode,
}

/// Shedding that starts after more than a day is no protection.
type After = Time<SECOND, DAY>;

/// Below 30 s the control loop is unstable, as its effect is measured about 5 s late.
type Full = Time<{ 30 * SECOND }, DAY>;

/// The `brake` part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrakeRule {
    pub(crate) mode: Mode,
    /// Share of the slots, in thousandths, that each priority may use while the brake is on: from the lowest
    /// priority to the second highest.
    pub bands: Vec<u16>,
}

/// The `fleet` part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetReserve {
    /// The mode.
    pub mode: Mode,
    /// The reserved share of the slots, in thousandths.
    pub reserve: u16,
    /// Index of the lowest priority that may use the reserve.
    pub reserved_for: usize,
}

/// One entry of `signals`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalRule {
    /// The name: a signal of the machine, or one that the application pushes.
    pub(crate) name: Box<str>,
    pub(crate) source: SignalSource,
    /// Whether it counts as utilization, or is only shown.
    pub(crate) counts: bool,
    /// Samples and their utilization in thousandths: rising, linear in between, constant outside. Samples of
    /// `accept_queue` are waiting connections, all others thousandths.
    pub(crate) map: Vec<(u32, u16)>,
}

/// The source of a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalSource {
    /// Connections that wait to be accepted.
    AcceptQueue(Listen),
    /// Share of time in which some task waits for a CPU (pressure stall information).
    CpuPressure,
    /// Share of time in which all tasks wait for memory.
    MemoryPressure,
    /// Share of time in which some task waits for a disk.
    IoPressure,
    /// CPU time used, relative to the quota of the control group.
    CpuQuota,
    /// CPU time used, relative to the CPUs of the machine.
    Cpu,
    /// Samples that the application pushes under this name.
    Pushed,
}

/// The listening socket of the application.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A TCP port at any address.
    Port(u16),
    /// A Unix socket.
    Path(Box<str>),
}

/// The parts of an entry in order of evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum ShedPart {
    /// `fleet`.
    Fleet,
    /// `brake`.
    Brake,
    /// `workers`.
    Workers,
    /// `queue_age`.
    QueueAge,
}

impl ShedPart {
    /// All parts in order of evaluation.
    pub const ALL: [ShedPart; 4] = [ShedPart::Fleet, ShedPart::Brake, ShedPart::Workers, ShedPart::QueueAge];
}

impl Shed {
    /// Returns the mode of a part; `None` if absent.
    pub(crate) fn mode(&self, part: ShedPart) -> Option<Mode> {
        match part {
            ShedPart::Fleet => self.fleet.as_ref().map(|reserve| reserve.mode),
            ShedPart::Brake => self.brake.as_ref().map(|brake| brake.mode),
            ShedPart::Workers => self.workers.as_ref().map(|workers| workers.mode),
            ShedPart::QueueAge => self.queue_age.as_ref().map(|queue_age| queue_age.mode),
        }
    }

    /// Returns the present parts in order of evaluation, with their modes.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (ShedPart, Mode)> + '_ {
        ShedPart::ALL.into_iter().filter_map(|part| Some((part, self.mode(part)?)))
    }

    /// Returns the rule name of a part in replies and metrics: `web/workers`.
    pub(crate) fn rule_name(&self, part: ShedPart) -> String {
        format!("{}/{part}", self.pool)
    }

    /// Returns the fields as texts in the notation of rules files, for differences. Absent parts are left out.
    pub(super) fn fields(&self, priorities: &[Box<str>]) -> Vec<RuleField> {
        let Shed { pool: _, position: _, slots, callers, queue_age, workers, brake, fleet, signals } = self;
        let CallerGrouping { by, rotate } = callers;
        let mut fields = vec![
            ("slots", text(*slots)),
            ("callers", format!("{{by: [{}], rotate: {}}}", by.join(", "), span(*rotate))),
            ("queue_age", text(*queue_age)),
            ("workers", text(*workers)),
        ];
        fields.extend(brake.as_ref().map(|BrakeRule { mode, bands }| {
            ("brake", format!("{{bands: [{}], mode: {mode}}}", joined(bands.iter().copied().map(Percent))))
        }));
        fields.extend(fleet.map(|FleetReserve { mode, reserve, reserved_for }| {
            let reserved_for = priorities.get(reserved_for).map_or("", |name| name);
            ("fleet", format!("{{reserve: {}, for: {reserved_for}, mode: {mode}}}", Percent(reserve)))
        }));
        fields.extend((!signals.is_empty()).then(|| ("signals", format!("{{{}}}", joined(signals)))));
        fields.retain(|(_, text)| !text.is_empty());
        fields
    }
}

/// The forms in rules files.
impl fmt::Display for QueueAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QueueAge { others: Time(others), critical: Time(critical), mode } = *self;
        write!(f, "{{others: {}, critical: {}, mode: {mode}}}", span(others), span(critical))
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Workers { good, bad, after, full, leak, shed_critical, stripe_exact, mode } = *self;
        let (part, whole) = leak.0;
        let ([good, bad], [after, full]) = ([good.0, bad.0].map(Percent), [after.0, full.0].map(span));
        write!(f, "{{good: {good}, bad: {bad}, after: {after}, full: {full}, leak: {part}")?;
        f.write_str(&if part == 0 { String::new() } else { format!("/{whole}") })?;
        f.write_str(if shed_critical { ", shed_critical: true" } else { "" })?;
        f.write_str(if stripe_exact { ", stripe_exact: true" } else { "" })?;
        write!(f, ", mode: {mode}}}")
    }
}

impl fmt::Display for SignalRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SignalRule { name, source, counts, map } = self;
        let (listen, is_queue) = match source {
            SignalSource::AcceptQueue(listen) => (format!("listen: {listen}, "), true),
            _ => (String::new(), false),
        };
        let points = map.iter().map(|(reading, utilization)| {
            let reading = if is_queue { reading.to_string() } else { Percent(*reading).to_string() };
            format!("[{reading}, {}]", Percent(*utilization))
        });
        write!(f, "{name}: {{{listen}use: {counts}, map: [{}]}}", joined(points))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Port(port) => write!(f, ":{port}"),
            Listen::Path(path) => f.write_str(path),
        }
    }
}

impl Default for CallerGrouping {
    fn default() -> CallerGrouping {
        CallerGrouping { by: vec!["user".into(), "ip".into()], rotate: Duration::from_secs(600) }
    }
}

impl Default for QueueAge {
    fn default() -> QueueAge {
        let [others, critical] = [500, 2_500].map(|millis| Time(Duration::from_millis(millis)));
        QueueAge { others, critical, mode: Mode::Enforce }
    }
}

impl Default for Workers {
    fn default() -> Workers {
        Workers {
            good: PercentText(700),
            bad: PercentText(800),
            after: Time(Duration::from_secs(28)),
            full: Time(Duration::from_secs(120)),
            leak: Fraction((1, 1_800)),
            shed_critical: false,
            stripe_exact: false,
            mode: Mode::Enforce,
        }
    }
}
