//! BYTES: encodes and decodes frames and messages of protocol version 1. The meaning of a decision is outside of this
//! room.
//!
//! A frame is a 4-byte big-endian length and one MessagePack array. Requests are decoded from the read buffer without
//! allocation: [`split_frame`] finds a frame, [`decode_request`] decodes it, [`mod@encode_reply`] appends the reply. The client's
//! side, [`encode_request`] and [`mod@decode_reply`], serves the command line, the benchmarks and the tests.
//!
//! ```
//! use tidegate::protocol::{CostField, DescriptorList, FrameSplit, Op, RequestFrame, decode_request, encode_request, split_frame};
//!
//! let mut bytes = Vec::new();
//! let mut descriptors = DescriptorList::new();
//! assert!(descriptors.push(&[("user", "u1")]));
//! encode_request(&mut bytes, &RequestFrame::hit(7, "api"), &descriptors).unwrap();
//!
//! let mut descriptors = DescriptorList::new(); // after the bytes that it will point into
//! let FrameSplit::Frame { payload, consumed } = split_frame(&bytes) else { panic!("a whole frame was written") };
//! assert_eq!(consumed, bytes.len());
//! let Ok(RequestFrame::Check(Op::Hit, judge)) = decode_request(payload, &mut descriptors) else { panic!("a HIT was written") };
//! assert_eq!((judge.id, judge.domain, judge.cost), (7, "api", CostField::Requests(1)));
//! assert_eq!(descriptors.attributes(), [("user", "u1")]);
//! ```

mod decode;
mod decode_reply;
mod descriptors;
mod encode;
mod encode_reply;
mod entries;
mod fault;
mod frame;
mod message;
mod name;
mod reader;
mod shape;
mod wellformed;
mod writer;

pub use decode::{decode_first, decode_request};
pub use decode_reply::{ReplyScratch, decode_reply};
pub use descriptors::DescriptorList;
pub use encode::{TooLarge, encode_request};
pub use encode_reply::{encode_decision, encode_fault, encode_reply};
pub use entries::{Abandoned, WireEntry, WireList};
pub use fault::{Code, Fault};
pub use frame::{FrameSplit, split_frame};
pub use message::{
    AmountField, ChargeFrame, CheckRequest, CostField, DecisionReply, HelloFrame, LimitEntry, MissReason,
    MissedCounts, RequestFrame, RequestOptions, UnitsField, WireReply,
};
pub(crate) use name::is_name;
pub use name::{shorten, shorten_value};
pub use shape::{FrameShape, ShapedCheck};

pub use crate::terms::{Mode, NoteKind, Op, RefundReference, Verdict, WorkOutcome};

pub const VERSION: u64 = 1;

/// The largest payload of a frame, either way: 8 descriptors of typical values fit several times over, and a connection
/// never needs a buffer above 16 KiB.
pub const FRAME_BYTES_MAX: usize = 16_384;

/// The bytes of the length in front of every payload.
pub const HEADER_BYTES: usize = 4;

/// The nesting depth of arrays and maps, the outer array being 1: as much as `abandoned` needs.
pub const DEPTH_MAX: usize = 4;

/// The largest id and lease number: fits the signed integers of every client's language.
pub const ID_MAX: u64 = i64::MAX.unsigned_abs();

/// The largest cost of one unit that can pass, and the largest amount either way that is counted.
pub const COST_MAX: u32 = u32::MAX;

pub const DESCRIPTORS_MAX: usize = 8;

pub const PAIRS_MAX: usize = 16;

/// The longest name: domain, priority, pool, unit, attribute key.
pub const NAME_BYTES_MAX: usize = 64;

pub const VALUE_BYTES_MAX: usize = 1_024;

pub const IDEM_BYTES_MAX: usize = 64;

/// The longest `client` in HELLO: it appears in logs and in lists of connections.
pub const CLIENT_BYTES_MAX: usize = 255;

/// The full scale of a SIGNAL.
pub const PERMILLE_MAX: u16 = 1_000;
