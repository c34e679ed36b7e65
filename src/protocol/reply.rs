//! Decoded replies.

use super::fault::Code;

/// One reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The reply to HELLO.
    Welcome {
        /// The request's id.
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
        /// Whether refusals are enforced.
        mode: Mode,
    },
    /// The reply to ACQUIRE, HIT and PEEK.
    Decision(Decision<'a>),
    /// The reply to the other requests.
    Done {
        /// The request's id.
        id: u64,
        /// `false`: nothing changed.
        ok: bool,
    },
    /// A request, or the connection, was rejected.
    Error {
        /// The request's id, if it has one and it is known.
        id: Option<u64>,
        /// The code of the error.
        code: Code,
        /// A text for people.
        message: &'a str,
    },
    /// The daemon is draining: the client finishes, then reconnects.
    Goodbye {
        /// A text for people.
        reason: &'a str,
    },
}

/// A decision. Durations are microseconds, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// The request's id.
    pub id: u64,
    /// The verdict.
    pub verdict: Verdict,
    /// The binding rule.
    pub rule: Option<&'a str>,
    /// The limit of the binding rule, in its unit.
    pub limit: Option<u64>,
    /// The time over which the limit is granted.
    pub window_us: Option<u64>,
    /// The rest of the limit.
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
}

impl Decision<'_> {
    /// Makes a decision without a binding rule.
    #[must_use]
    pub fn new(id: u64, verdict: Verdict) -> Self {
        Decision {
            id,
            verdict,
            rule: None,
            limit: None,
            window_us: None,
            remaining: None,
            reset_us: None,
            retry_us: None,
            lease: None,
            notes: &[],
            all: None,
            help: None,
            hide: false,
            unit: None,
        }
    }
}

/// The level of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitEntry<'a> {
    /// The rule.
    pub rule: &'a str,
    /// As in [`Decision`].
    pub limit: u64,
    /// As in [`Decision`].
    pub window_us: u64,
    /// As in [`Decision`].
    pub remaining: u64,
    /// As in [`Decision`].
    pub reset_us: u64,
}

/// The action for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Proceed.
    Allow = 0,
    /// Refuse: the caller exceeds a limit.
    Limit = 1,
    /// Refuse: the host or the fleet is full.
    Shed = 2,
    /// Proceed after `retry_us`.
    Wait = 3,
    /// Refuse: the caller is on a deny list.
    Deny = 4,
}

impl Verdict {
    /// All verdicts, by number.
    pub const ALL: [Verdict; 5] =
        [Verdict::Allow, Verdict::Limit, Verdict::Shed, Verdict::Wait, Verdict::Deny];

    /// The verdict with this number.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Verdict> {
        Verdict::ALL.into_iter().find(|verdict| u64::from(verdict.number()) == number)
    }

    /// The number on the wire.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The name in texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Allow => "allow",
            Verdict::Limit => "limit",
            Verdict::Shed => "shed",
            Verdict::Wait => "wait",
            Verdict::Deny => "deny",
        }
    }
}

/// The kind of a note about a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// The rule is in shadow mode and would have refused.
    Shadow,
    /// The shadow rule beside it would have refused.
    Candidate,
    /// The request passed above the rule's quota.
    Over,
    /// The usage exceeds `warn_at`.
    Near,
    /// The request passed above the quota of a descriptor in quota mode.
    Quota,
}

impl NoteKind {
    /// All kinds.
    pub const ALL: [NoteKind; 5] =
        [NoteKind::Shadow, NoteKind::Candidate, NoteKind::Over, NoteKind::Near, NoteKind::Quota];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            NoteKind::Shadow => "shadow",
            NoteKind::Candidate => "candidate",
            NoteKind::Over => "over",
            NoteKind::Near => "near",
            NoteKind::Quota => "quota",
        }
    }
}

/// The mode of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Refusals are enforced.
    #[default]
    Enforce,
    /// Requests are judged and allowed.
    Shadow,
    /// Requests are allowed without a judgement.
    Disabled,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 3] = [Mode::Enforce, Mode::Shadow, Mode::Disabled];

    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Shadow => "shadow",
            Mode::Disabled => "disabled",
        }
    }
}
