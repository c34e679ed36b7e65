//! Why a request has no decision of the daemon.

use std::fmt;

/// The reason of a decision without the daemon, or of a refusal by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// No connection.
    Unreachable,
    /// No reply in time.
    Timeout,
    /// A doubtful reply, or an ERROR.
    Protocol,
    /// Not sent, after repeated failures.
    Breaker,
    /// The fallback decided.
    Fallback,
    /// The client is off.
    Disabled,
    /// The request is invalid.
    Invalid,
    /// This process or user holds too much.
    Quota,
    /// The domain or pool is closed to this user.
    NotAllowed,
    /// This user may not use the daemon or session.
    Forbidden,
}

impl Reason {
    /// Returns the name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Unreachable => "unreachable",
            Reason::Timeout => "timeout",
            Reason::Protocol => "protocol",
            Reason::Breaker => "breaker",
            Reason::Fallback => "fallback",
            Reason::Disabled => "disabled",
            Reason::Invalid => "invalid",
            Reason::Quota => "quota",
            Reason::NotAllowed => "not_allowed",
            Reason::Forbidden => "forbidden",
        }
    }

    /// Whether the request or this client is wrong: it is refused, whatever the daemon does.
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        matches!(self, Reason::Invalid | Reason::Quota | Reason::NotAllowed | Reason::Forbidden)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failed exchange.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) text: String,
    pub(crate) reason: Reason,
    /// It concerns this request alone: the connection stays open.
    pub(crate) is_kept: bool,
    /// No process listens.
    pub(crate) is_absent: bool,
    /// The daemon takes no further connection.
    pub(crate) is_full: bool,
    /// The daemon did not read the request.
    pub(crate) is_unread: bool,
    /// The delay is of this process, not of the daemon.
    pub(crate) is_own: bool,
}

impl Fault {
    pub(crate) fn new(text: impl Into<String>, reason: Reason) -> Fault {
        let text = text.into();
        Fault {
            text,
            reason,
            is_kept: false,
            is_absent: false,
            is_full: false,
            is_unread: false,
            is_own: false,
        }
    }

    pub(crate) fn protocol(text: impl Into<String>) -> Fault {
        Fault::new(text, Reason::Protocol)
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Fault {
        Fault { is_kept: true, ..Fault::new(text, Reason::Invalid) }
    }

    /// Makes the fault of an ERROR.
    pub(crate) fn of_error(code: u64, message: &str) -> Fault {
        let reason = match code {
            6 => Reason::Invalid,
            7 => Reason::Quota,
            9 => Reason::Forbidden,
            11 => Reason::NotAllowed,
            _ => Reason::Protocol,
        };
        // One line of a log.
        let shown =
            message.chars().take(200).map(|character| if character.is_control() { '?' } else { character });
        let message: String = shown.collect();
        let is_kept = matches!(code, 5 | 6 | 7 | 10 | 11);
        let text = format!("the daemon answered ERROR {code}: {message}");
        Fault { is_kept, is_full: code == 8, ..Fault::new(text, reason) }
    }
}
