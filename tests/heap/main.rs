//! What asks the heap for nothing, whoever sends what: an allocator that counts stands before the system's.
#![allow(unsafe_code, reason = "counting what the allocator is asked for needs an allocator")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod blocks;
mod descriptors;
#[path = "../support/golden.rs"]
mod golden;
mod protocol;
mod stack;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ASKED_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is handed on to the system's allocator unchanged; the count lives in a thread-local that needs
// neither the heap nor a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED_BYTES.set(ASKED_BYTES.get().saturating_add(layout.size()));
        // SAFETY: as the caller promised us.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised us.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that this thread asks the heap for while it works.
fn asked_bytes(work: impl FnOnce()) -> usize {
    let before = ASKED_BYTES.get();
    work();
    ASKED_BYTES.get() - before
}

#[test]
fn the_counter_counts() {
    assert!(asked_bytes(|| drop(vec![0u8; 100])) >= 100);
}
