//! Requests, as they are meant. Texts and lists point into the frame they were read from.

use super::entries::{Abandoned, Amounts, Units};

/// One request. The descriptors of those that have some stand beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Opens a connection.
    Hello(Hello<'a>),
    /// Judges work that will end with a release.
    Acquire(Judge<'a>),
    /// Work ended.
    Release {
        /// nil: no reply.
        id: Option<u64>,
        /// As granted. 0 is no lease's number.
        lease: u64,
        /// How it ended.
        outcome: WorkOutcome,
    },
    /// Judges something without an end.
    Hit(Judge<'a>),
    /// Judges as ACQUIRE would and changes nothing.
    Peek(Judge<'a>),
    /// Charges after the fact.
    Charge(Charge<'a>),
    /// Starts a lease's time again.
    Renew {
        /// The request's id.
        id: u64,
        /// As granted.
        lease: u64,
    },
    /// A load reading from the application.
    Signal {
        /// nil: no reply.
        id: Option<u64>,
        /// The pool it is for.
        pool: &'a str,
        /// What was read.
        name: &'a str,
        /// 0 to 1000.
        permille: u16,
    },
    /// Is anyone there?
    Ping {
        /// The request's id.
        id: u64,
    },
}

impl<'a> Request<'a> {
    /// A HIT of cost 1 with nothing else said.
    #[must_use]
    pub fn hit(id: u64, domain: &'a str) -> Request<'a> {
        Request::Hit(Judge::new(id, domain))
    }

    /// The id that the reply repeats; `None`: the client wants no reply.
    #[must_use]
    pub fn id(&self) -> Option<u64> {
        match self {
            Request::Hit(judge) | Request::Acquire(judge) | Request::Peek(judge) => Some(judge.id),
            Request::Renew { id, .. } | Request::Ping { id } => Some(*id),
            Request::Hello(hello) => Some(hello.id),
            Request::Charge(charge) => charge.id,
            Request::Release { id, .. } | Request::Signal { id, .. } => *id,
        }
    }
}

/// ACQUIRE, HIT and PEEK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judge<'a> {
    /// The request's id.
    pub id: u64,
    /// Whose rules judge.
    pub domain: &'a str,
    /// What it costs.
    pub cost: Cost<'a>,
    /// How important it is, in the caller's word.
    pub priority: Option<&'a str>,
    /// The rest.
    pub options: Options<'a>,
}

impl<'a> Judge<'a> {
    /// Cost 1 and nothing else said.
    #[must_use]
    pub fn new(id: u64, domain: &'a str) -> Judge<'a> {
        Judge { id, domain, cost: Cost::Requests(1), priority: None, options: Options::default() }
    }
}

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost<'a> {
    /// In the unit `requests`. Above [`COST_MAX`](super::COST_MAX) no rule can ever pass it.
    Requests(u64),
    /// In each unit that is named.
    Units(Units<'a>),
}

/// What a CHARGE adds, or gives back when negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount<'a> {
    /// In the unit `requests`, within ± [`COST_MAX`](super::COST_MAX).
    Requests(i64),
    /// In each unit that is named.
    Units(Amounts<'a>),
}

/// CHARGE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge<'a> {
    /// nil: no reply.
    pub id: Option<u64>,
    /// Whose rules are charged.
    pub domain: &'a str,
    /// How much.
    pub amount: Amount<'a>,
    /// The rest.
    pub options: Options<'a>,
}

/// The grant or charge that a CHARGE refunds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of<'a> {
    /// By its `idem`, 1 to 64 bytes.
    Idem(&'a [u8]),
    /// By its lease.
    Lease(u64),
}

/// What may ride on ACQUIRE, HIT, PEEK and CHARGE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    /// A repeat with the same bytes gets the same grant. 1 to 64 bytes.
    pub idem: Option<&'a [u8]>,
    /// What a CHARGE of a negative amount refunds.
    pub of: Option<Of<'a>>,
    /// Microseconds that the request already waited for the application.
    pub queued_us: Option<u64>,
    /// The longest wait in microseconds that is acceptable; 0: none, `None`: as long as the rule's queue.
    pub max_wait_us: Option<u64>,
    /// The reply lists every limit that matched.
    pub all: bool,
    /// Decisions made without the daemon since the last good frame.
    pub missed: Missed,
    /// Requests given up on.
    pub abandoned: Abandoned<'a>,
}

/// HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The request's id.
    pub id: u64,
    /// The highest version the client speaks, 1 or more.
    pub version: u64,
    /// Who it is, such as "python/0.1.0".
    pub client: Option<&'a str>,
    /// One per process; `None`: the connection is its own session.
    pub session: Option<[u8; 16]>,
    /// The process, as it sees itself.
    pub pid: Option<u32>,
    /// The pool its work counts in, "default" when it said none.
    pub pool: &'a str,
    /// How many requests this process works on at once; 0: unknown.
    pub slots: u32,
    /// The client's count of its connections in this session, from 1; 0 when it said none.
    pub connection: u64,
    /// As in [`Options`].
    pub missed: Missed,
    /// As in [`Options`].
    pub abandoned: Abandoned<'a>,
}

impl Hello<'_> {
    /// The pool of a client that names none.
    pub const POOL: &'static str = "default";

    /// A HELLO of this version with nothing else said.
    #[must_use]
    pub fn new(id: u64) -> Self {
        Hello {
            id,
            version: super::VERSION,
            client: None,
            session: None,
            pid: None,
            pool: Self::POOL,
            slots: 0,
            connection: 0,
            missed: Missed::default(),
            abandoned: Abandoned::default(),
        }
    }
}

/// How work ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkOutcome {
    /// Well.
    Ok = 0,
    /// Badly, or nothing was said.
    #[default]
    Error = 1,
    /// Dropped or timed out.
    Dropped = 2,
}

impl WorkOutcome {
    /// The outcome of this number.
    #[must_use]
    pub const fn from_number(number: u64) -> Option<WorkOutcome> {
        match number {
            0 => Some(WorkOutcome::Ok),
            1 => Some(WorkOutcome::Error),
            2 => Some(WorkOutcome::Dropped),
            _ => None,
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// Why a decision was made without the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// No connection.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// A doubtful answer, or an ERROR.
    Protocol,
    /// Not asked after repeated failures.
    Breaker,
    /// The application's own code failed.
    Callback,
}

impl MissReason {
    /// All of them, in the protocol's order.
    pub const ALL: [MissReason; 5] = [
        MissReason::Unreachable,
        MissReason::Timeout,
        MissReason::Protocol,
        MissReason::Breaker,
        MissReason::Callback,
    ];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MissReason::Unreachable => "unreachable",
            MissReason::Timeout => "timeout",
            MissReason::Protocol => "protocol",
            MissReason::Breaker => "breaker",
            MissReason::Callback => "callback",
        }
    }
}

/// How many decisions were made without the daemon, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed([u64; MissReason::ALL.len()]);

impl Missed {
    /// How many for this reason.
    #[must_use]
    pub fn of(&self, reason: MissReason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or_default()
    }

    /// Sets how many for this reason.
    pub fn set(&mut self, reason: MissReason, count: u64) {
        if let Some(place) = self.0.get_mut(reason as usize) {
            *place = count;
        }
    }

    /// The reasons that occurred, with how often.
    pub fn iter(&self) -> impl Iterator<Item = (MissReason, u64)> + use<> {
        MissReason::ALL.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }

    /// Whether none were missed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }
}
