//! The faults of a frame, and the ERROR for each. Every fault follows from the bytes alone.

use super::{FRAME_BYTES_MAX, VERSION};

/// The code of an ERROR. After some codes the connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[derive(strum::Display, strum::FromRepr, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Code {
    /// The payload is not one well-formed array. Closes.
    Malformed = 1,
    /// The length exceeds [`FRAME_BYTES_MAX`]. Closes.
    TooLarge = 2,
    /// The version is 0. Closes.
    Version = 3,
    /// The first frame was not HELLO. Closes.
    HelloRequired = 4,
    /// The op is unknown in this version.
    UnknownOp = 5,
    /// A known field is missing or has a wrong type or range, or the id cannot be used.
    Invalid = 6,
    /// The session holds too many leases.
    Quota = 7,
    /// There are too many connections. Closes.
    Busy = 8,
    /// The user is not allowed to connect. Closes.
    Forbidden = 9,
    Internal = 10,
    /// This domain, pool or op is not allowed for this user.
    NotAllowed = 11,
}

impl Code {
    pub const fn number(self) -> u8 {
        self as u8
    }

    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether a client refuses the request. After the other codes it decides as without an answer, except after
    /// [`Code::Invalid`], which commands report as wrong usage.
    pub const fn refuses(self) -> bool {
        matches!(self, Code::Quota | Code::Forbidden | Code::NotAllowed)
    }

    pub const fn closes(self) -> bool {
        match self {
            Code::Malformed
            | Code::TooLarge
            | Code::Version
            | Code::HelloRequired
            | Code::Busy
            | Code::Forbidden => true,
            Code::UnknownOp | Code::Invalid | Code::Quota | Code::Internal | Code::NotAllowed => false,
        }
    }
}

/// The reason why a frame was rejected. Its text is the message of the ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Fault {
    /// The request's id, if the frame is whole and has one.
    pub id: Option<u64>,
    pub code: Code,
    pub(super) reason: FaultReason,
    /// No ERROR is sent, because the request has no id and expects no reply.
    pub silent: bool,
}

impl Fault {
    pub(super) const fn new(id: Option<u64>, reason: FaultReason) -> Fault {
        Fault { id, code: reason.code(), reason, silent: false }
    }

    pub(super) const fn malformed(flaw: FormatFault) -> Fault {
        Fault::new(None, FaultReason::Flaw(flaw))
    }

    /// The fault of a HELLO after the first frame: the session is settled, the connection stays open.
    pub const fn second_hello(id: u64) -> Fault {
        Fault::new(Some(id), FaultReason::SecondHello)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FaultReason {
    #[error("{0}")]
    Flaw(FormatFault),
    #[error("a frame of {0} bytes exceeds the limit of {FRAME_BYTES_MAX} bytes")]
    TooLarge(u32),
    #[error("version 0 is not supported: use 1 to {VERSION}")]
    Version,
    #[error("the first frame must be HELLO")]
    HelloRequired,
    #[error("a second HELLO: only the first frame may be HELLO")]
    SecondHello,
    #[error("op {0} is unknown in version {VERSION}")]
    UnknownOp(u64),
    #[error("reply kind {0} is unknown in version {VERSION}")]
    UnknownKind(u64),
    #[error("{} must be {}", .0.field, .0.range)]
    Field(&'static ExpectedField),
}

impl FaultReason {
    pub(super) const fn code(self) -> Code {
        match self {
            FaultReason::Flaw(_) => Code::Malformed,
            FaultReason::TooLarge(_) => Code::TooLarge,
            FaultReason::Version => Code::Version,
            FaultReason::HelloRequired => Code::HelloRequired,
            FaultReason::UnknownOp(_) | FaultReason::UnknownKind(_) => Code::UnknownOp,
            FaultReason::SecondHello | FaultReason::Field(_) => Code::Invalid,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExpectedField {
    field: &'static str,
    range: &'static str,
}

pub(super) const fn expected(field: &'static str, range: &'static str) -> ExpectedField {
    ExpectedField { field, range }
}

/// The reason why bytes are not one MessagePack array that version 1 allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormatFault {
    #[error("an empty frame")]
    Empty,
    #[error("the frame is not an array")]
    NotArray,
    #[error("the frame ends inside a value")]
    Truncated,
    #[error("bytes follow the array")]
    Trailing,
    #[error("floating-point numbers are not part of the protocol")]
    Float,
    #[error("extension types are not part of the protocol")]
    Extension,
    #[error("the byte 0xc1 is not MessagePack")]
    Reserved,
    #[error("arrays and maps are nested more than 4 deep")]
    Depth,
    #[error("a text is not valid UTF-8")]
    Utf8,
    #[error("a key of a map is not a text")]
    KeyType,
    #[error("a map has a key twice")]
    KeyTwice,
    #[error("the first element must be an unsigned integer")]
    Op,
    #[error("the id must be an unsigned integer")]
    Id,
}
