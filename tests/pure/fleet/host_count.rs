//! The host count for shares as hosts come and go.

use tidegate::clock::Timestamp;
use tidegate::fleet::host_count::HostCount;

fn second(second: u64) -> Timestamp {
    Timestamp::from_nanos(second * 1_000_000_000)
}

#[test]
fn more_count_at_once_and_fewer_after_half_a_minute() {
    let mut count = HostCount::default();
    let at = |count: &mut HostCount, from: u64, alive: u32| {
        (0..4).map(|more| count.update(alive, second(from + more))).last()
    };
    assert_eq!(at(&mut count, 0, 3), Some(3));
    assert_eq!(at(&mut count, 4, 10), Some(10), "the last time at second 7");
    for from in (8..36).step_by(4) {
        let alive = if from == 20 { 8 } else { 4 };
        assert_eq!(at(&mut count, from, alive), Some(10), "at second {from}");
    }
    assert_eq!(at(&mut count, 36, 4), Some(8), "the most since");
    for from in (40..64).step_by(4) {
        assert_eq!(at(&mut count, from, 4), Some(8), "at second {from}");
    }
    assert_eq!(at(&mut count, 64, 4), Some(4));
    assert_eq!(at(&mut count, 68, 0), Some(4), "this one is always there");
}

#[test]
fn keeps_hosts_that_return_after_an_outage() {
    let mut count = HostCount::default();
    assert_eq!(count.update(100, second(0)), 100);
    assert_eq!(count.update(1, second(60)), 100);
    assert_eq!(count.update(40, second(61)), 100);
}
