//! One line of a trace, in the format that `tidegate replay` reads.

use std::io::Write;

use serde::{Serialize, Serializer};

use crate::engine::{Verdict, WorkOutcome};

/// The fields of a line after its time. Absent fields are omitted.
#[derive(Debug, Default, Serialize)]
pub(super) struct RecordedLine<'l> {
    pub(super) op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<RecordedId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) domain: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) descriptors: Option<&'l [Vec<RecordedText<'l>>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cost: Option<RecordedAmount<'l>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) amount: Option<RecordedAmount<'l>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) priority: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idem: Option<String>,
    /// The `idem` of the refunded request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of: Option<String>,
    /// The id of the refunded lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_id: Option<RecordedId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) queued_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_wait_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pool: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) slots: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<WorkOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'l str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) permille: Option<u16>,
    /// The verdict, for people and tools; a replay computes its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verdict: Option<Verdict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rule: Option<&'l str>,
}

impl RecordedLine<'_> {
    /// Appends the line with its time: Unix nanoseconds, written as seconds with nine decimals.
    pub(super) fn write(&self, unix_nanos: u64, to: &mut Vec<u8>) {
        let (seconds, nanos) = (unix_nanos / NANOS_PER_SECOND, unix_nanos % NANOS_PER_SECOND);
        // The time is written as text, because a float would lose digits.
        // Neither write fails: they go to memory, and all keys are strings.
        let _ = write!(to, "{{\"t\":{seconds}.{nanos:09},");
        let begin = to.len();
        let _ = serde_json::to_writer(&mut *to, self);
        // The opening brace of the serialized object is already written before the time.
        if to.len() > begin {
            to.remove(begin);
        }
        to.push(b'\n');
    }
}

pub(super) type RecordedText<'l> = std::borrow::Cow<'l, str>;

/// The id that releases and renewals refer to.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum RecordedId {
    /// Of a granted lease.
    Lease(String),
    /// Of a request without a lease, or of a retry.
    Number(u64),
}

#[derive(Debug)]
pub(super) enum RecordedAmount<'l> {
    Requests(i64),
    Units(Vec<(&'l str, i64)>),
}

impl Serialize for RecordedAmount<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            RecordedAmount::Requests(number) => serializer.serialize_i64(*number),
            RecordedAmount::Units(units) => serializer.collect_map(units.iter().copied()),
        }
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
