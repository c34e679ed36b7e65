//! When a pool is full: which of its requests are refused, as the rules say it. What it means is the business of others.

use std::time::Duration;

use super::{Mode, Position};

/// One entry of `shed`: the parts that watch over one pool. A part that is not written is off.
#[derive(Clone, Debug, PartialEq)]
pub struct Shed {
    /// The pool. It is shed in one domain only.
    pub pool: Box<str>,
    /// Where it is written.
    pub position: Position,
    /// Its slots, when the processes do not say.
    pub slots: Option<u32>,
    /// Who counts as one caller.
    pub callers: Callers,
    /// Refuses what has waited too long already.
    pub queue_age: Option<QueueAge>,
    /// Refuses slowly and by importance, as the workers are busy.
    pub workers: Option<Workers>,
    /// Refuses at once and by importance, while requests queue up.
    pub brake: Option<Brake>,
    /// Keeps slots back for the most important.
    pub fleet: Option<Reserve>,
    /// Readings, in file order.
    pub signals: Vec<Signal>,
}

/// Who counts as one caller: refused or not as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callers {
    /// The first of these attributes that a request has names its caller.
    pub by: Vec<Box<str>>,
    /// How long it takes until all who are refused are others.
    pub rotate: Duration,
}

/// `queue_age`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueAge {
    /// Whether its refusals are carried out.
    pub mode: Mode,
    /// How long all but the most important may have waited.
    pub others: Duration,
    /// How long the most important may have waited.
    pub critical: Duration,
}

/// `workers`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workers {
    /// Whether its refusals are carried out.
    pub mode: Mode,
    /// Below this share of busy slots, in thousandths, the host recovers.
    pub good: u16,
    /// Above this share, in thousandths, it sheds more.
    pub bad: u16,
    /// At full load from rest, the time to the first refusal.
    pub after: Duration,
    /// At full load from the first refusal, the time to the last.
    pub full: Duration,
    /// By how much it recovers in a second between `good` and `bad`: numerator and denominator.
    pub leak: (u32, u32),
    /// Whether the most important is shed as well, last.
    pub shed_critical: bool,
    /// The law as it was published: no leak, a fresh draw for each request.
    pub stripe_exact: bool,
}

/// `brake`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brake {
    /// Whether its refusals are carried out.
    pub mode: Mode,
    /// What share of the slots, in thousandths, a priority may use while it is on: the least important first, one for
    /// each but the most important.
    pub bands: Vec<u16>,
}

/// `fleet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Whether its refusals are carried out.
    pub mode: Mode,
    /// The share of the slots, in thousandths, that is kept back.
    pub reserve: u16,
    /// For whom: a place in the domain's priorities. Those before it may use it as well.
    pub reserved_for: usize,
}

/// One entry of `signals`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its name. What is not one of the readings of the machine is pushed by the application.
    pub name: Box<str>,
    /// What is read.
    pub source: Source,
    /// Whether it counts, or is only shown.
    pub counts: bool,
    /// Readings and the utilization that each stands for, in thousandths: rising, straight lines in between, level
    /// outside. Readings are requests waiting for `accept_queue`, else thousandths.
    pub map: Vec<(u32, u16)>,
}

/// What a signal reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Connections that wait to be accepted.
    AcceptQueue(Listen),
    /// The share of time in which some task waits for a CPU (pressure stall information).
    CpuPressure,
    /// The share of time in which all tasks wait for memory.
    MemoryPressure,
    /// The share of time in which some task waits for a disk.
    IoPressure,
    /// CPU time used, of what the control group may use.
    CpuQuota,
    /// CPU time used, of what the machine has.
    Cpu,
    /// Whatever the application pushes under this name.
    Pushed,
}

/// Where the application listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// On a TCP port, whatever the address.
    Port(u16),
    /// On a Unix socket.
    Path(Box<str>),
}

/// The parts of an entry, in the order in which they are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `fleet`.
    Fleet,
    /// `brake`.
    Brake,
    /// `workers`.
    Workers,
    /// `queue_age`.
    QueueAge,
}

impl Part {
    /// All of them, in the order in which they are judged.
    pub const ALL: [Part; 4] = [Part::Fleet, Part::Brake, Part::Workers, Part::QueueAge];

    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Part::Fleet => "fleet",
            Part::Brake => "brake",
            Part::Workers => "workers",
            Part::QueueAge => "queue_age",
        }
    }
}

impl Shed {
    /// The mode of a part; none: it is not written.
    #[must_use]
    pub fn mode(&self, part: Part) -> Option<Mode> {
        match part {
            Part::Fleet => self.fleet.as_ref().map(|reserve| reserve.mode),
            Part::Brake => self.brake.as_ref().map(|brake| brake.mode),
            Part::Workers => self.workers.as_ref().map(|workers| workers.mode),
            Part::QueueAge => self.queue_age.as_ref().map(|queue_age| queue_age.mode),
        }
    }

    /// The parts that are written, in the order in which they are judged, each with its mode.
    pub fn parts(&self) -> impl Iterator<Item = (Part, Mode)> + '_ {
        Part::ALL.into_iter().filter_map(|part| Some((part, self.mode(part)?)))
    }

    /// The rule's name of a part, as replies and metrics have it: `web/workers`.
    #[must_use]
    pub fn rule_name(&self, part: Part) -> String {
        format!("{}/{}", self.pool, part.name())
    }
}

impl Default for Callers {
    fn default() -> Callers {
        Callers { by: vec!["user".into(), "ip".into()], rotate: Duration::from_secs(600) }
    }
}

impl Default for QueueAge {
    fn default() -> QueueAge {
        let (others, critical) = (Duration::from_millis(500), Duration::from_millis(2_500));
        QueueAge { mode: Mode::Enforce, others, critical }
    }
}

impl Default for Workers {
    fn default() -> Workers {
        Workers {
            mode: Mode::Enforce,
            good: 700,
            bad: 800,
            after: Duration::from_secs(28),
            full: Duration::from_secs(120),
            leak: (1, 1_800),
            shed_critical: false,
            stripe_exact: false,
        }
    }
}
