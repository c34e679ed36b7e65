//! Splits received bytes into frames. Never copies, and never reserves memory for an announced length.

use super::fault::{Fault, FormatFault};
use super::{FRAME_BYTES_MAX, HEADER_BYTES};

/// The start of a read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSplit<'a> {
    /// A whole frame.
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

/// Finds the frame at the start of `buffer`.
#[inline]
#[must_use]
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
        return FrameSplit::Broken(Fault::too_large(length));
    }
    match rest.get(..bytes) {
        Some(payload) => FrameSplit::Frame { payload, consumed: HEADER_BYTES + bytes },
        None => FrameSplit::More { needed: HEADER_BYTES + bytes },
    }
}

#[cfg(test)]
mod tests {
    use super::{FrameSplit, split_frame};
    use crate::protocol::{Code, FRAME_BYTES_MAX};

    #[test]
    fn splits_frames_and_rejects_invalid_lengths() {
        let mut largest = vec![0, 0, 0x40, 0];
        largest.resize(4 + FRAME_BYTES_MAX, 0xc0);
        type Expected = Result<(usize, usize), usize>;
        let table: &[(&[u8], Expected)] = &[
            (&[], Err(4)),
            (&[0, 0, 0], Err(4)),
            (&[0, 0, 0, 2], Err(6)),
            (&[0, 0, 0, 2, 0x91], Err(6)),
            (&[0, 0, 0, 2, 0x91, 0x08], Ok((2, 6))),
            (&[0, 0, 0, 1, 0x90, 0x90], Ok((1, 5))), // the next frame's first byte is left alone
            (&[0, 0, 0x40, 0], Err(16_388)),
            (&largest, Ok((16_384, 16_388))),
        ];
        for (buffer, expected) in table {
            let found = match split_frame(buffer) {
                FrameSplit::Frame { payload, consumed } => Ok((payload.len(), consumed)),
                FrameSplit::More { needed } => Err(needed),
                FrameSplit::Broken(fault) => panic!("{buffer:?}: {fault}"),
            };
            assert_eq!(found, *expected, "{buffer:?}");
        }
        for (length, code) in [
            (0u32, Code::Malformed),
            (16_385, Code::TooLarge),
            (0x8000_0000, Code::TooLarge),
            (u32::MAX, Code::TooLarge),
        ] {
            let FrameSplit::Broken(fault) = split_frame(&length.to_be_bytes()) else { panic!("{length}") };
            assert_eq!(fault.code, code, "{length}");
        }
    }
}
