//! What a block of heap memory costs, for the budget. It never asks the heap for anything.

/// Bytes that malloc (glibc's, 64 bits) hands out for a block of so many: 8 ahead of it, rounded up to 16, at least
/// 32, and whole pages once it is mapped on its own. Nothing for nothing.
#[must_use]
pub const fn block_bytes(payload: usize) -> usize {
    if payload == 0 {
        return 0;
    }
    if payload >= MAPPED_BYTES_MIN {
        return payload.saturating_add(16).next_multiple_of(4_096);
    }
    let chunk = (payload + 8).next_multiple_of(16);
    if chunk < 32 { 32 } else { chunk }
}

/// glibc's M_MMAP_THRESHOLD. It may rise while the process runs; then this is at most a page too much.
const MAPPED_BYTES_MIN: usize = 128 * 1_024;
