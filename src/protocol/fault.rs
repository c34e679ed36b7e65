//! The faults of a frame, and the ERROR for each. Every fault follows from the bytes alone.

use std::fmt;

use super::{FRAME_BYTES_MAX, VERSION};

/// The code of an ERROR. After some codes the connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// The daemon failed.
    Internal = 10,
    /// This domain, pool or op is not allowed for this user.
    NotAllowed = 11,
}

impl Code {
    /// All codes, by number.
    pub const ALL: [Code; 11] = [
        Code::Malformed,
        Code::TooLarge,
        Code::Version,
        Code::HelloRequired,
        Code::UnknownOp,
        Code::Invalid,
        Code::Quota,
        Code::Busy,
        Code::Forbidden,
        Code::Internal,
        Code::NotAllowed,
    ];

    /// The code with this number, if version 1 has one.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Code> {
        Code::ALL.into_iter().find(|code| u64::from(code.number()) == number)
    }

    /// The number in the ERROR.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The name in texts and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Code::Malformed => "malformed",
            Code::TooLarge => "too_large",
            Code::Version => "version",
            Code::HelloRequired => "hello_required",
            Code::UnknownOp => "unknown_op",
            Code::Invalid => "invalid",
            Code::Quota => "quota",
            Code::Busy => "busy",
            Code::Forbidden => "forbidden",
            Code::Internal => "internal",
            Code::NotAllowed => "not_allowed",
        }
    }

    /// Whether the connection closes after the ERROR.
    #[must_use]
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

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a frame was rejected. Its [`fmt::Display`] is the message of the ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Fault {
    /// The request's id, if the frame is whole and has one.
    pub id: Option<u64>,
    /// The code of the ERROR.
    pub code: Code,
    /// The description of the fault.
    pub reason: FaultReason,
    /// No ERROR is sent, because the request has no id and expects no reply.
    pub silent: bool,
}

impl Fault {
    pub(super) const fn malformed(flaw: FormatFault) -> Fault {
        Fault { id: None, code: Code::Malformed, reason: FaultReason::Flaw(flaw), silent: false }
    }

    pub(super) const fn too_large(bytes: u32) -> Fault {
        Fault { id: None, code: Code::TooLarge, reason: FaultReason::TooLarge(bytes), silent: false }
    }

    /// The fault of a HELLO after the first frame: the session is settled, the connection stays open.
    #[must_use]
    pub const fn second_hello(id: u64) -> Fault {
        Fault { id: Some(id), code: Code::Invalid, reason: FaultReason::SecondHello, silent: false }
    }
}

/// The description of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultReason {
    /// The bytes are not a message.
    Flaw(FormatFault),
    /// The length, in bytes, exceeds the bound.
    TooLarge(u32),
    /// HELLO offers version 0.
    Version,
    /// The first frame has an op other than HELLO.
    HelloRequired,
    /// A second HELLO on one connection.
    SecondHello,
    /// The number of an unknown op.
    UnknownOp(u64),
    /// The number of an unknown kind of reply.
    UnknownKind(u64),
    /// A field is missing or violates its type or range.
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

/// The expected type and range of a field.
#[derive(Debug, PartialEq, Eq)]
pub struct ExpectedField {
    /// The name of the field in the protocol.
    pub field: &'static str,
    /// Its type and range.
    pub range: &'static str,
}

/// The reason why bytes are not one MessagePack array that version 1 allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatFault {
    /// The payload is empty.
    Empty,
    /// The outermost value is not an array.
    NotArray,
    /// The frame ends inside a value.
    Truncated,
    /// Bytes follow the array.
    Trailing,
    /// A floating-point number.
    Float,
    /// An extension type, such as a timestamp.
    Extension,
    /// The byte that MessagePack never uses.
    Reserved,
    /// Arrays and maps are nested too deeply.
    Depth,
    /// A text is not UTF-8.
    Utf8,
    /// A key of a map is not a text.
    KeyType,
    /// A map has a duplicate key.
    KeyTwice,
    /// The op or kind is not an unsigned integer.
    Op,
    /// The id is neither nil nor an unsigned integer.
    Id,
}

impl fmt::Display for FaultReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultReason::Flaw(flaw) => flaw.fmt(f),
            FaultReason::TooLarge(bytes) => {
                write!(f, "a frame of {bytes} bytes exceeds the limit of {FRAME_BYTES_MAX} bytes")
            }
            FaultReason::Version => write!(f, "version 0 is not supported: use 1 to {VERSION}"),
            FaultReason::HelloRequired => f.write_str("the first frame must be HELLO"),
            FaultReason::SecondHello => f.write_str("a second HELLO: only the first frame may be HELLO"),
            FaultReason::UnknownOp(op) => write!(f, "op {op} is unknown in version {VERSION}"),
            FaultReason::UnknownKind(kind) => write!(f, "reply kind {kind} is unknown in version {VERSION}"),
            FaultReason::Field(expected) => write!(f, "{} must be {}", expected.field, expected.range),
        }
    }
}

impl fmt::Display for FormatFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FormatFault::Empty => "an empty frame",
            FormatFault::NotArray => "the frame is not an array",
            FormatFault::Truncated => "the frame ends inside a value",
            FormatFault::Trailing => "bytes follow the array",
            FormatFault::Float => "floating-point numbers are not part of the protocol",
            FormatFault::Extension => "extension types are not part of the protocol",
            FormatFault::Reserved => "the byte 0xc1 is not MessagePack",
            FormatFault::Depth => "arrays and maps are nested more than 4 deep",
            FormatFault::Utf8 => "a text is not valid UTF-8",
            FormatFault::KeyType => "a key of a map is not a text",
            FormatFault::KeyTwice => "a map has a key twice",
            FormatFault::Op => "the first element must be an unsigned integer",
            FormatFault::Id => "the id must be an unsigned integer",
        })
    }
}
