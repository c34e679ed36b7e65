//! Leases in progress on one host.

use std::num::NonZeroU32;

use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::concurrency::{ConcurrencyQuota, LeaseCount};
use tidegate::limit::{Outcome, QuotaLevel};

fn quota(max: u32) -> ConcurrencyQuota {
    ConcurrencyQuota::new(NonZeroU32::new(max).unwrap())
}

fn judge(quota: &ConcurrencyQuota, leases: LeaseCount) -> Outcome {
    quota.judge(None, leases.count(), Timestamp::ORIGIN)
}

#[test]
fn refuses_lease_beyond_max_until_one_ends() {
    let quota = quota(3);
    let mut leases = LeaseCount::default();
    for begun in 0..3 {
        assert_eq!((leases.count(), judge(&quota, leases)), (begun, Outcome::Pass));
        leases.add_lease();
    }
    assert_eq!(judge(&quota, leases), Outcome::Later(Micros::ZERO));
    assert_eq!((leases.remove_lease(), judge(&quota, leases)), (2, Outcome::Pass));
}

#[test]
fn lowered_max_refuses_until_fewer_leases_are_in_progress() {
    let quota = quota(2);
    let mut leases = LeaseCount::default();
    (0..4).for_each(|_| leases.add_lease());
    for (left, remaining) in [(3, 0), (2, 0), (1, 1), (0, 2)] {
        assert_eq!(leases.remove_lease(), left);
        assert_eq!(judge(&quota, leases).is_allowed(), remaining > 0, "{left} in progress");
        let level = QuotaLevel { limit: 2, window: Micros::ZERO, remaining, reset: Micros::ZERO };
        assert_eq!(quota.level(None, leases.count(), Timestamp::ORIGIN), level, "{left} in progress");
    }
}
