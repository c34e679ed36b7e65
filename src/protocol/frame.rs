//! Splits received bytes into frames. Never copies, and never reserves memory for an announced length.

use super::fault::{Fault, FaultReason, FormatFault};
use super::{FRAME_BYTES_MAX, HEADER_BYTES};

/// The start of a read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSplit<'a> {
    Frame {
        /// The bytes after the length.
        payload: &'a [u8],
        /// Bytes of the frame in the buffer, length included.
        consumed: usize,
    },
    /// Part of a frame.
    More {
        /// Bytes of the whole frame, length included, as far as known: 4 until the length is complete.
        needed: usize,
    },
    /// An invalid length; the bytes after it cannot be trusted.
    Broken(Fault),
}

#[inline]
pub fn split_frame(buffer: &[u8]) -> FrameSplit<'_> {
    let Some((header, rest)) = buffer.split_first_chunk::<HEADER_BYTES>() else {
        return FrameSplit::More { needed: HEADER_BYTES };
    };
    let length = u32::from_be_bytes(*header);
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    if bytes == 0 {
        return FrameSplit::Broken(Fault::malformed(FormatFault::Empty));
    }
    if bytes > FRAME_BYTES_MAX {
        return FrameSplit::Broken(Fault::new(None, FaultReason::TooLarge(length)));
    }
    match rest.get(..bytes) {
        Some(payload) => FrameSplit::Frame { payload, consumed: HEADER_BYTES + bytes },
        None => FrameSplit::More { needed: HEADER_BYTES + bytes },
    }
}
