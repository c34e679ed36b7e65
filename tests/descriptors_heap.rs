//! Finding the nodes that a request hits costs no memory, however many there are and however long its texts.
#![allow(unsafe_code, reason = "counting what the allocator is asked for needs an allocator")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tidegate::rules::{NodeHits, read_text};

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

#[test]
fn finding_nodes_asks_the_heap_for_nothing() {
    let node = |value: &str| {
        let limit = "rate_limit: {unit: hour, requests_per_unit: 1, name: a, replaces: [{name: b}]}";
        format!("- {{key: k, value: '{value}', {limit}}}\n")
    };
    let nodes: String =
        (0..1_000).map(|number| node(&number.to_string()) + &node(&format!("/{number}*"))).collect();
    let shared = "- {key: '*y*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}\n";
    let loaded = read_text("tree.yaml", &format!("domain: api\ndescriptors:\n{nodes}{shared}"));
    let tree = loaded.domains.first().unwrap().tree();
    // The longest that the socket carries.
    let (key, value) = ("y".repeat(64), "z".repeat(1_024));
    let descriptors = [
        &[("k", "7")][..],
        &[("k", "/999/x")],
        &[("k", &value)],
        &[(&key, &value)],
        &[(&key, "other")],
        &[("k", "7"), ("k", "8")],
        &[],
    ];
    let mut hits = NodeHits::new();
    let before = ASKED_BYTES.get();
    tree.select_hits(descriptors.into_iter(), &mut hits);
    let mut bytes = 0;
    for hit in &hits {
        let descriptor = descriptors.get(usize::from(hit.descriptor)).unwrap();
        bytes += tree.key_values(hit.hit, descriptor).map(str::len).sum::<usize>();
    }
    assert_eq!(ASKED_BYTES.get() - before, 0);
    assert_eq!(hits.len(), 3, "{hits:?}");
    assert!(bytes > 64, "what it counts by was read: {bytes}");
    assert!(before > 100_000, "the counter counts");
}
