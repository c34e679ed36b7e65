//! The size of a heap block, for the memory budget. Allocates nothing.

/// Bytes that malloc (glibc, 64 bits) allocates for a block of `payload` bytes: 8 bytes of header, rounded up to 16, at
/// least 32, whole pages once the block is mapped on its own. Zero for zero.
#[must_use]
pub const fn malloc_block_bytes(payload: usize) -> usize {
    if payload == 0 {
        return 0;
    }
    if payload >= MAPPED_BYTES_MIN {
        return payload.saturating_add(16).next_multiple_of(4_096);
    }
    let chunk = (payload + 8).next_multiple_of(16);
    if chunk < 32 { 32 } else { chunk }
}

/// glibc's M_MMAP_THRESHOLD. It may rise while the process runs; the result is then at most a page too large.
const MAPPED_BYTES_MIN: usize = 128 * 1_024;
