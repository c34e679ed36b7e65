//! The mean over the last seconds, against the exact one.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::shed::UtilizationWindow;

use super::at_millis;

const SPAN: Duration = Duration::from_secs(8);

/// Sums that grow while slots are busy.
#[derive(Default)]
struct Sums {
    window: UtilizationWindow,
    millis: u64,
    busy: u128,
    slots: u128,
}

impl Sums {
    /// Advances by some milliseconds, and reads.
    fn pass(&mut self, millis: u64, busy: u32, slots: u32) {
        self.millis += millis;
        self.busy += u128::from(busy) * u128::from(millis) * 1_000_000;
        self.slots += u128::from(slots) * u128::from(millis) * 1_000_000;
        self.window.push(at_millis(self.millis), self.busy, self.slots);
    }

    fn over(&self) -> Option<f64> {
        self.window.mean_over(SPAN)
    }
}

fn near(is: Option<f64>, expected: f64, by: f64) {
    let is = is.unwrap();
    assert!((is - expected).abs() <= by, "{is}, expected {expected}");
}

#[test]
fn no_mean_without_slot_time() {
    let mut sums = Sums::default();
    assert_eq!(sums.over(), None);
    for _ in 0..100 {
        sums.pass(250, 0, 0);
        assert_eq!(sums.over(), None);
    }
    // Then it is a mean over the time with slots.
    sums.pass(250, 4, 4);
    near(sums.over(), 1.0, 1e-12);
    sums.pass(250, 0, 4);
    near(sums.over(), 0.5, 1e-12);
    let mut sums = Sums::default();
    sums.pass(250, 1, 4);
    assert_eq!(sums.over(), None, "one reading is no time");
    sums.pass(250, 1, 4);
    near(sums.over(), 0.25, 1e-12);
}

#[test]
fn close_samples_lose_no_time() {
    let mut sums = Sums::default();
    for _ in 0..1_200 {
        sums.pass(10, 0, 1);
    }
    for _ in 0..800 {
        sums.pass(10, 1, 1);
    }
    near(sums.over(), 1.0, 0.2 / 8.0);
    for _ in 0..400 {
        sums.pass(10, 0, 1);
    }
    near(sums.over(), 0.5, 0.2 / 8.0);
}

#[test]
fn ignores_reordered_samples_and_falling_sums() {
    let mut sums = Sums::default();
    for _ in 0..40 {
        sums.pass(250, 1, 2);
    }
    sums.window.push(at_millis(5), 0, 0);
    sums.window.push(at_millis(sums.millis), u128::MAX, u128::MAX);
    near(sums.over(), 0.5, 1e-12);
    sums.window.push(at_millis(sums.millis + 250), 0, 0);
    near(sums.over(), 0.5, 1e-12);
    sums.window.push(at_millis(sums.millis + 500), u128::MAX, u128::MAX);
    near(sums.over(), 1.0, 1e-3);
}

#[test]
fn stays_small() {
    assert!(size_of::<UtilizationWindow>() <= 2_304, "{}", size_of::<UtilizationWindow>());
}

proptest! {
    #![proptest_config(crate::rng::cases(80))]

    #[test]
    fn is_exact_mean_for_any_sample_times(
        stretches in proptest::collection::vec((prop_oneof![9 => 200_u64..3_000, 1 => 3_000..9_000_000_u64], 0_u32..40, 0_u32..40), 2..120),
    ) {
        let mut sums = Sums::default();
        let mut passed: Vec<(u64, u32, u32)> = Vec::new();
        sums.pass(1, 0, 0);
        for (millis, busy, slots) in stretches {
            sums.pass(millis, busy, slots);
            passed.push((millis, busy, slots));
            // The exact mean, summed backwards.
            let (mut left, mut busy_time, mut slot_time) = (8_000, 0, 0);
            for (millis, busy, slots) in passed.iter().rev() {
                let counts = left.min(*millis);
                left -= counts;
                busy_time += u64::from(*busy) * counts;
                slot_time += u64::from(*slots) * counts;
            }
            let exact = (slot_time > 0)
                .then(|| f64::from(u32::try_from(busy_time).unwrap()) / f64::from(u32::try_from(slot_time).unwrap()));
            match (sums.over(), exact) {
                (Some(is), Some(exact)) => prop_assert!((is - exact).abs() < 1e-9 * exact.max(1.0), "{is}, {exact}"),
                (is, exact) => prop_assert_eq!(is, exact),
            }
        }
    }
}
