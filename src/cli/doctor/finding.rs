//! The result of one check, with its help.

use std::fmt;

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Well,
    /// It works, but not as well as it could.
    Warning,
    /// Requests bypass limits, or will.
    Wrong,
    /// It could not be checked.
    Unseen,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The subject, in one or two words.
    pub(super) what: &'static str,
    pub(super) message: String,
    pub(super) mend: Option<String>,
}

impl Finding {
    pub(super) fn well(what: &'static str, message: impl Into<String>) -> Finding {
        Finding { severity: Severity::Well, what, message: message.into(), mend: None }
    }

    pub(super) fn warning(
        what: &'static str,
        message: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        let mend = Some(mend.into());
        Finding { severity: Severity::Warning, what, message: message.into(), mend }
    }

    pub(super) fn wrong(what: &'static str, message: impl Into<String>, mend: impl Into<String>) -> Finding {
        let mend = Some(mend.into());
        Finding { severity: Severity::Wrong, what, message: message.into(), mend }
    }

    pub(super) fn unseen(what: &'static str, message: impl Into<String>, mend: impl Into<String>) -> Finding {
        let mend = Some(mend.into());
        Finding { severity: Severity::Unseen, what, message: message.into(), mend }
    }

    pub(super) fn json(&self) -> Value {
        let severity = match self.severity {
            Severity::Well => "well",
            Severity::Warning => "warning",
            Severity::Wrong => "wrong",
            Severity::Unseen => "unseen",
        };
        json!({"severity": severity, "what": self.what, "message": self.message, "mend": self.mend})
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.severity {
            Severity::Well => "well ",
            Severity::Warning => "look ",
            Severity::Wrong => "WRONG",
            Severity::Unseen => "?    ",
        };
        writeln!(f, "{mark}  {}: {}", self.what, self.message)?;
        self.mend.iter().try_for_each(|mend| writeln!(f, "       mend: {mend}"))
    }
}
