//! What the plant asks: the real engine, alone or watched. It knows no plant.

/// Whatever decides which requests are served.
pub(crate) trait Shedder {
    /// A worker has taken a request from the backlog: may it start?
    fn ask(&mut self, asked: &Asked, at: u64) -> Said;

    /// The work under a lease has ended.
    fn release(&mut self, worker: u32, lease: u64, at: u64);

    /// 250 ms have passed; so many connections wait to be accepted.
    fn tick(&mut self, queue: u32, at: u64);

    /// What it shows of itself, once a second.
    fn view(&self) -> View;
}

/// One request at the moment when it is judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) worker: u32,
    /// A place in [`PRIORITIES`](crate::plan::PRIORITIES).
    pub(crate) priority: usize,
    pub(crate) caller: u32,
    pub(crate) queued_nanos: u64,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Grant {
        lease: u64,
    },
    /// 503: this host is too busy, as this part of it says.
    Shed {
        by: By,
    },
    /// 429: this caller is over his own limit.
    Limit,
}

/// The part that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Fleet,
    Brake,
    Workers,
    QueueAge,
}

impl By {
    /// The name of its rule.
    pub(crate) fn rule(self) -> &'static str {
        match self {
            By::Fleet => "web/fleet",
            By::Brake => "web/brake",
            By::Workers => "web/workers",
            By::QueueAge => "web/queue_age",
        }
    }
}

/// What is shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    /// The share of the slots that was busy in the last 8 s.
    pub(crate) utilization: Option<f64>,
    /// s.
    pub(crate) severity: f64,
    pub(crate) braking: bool,
    /// Leases of critical work, and of all other.
    pub(crate) leases: [u32; 2],
}

/// What a shedder is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) slots: u32,
    pub(crate) parts: Parts,
    /// By how much s falls in a second between 0.7 and 0.8.
    pub(crate) leak: f64,
    /// Whether one caller has a limit of his own.
    pub(crate) quota: bool,
}

/// Which parts are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// Nothing: what the plant does by itself.
    None,
    /// The slow loop alone.
    Workers,
    /// The slow loop and the brake.
    WorkersBrake,
    /// The slow loop and the queue age.
    WorkersAge,
    /// All three.
    All,
    /// The reserve alone.
    Reserve,
}

impl Parts {
    pub(crate) fn workers(self) -> bool {
        !matches!(self, Parts::None | Parts::Reserve)
    }

    pub(crate) fn brake(self) -> bool {
        matches!(self, Parts::WorkersBrake | Parts::All)
    }

    pub(crate) fn reserve(self) -> bool {
        self == Parts::Reserve
    }

    pub(crate) fn queue_age(self) -> bool {
        matches!(self, Parts::WorkersAge | Parts::All)
    }
}
