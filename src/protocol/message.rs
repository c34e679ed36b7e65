//! Decoded requests and replies. Texts and lists borrow from the frame.

use strum::VariantArray;

use super::entries::{Abandoned, WireEntry, WireList};
use super::fault::Code;
use crate::terms::{Mode, NoteKind, Op, RefundReference, Verdict, WorkOutcome};

/// One request, without its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFrame<'a> {
    Hello(HelloFrame<'a>),
    Release {
        /// The request's id; `None` for no reply.
        id: Option<u64>,
        /// The number from the grant; 0 is not a valid lease.
        lease: u64,
        outcome: WorkOutcome,
    },
    Check(Op, CheckRequest<'a>),
    Charge(ChargeFrame<'a>),
    Renew {
        id: u64,
        lease: u64,
    },
    /// A utilization reading from the application.
    Signal {
        id: Option<u64>,
        pool: &'a str,
        name: &'a str,
        /// The reading, 0 to 1000.
        permille: u16,
    },
    /// Asks for a sign of life.
    Ping {
        id: u64,
    },
}

impl<'a> RequestFrame<'a> {
    /// Makes a HIT of cost 1 with default values.
    pub fn hit(id: u64, domain: &'a str) -> RequestFrame<'a> {
        RequestFrame::Check(Op::Hit, CheckRequest::new(id, domain))
    }

    /// The id that the reply repeats; `None` if the client wants no reply.
    pub fn id(&self) -> Option<u64> {
        match self {
            RequestFrame::Check(_, judge) => Some(judge.id),
            RequestFrame::Renew { id, .. } | RequestFrame::Ping { id } => Some(*id),
            RequestFrame::Hello(hello) => Some(hello.id),
            RequestFrame::Charge(charge) => charge.id,
            RequestFrame::Release { id, .. } | RequestFrame::Signal { id, .. } => *id,
        }
    }
}

/// The fields of ACQUIRE, HIT and PEEK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckRequest<'a> {
    pub id: u64,
    pub domain: &'a str,
    pub cost: CostField<'a>,
    pub priority: Option<&'a str>,
    pub options: RequestOptions<'a>,
}

impl<'a> CheckRequest<'a> {
    /// Makes the fields for cost 1 with default values.
    pub fn new(id: u64, domain: &'a str) -> CheckRequest<'a> {
        CheckRequest {
            id,
            domain,
            cost: CostField::Requests(1),
            priority: None,
            options: RequestOptions::default(),
        }
    }
}

/// The cost of a request. A cost above [`COST_MAX`](super::COST_MAX) passes no rule.
pub type CostField<'a> = UnitsField<'a, u64>;

/// The amount of a CHARGE, within ± [`COST_MAX`](super::COST_MAX); a negative one is a refund.
pub type AmountField<'a> = UnitsField<'a, i64>;

/// A number in one or more units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitsField<'a, N>
where
    (&'a str, N): WireEntry<'a>,
{
    /// In the unit `requests`.
    Requests(N),
    /// In each named unit, in the order of the request, without duplicate units.
    Units(WireList<'a, (&'a str, N)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeFrame<'a> {
    pub id: Option<u64>,
    pub domain: &'a str,
    pub amount: AmountField<'a>,
    pub options: RequestOptions<'a>,
}

/// The optional fields of ACQUIRE, HIT, PEEK and CHARGE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions<'a> {
    /// The idempotency key, 1 to 64 bytes: a retry with the same key gets the same grant.
    pub idem: Option<&'a [u8]>,
    /// The grant or charge that a CHARGE of a negative amount refunds.
    pub of: Option<RefundReference<'a>>,
    /// Microseconds for which the request already waited for the application.
    pub queued_us: Option<u64>,
    /// The longest acceptable wait in microseconds; 0: none, `None`: as long as the rule's queue.
    pub max_wait_us: Option<u64>,
    /// Whether the reply lists every limit that matched.
    pub all: bool,
    /// Decisions made without the daemon since the last good frame.
    pub missed: MissedCounts,
    /// Requests that the client has abandoned.
    pub abandoned: Abandoned<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloFrame<'a> {
    pub id: u64,
    /// The highest version of the client, 1 or more.
    pub version: u64,
    /// The name and version of the client, such as "python/0.1.0".
    pub client: Option<&'a str>,
    /// The session, one per process; `None`: the connection is its own session.
    pub session: Option<[u8; 16]>,
    /// The process id in the client's own namespace.
    pub pid: Option<u32>,
    /// The pool of the client's requests, "default" if it named none.
    pub pool: &'a str,
    /// The requests that this process handles concurrently; 0: unknown.
    pub slots: u32,
    /// The client's number of this connection in its session, from 1; 0 if it gave none.
    pub connection: u64,
    pub missed: MissedCounts,
    pub abandoned: Abandoned<'a>,
}

impl HelloFrame<'_> {
    /// The pool of a client that names none.
    pub const POOL: &'static str = "default";

    /// Makes a HELLO of this version with default values.
    pub fn new(id: u64) -> Self {
        HelloFrame {
            id,
            version: super::VERSION,
            client: None,
            session: None,
            pid: None,
            pool: Self::POOL,
            slots: 0,
            connection: 0,
            missed: MissedCounts::default(),
            abandoned: Abandoned::default(),
        }
    }
}

/// The reason of a decision made without the daemon, or of one made without an attribute.
#[derive(strum::EnumString, strum::IntoStaticStr, strum::VariantArray, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    Unreachable,
    Timeout,
    /// A doubtful reply, or an ERROR.
    Protocol,
    /// Not sent after repeated failures.
    Breaker,
    /// The application's own code failed: the daemon judged the request without the value.
    Callback,
}

impl MissReason {
    /// All reasons, in the protocol's order.
    pub const ALL: &[MissReason] = MissReason::VARIANTS;

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether the client decided alone. After [`MissReason::Callback`] the daemon decides.
    pub const fn is_without_daemon(self) -> bool {
        !matches!(self, MissReason::Callback)
    }
}

/// The number of decisions made without the daemon, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissedCounts(pub(crate) [u64; MissReason::ALL.len()]);

impl MissedCounts {
    pub fn count(&self, reason: MissReason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or_default()
    }

    pub fn set(&mut self, reason: MissReason, count: u64) {
        if let Some(place) = self.0.get_mut(reason as usize) {
            *place = count;
        }
    }

    /// The sum of two reports, saturating.
    #[must_use]
    pub fn plus(mut self, more: &MissedCounts) -> MissedCounts {
        self.0.iter_mut().zip(more.0).for_each(|(count, more)| *count = count.saturating_add(more));
        self
    }

    /// The reasons that occurred, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (MissReason, u64)> + use<> {
        MissReason::ALL.iter().copied().zip(self.0).filter(|(_, count)| *count > 0)
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireReply<'a> {
    /// The reply to HELLO.
    Welcome {
        id: u64,
        /// The smaller version of both sides.
        version: u64,
        /// The name and version of the daemon, such as "tidegate/0.1.0".
        server: &'a str,
        /// A number that changes at every start of the daemon.
        boot: u64,
        /// The connection number of HELLO.
        connection: u64,
        /// The largest accepted payload, in bytes.
        frame_bytes_max: u64,
        mode: Mode,
    },
    /// The reply to ACQUIRE, HIT and PEEK.
    Decision(DecisionReply<'a>),
    /// The reply to the other requests.
    Done {
        id: u64,
        /// `false`: nothing changed.
        ok: bool,
    },
    /// A request, or the connection, was rejected.
    Error {
        /// The request's id, if it has one and it is known.
        id: Option<u64>,
        code: Code,
        /// A text for people.
        message: &'a str,
    },
    /// The daemon is draining: the client finishes, then reconnects.
    Goodbye { reason: &'a str },
}

/// A decision. Durations are microseconds, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionReply<'a> {
    pub id: u64,
    pub verdict: Verdict,
    pub rule: Option<&'a str>,
    /// The limit of the binding rule, in its unit.
    pub limit: Option<u64>,
    /// The time over which the limit is granted.
    pub window_us: Option<u64>,
    pub remaining: Option<u64>,
    /// The wait after which `remaining` would be larger.
    pub reset_us: Option<u64>,
    /// The wait after which the same request alone would pass; `None`: never.
    pub retry_us: Option<u64>,
    /// The lease to release, 1 or more.
    pub lease: Option<u64>,
    /// Additional facts about rules; empty is encoded as nil.
    pub notes: &'a [(NoteKind, &'a str)],
    /// Every limit that matched, if the request asked for them.
    pub all: Option<&'a [LimitEntry<'a>]>,
    /// The help text of the binding rule for refused callers.
    pub help: Option<&'a str>,
    /// Whether the binding rule is hidden from callers.
    pub hide: bool,
    /// The unit of the binding rule; `None`: requests.
    pub unit: Option<&'a str>,
    /// The rate of the rule that refuses, in the notation of rules: `5/min`.
    pub rate: Option<&'a str>,
    pub blocked: bool,
    /// The digest of the caller's key of the rule that refuses, in hexadecimal digits.
    pub digest: Option<&'a str>,
}

impl DecisionReply<'_> {
    /// Makes a decision without a binding rule.
    pub fn new(id: u64, verdict: Verdict) -> Self {
        DecisionReply { id, verdict, ..DecisionReply::default() }
    }
}

/// The level of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitEntry<'a> {
    pub rule: &'a str,
    pub limit: u64,
    pub window_us: u64,
    pub remaining: u64,
    pub reset_us: u64,
    pub refuses: bool,
    /// Of a node of a descriptor tree, the descriptors that it counts, as bits from the first on; of other rules 0.
    pub descriptors: u64,
}
