//! The result of one check, with its help.

use std::fmt;

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FindingSeverity {
    Well,
    /// It works, but not as well as it could.
    Warning,
    /// Requests bypass limits, or will.
    Wrong,
    /// It could not be checked.
    Unseen,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DoctorFinding {
    pub(super) severity: FindingSeverity,
    /// The subject, in one or two words.
    pub(super) what: &'static str,
    pub(super) message: String,
    pub(super) mend: Option<String>,
}

impl DoctorFinding {
    pub(super) fn well(what: &'static str, message: impl Into<String>) -> DoctorFinding {
        DoctorFinding { severity: FindingSeverity::Well, what, message: message.into(), mend: None }
    }

    pub(super) fn warning(
        what: &'static str,
        message: impl Into<String>,
        mend: impl Into<String>,
    ) -> DoctorFinding {
        let mend = Some(mend.into());
        DoctorFinding { severity: FindingSeverity::Warning, what, message: message.into(), mend }
    }

    pub(super) fn wrong(
        what: &'static str,
        message: impl Into<String>,
        mend: impl Into<String>,
    ) -> DoctorFinding {
        let mend = Some(mend.into());
        DoctorFinding { severity: FindingSeverity::Wrong, what, message: message.into(), mend }
    }

    pub(super) fn unseen(
        what: &'static str,
        message: impl Into<String>,
        mend: impl Into<String>,
    ) -> DoctorFinding {
        let mend = Some(mend.into());
        DoctorFinding { severity: FindingSeverity::Unseen, what, message: message.into(), mend }
    }

    pub(super) fn json(&self) -> Value {
        let severity = match self.severity {
            FindingSeverity::Well => "well",
            FindingSeverity::Warning => "warning",
            FindingSeverity::Wrong => "wrong",
            FindingSeverity::Unseen => "unseen",
        };
        json!({"severity": severity, "what": self.what, "message": self.message, "mend": self.mend})
    }
}

impl fmt::Display for DoctorFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.severity {
            FindingSeverity::Well => "well ",
            FindingSeverity::Warning => "look ",
            FindingSeverity::Wrong => "WRONG",
            FindingSeverity::Unseen => "?    ",
        };
        writeln!(f, "{mark}  {}: {}", self.what, self.message)?;
        self.mend.iter().try_for_each(|mend| writeln!(f, "       mend: {mend}"))
    }
}
