//! The sliding window: the memory of a key.

use tidegate::clock::{Now, Timestamp};
use tidegate::limit::sliding_window::{SlidingWindowQuota, SlidingWindowState};

use super::{MILLI, SECOND};

fn quota(count: u32, window_nanos: u64, buckets: u8) -> SlidingWindowQuota {
    SlidingWindowQuota::new(count, window_nanos, buckets).unwrap()
}

fn at_ms(millis: u64) -> Now {
    Now::at_nanos(millis * MILLI)
}

#[test]
fn rejects_counts_of_no_window() {
    for len in [0, 1, 62] {
        assert!(SlidingWindowState::from_counts(Timestamp::ORIGIN, &vec![1; len]).is_none(), "{len} counts");
    }
}

#[test]
fn bytes_per_key_within_stated_bounds() {
    // A slot of the table: digest, state, a control byte, at a fill of 7/8.
    let slot = (16 + size_of::<SlidingWindowState>() + 1) * 8 / 7;
    for (buckets, bytes_max) in [(1, 48), (2, 80), (6, 96), (60, 320)] {
        let quota = quota(u32::MAX, 60 * SECOND, buckets);
        let mut window = SlidingWindowState::default();
        assert_eq!(window.heap_bytes(), 0);
        for second in 0..500 {
            window.charge(&quota, at_ms(second * 1_000), 1_000);
            let bytes = slot + window.heap_bytes();
            assert!(bytes <= bytes_max, "{bytes} bytes with {buckets} buckets");
            assert_eq!(window.heap_bytes(), quota.heap_bytes());
        }
    }
}
