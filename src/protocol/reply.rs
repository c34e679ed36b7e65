//! Replies, as they are meant.

use super::fault::Code;

/// One reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// Answers HELLO.
    Welcome {
        /// The request's.
        id: u64,
        /// The smaller of both sides' versions.
        version: u64,
        /// Who answers, such as "tidegate/0.1.0".
        server: &'a str,
        /// New at every start of the daemon.
        boot: u64,
        /// As in HELLO.
        connection: u64,
        /// The largest payload taken, in bytes.
        frame_bytes_max: u64,
        /// Whether refusals are carried out.
        mode: Mode,
    },
    /// Answers ACQUIRE, HIT and PEEK.
    Decision(Decision<'a>),
    /// Answers the other requests.
    Done {
        /// The request's.
        id: u64,
        /// `false`: nothing changed.
        ok: bool,
    },
    /// Says that a request, or the connection, was not taken.
    Error {
        /// The request's, when it has one and is known.
        id: Option<u64>,
        /// What kind of error.
        code: Code,
        /// In words, for people.
        message: &'a str,
    },
    /// The daemon is draining: finish, then reconnect.
    Goodbye {
        /// In words, for people.
        reason: &'a str,
    },
}

/// What was decided. Durations are microseconds, rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// The request's.
    pub id: u64,
    /// What to do.
    pub verdict: Verdict,
    /// The binding rule.
    pub rule: Option<&'a str>,
    /// Its limit, in its unit.
    pub limit: Option<u64>,
    /// The time over which the limit is given out.
    pub window_us: Option<u64>,
    /// What is left of the limit.
    pub remaining: Option<u64>,
    /// The wait after which `remaining` would be larger.
    pub reset_us: Option<u64>,
    /// The wait after which the same request alone would pass; `None`: never.
    pub retry_us: Option<u64>,
    /// To be released, 1 or more.
    pub lease: Option<u64>,
    /// What else happened; empty is written as nil.
    pub notes: &'a [(NoteKind, &'a str)],
    /// Every limit that matched, if they were asked for.
    pub all: Option<&'a [LimitEntry<'a>]>,
    /// The binding rule's word to who is refused.
    pub help: Option<&'a str>,
    /// The binding rule is not advertised.
    pub hide: bool,
    /// The binding rule's unit; `None`: requests.
    pub unit: Option<&'a str>,
}

impl Decision<'_> {
    /// A decision that no rule with a limit had a part in.
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

/// Where one limit stands.
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

/// What the application is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Allow = 0,
    /// Refuse: this caller is over a limit.
    Limit = 1,
    /// Refuse: the host or the fleet is full.
    Shed = 2,
    /// Go on after `retry_us`.
    Wait = 3,
    /// Refuse: this caller is on a deny list.
    Deny = 4,
}

impl Verdict {
    /// All of them, by number.
    pub const ALL: [Verdict; 5] =
        [Verdict::Allow, Verdict::Limit, Verdict::Shed, Verdict::Wait, Verdict::Deny];

    /// The verdict of this number.
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

/// What a note tells about its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// It is in shadow and would have refused.
    Shadow,
    /// Its candidate would have refused.
    Candidate,
    /// Passed above its quota.
    Over,
    /// Past its `warn_at`.
    Near,
    /// Passed above the quota of a descriptor in quota mode.
    Quota,
}

impl NoteKind {
    /// All of them.
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

/// Whether the daemon carries its refusals out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It judges and lets pass.
    Shadow,
    /// It does not judge.
    Disabled,
}

impl Mode {
    /// All of them.
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
