//! The size of a heap block, for the memory budget. Allocates nothing.

/// Bytes that malloc (glibc, 64 bits) allocates for a block of `payload` bytes: 8 bytes of header, rounded up to 16, at
/// least 32, whole pages once the block is mapped on its own. Zero for zero. A block for which the heap has room is not
/// mapped: the result is then at most a page too large.
#[must_use]
pub const fn malloc_block_bytes(payload: usize) -> usize {
    if payload == 0 {
        return 0;
    }
    let chunk = payload.saturating_add(8).next_multiple_of(16);
    if chunk >= MAPPED_BYTES_MIN {
        return chunk.saturating_add(8).next_multiple_of(4_096);
    }
    if chunk < 32 { 32 } else { chunk }
}

/// The size, with the header, from which malloc maps a block on its own: `sys::return_freed_memory` sets it.
pub const MAPPED_BYTES_MIN: usize = 64 * 1_024;
