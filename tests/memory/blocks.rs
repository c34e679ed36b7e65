//! Blocks of malloc are as large as the memory budget counts them.
#![cfg(target_env = "gnu")]

use tidegate::limit::{MAPPED_BYTES_MIN, malloc_block_bytes};
use tidegate::sys::return_freed_memory;

#[test]
fn malloc_block_size_matches_computed_size() {
    return_freed_memory(MAPPED_BYTES_MIN);
    for payload in [1, 24, 25, 100, 40_000, 65_512, 65_513, 65_520, 65_528, 65_536, 100_000, 131_072, 200_000]
    {
        // The first ones fill the room left in the heap, where a larger block would not be mapped.
        let blocks: Vec<Vec<u8>> = (0..64).map(|_| vec![7; payload]).collect();
        let last = blocks.last().unwrap();
        // SAFETY: the allocator of this program passes calls on to malloc; the block lives until the end of
        // the loop.
        let usable = unsafe { libc::malloc_usable_size(last.as_ptr().cast_mut().cast()) };
        let counted = malloc_block_bytes(payload);
        // The header of a mapped block has 16 bytes.
        let header = if counted >= MAPPED_BYTES_MIN { 16 } else { 8 };
        assert_eq!(usable + header, counted, "{payload}");
    }
}
