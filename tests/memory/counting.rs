//! An allocator that counts the bytes that each thread requests and holds, in the block sizes of malloc, which are as
//! large as the memory budget counts them.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

/// Bytes of a block with its malloc header.
fn size(pointer: *mut u8) -> i64 {
    // SAFETY: malloc has just returned the pointer, or is about to free it.
    let usable = unsafe { libc::malloc_usable_size(pointer.cast()) };
    i64::try_from(usable).unwrap_or(i64::MAX) + 8
}

// SAFETY: every call is passed to the system's allocator unchanged; the counts live in thread-locals that
// need neither the heap nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + layout.size());
        // SAFETY: the caller guarantees it.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            HELD.set(HELD.get() + size(pointer));
            MOST.set(MOST.get().max(HELD.get()));
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - size(pointer));
        // SAFETY: the caller guarantees it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that this thread holds.
pub(crate) fn held() -> i64 {
    HELD.get()
}

/// The most bytes held since the last call.
pub(crate) fn most() -> i64 {
    MOST.replace(HELD.get())
}

/// Bytes that this thread requests from the heap during `work`.
pub(crate) fn asked_bytes(work: impl FnOnce()) -> usize {
    let before = ASKED.get();
    work();
    ASKED.get() - before
}

#[test]
fn counts_allocated_bytes() {
    assert!(asked_bytes(|| drop(vec![0u8; 100])) >= 100);
}

#[test]
#[cfg(target_env = "gnu")]
fn malloc_block_size_matches_computed_size() {
    use tidegate::limit::{MAPPED_BYTES_MIN, malloc_block_bytes};

    tidegate::sys::return_freed_memory(MAPPED_BYTES_MIN);
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
