//! A share that is kept folded says and does what the share does, whatever both have been through.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::share::{
    FleetStatus, Folded, KeyCheckReply, RemoteCheckWait, Share, ShareQuota, ShareReply, WhenDown,
};
use tidegate::limit::{self, Outcome, QuotaLevel, Rate, fixed_window, token_bucket};

const SECOND: u64 = 1_000_000_000;

const MICRO: i64 = 1_000_000;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis * 1_000_000)
}

fn shared(count: u32, burst: u32, credit: u16) -> (ShareQuota, Arc<FleetStatus>) {
    let bucket = token_bucket::TokenBucketQuota::new(Rate::new(count, SECOND).unwrap(), burst).unwrap();
    joined(ShareQuota::new(bucket, credit, WhenDown::Share))
}

/// So many in each second.
fn windowed(count: u32, credit: u16) -> (ShareQuota, Arc<FleetStatus>) {
    let window = fixed_window::FixedWindowQuota::new(
        count,
        fixed_window::WindowPeriod::Nanos(SECOND),
        fixed_window::WindowAlign::Epoch,
    );
    joined(
        ShareQuota::of_window(limit::Quota::FixedWindow(window.unwrap()), credit, WhenDown::Share).unwrap(),
    )
}

fn joined(quota: ShareQuota) -> (ShareQuota, Arc<FleetStatus>) {
    let standing = Arc::new(FleetStatus::default());
    standing.set_linked(true);
    standing.set_hosts(3);
    quota.join(&standing, 7);
    (quota, standing)
}

/// The same key, as it is and folded.
struct Both {
    share: Share,
    folded: Folded,
}

impl Both {
    fn fresh(quota: &ShareQuota, now: Timestamp) -> Both {
        Both { share: Share::fresh(quota, now), folded: Folded::fresh(quota, now) }
    }

    fn change<T: PartialEq + std::fmt::Debug>(
        &mut self,
        quota: &ShareQuota,
        now: Timestamp,
        change: impl Fn(&mut Share) -> T,
    ) -> T {
        let changed = change(&mut self.share);
        assert_eq!(self.folded.change(quota, now, change), changed);
        changed
    }

    /// As one decision does it, which then says where the key stands.
    fn admit(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32) -> (Outcome, Option<QuotaLevel>) {
        let outcome = self.share.admit(quota, now, cost);
        if !outcome.passes() {
            self.share.refuse(quota, now, cost);
        }
        let at_once = self.folded.admit_at_once(quota, now, cost);
        match at_once {
            Some(level) => {
                assert!(outcome.passes());
                assert_eq!(level, self.share.level(quota, now));
                assert!(!self.share.calls(), "nobody is told of it");
            }
            None => {
                let same = self.folded.change(quota, now, |share| {
                    let outcome = share.admit(quota, now, cost);
                    if !outcome.passes() {
                        share.refuse(quota, now, cost);
                    }
                    outcome
                });
                assert_eq!(same, outcome);
            }
        }
        (outcome, at_once)
    }

    /// Nothing that can be asked of the two tells them apart: a full bucket is one, whenever it filled.
    fn assert_same(&self, quota: &ShareQuota, now: Timestamp) {
        let unfolded = self.folded.unfold(quota, now);
        assert_eq!(unfolded.look(now), self.share.look(now));
        let report = |mut share: Share| (share.calls(), share.report(quota, now, u32::MAX));
        assert_eq!(report(unfolded), report(self.share));
        assert_eq!(unfolded.seen(), self.share.seen());
        assert_eq!(unfolded.level(quota, now), self.share.level(quota, now));
        assert_eq!(unfolded.is_in_touch(), self.share.is_in_touch());
        let scale = quota.bucket().scale();
        assert_eq!(self.folded.nanos_until_fresh(scale, now), self.share.nanos_until_fresh(scale, now));
        for cost in [0, 1, 2, 7, u32::MAX] {
            assert_eq!(unfolded.judge(quota, now, cost), self.share.judge(quota, now, cost), "{cost}");
            assert_eq!(unfolded.lacks(quota, now, cost), self.share.lacks(quota, now, cost), "{cost}");
        }
    }
}

proptest! {
    #[test]
    fn folded_it_is_the_same_share(
        count in 1u32..200, burst in 1u32..400, credit in prop::sample::select(vec![0u16, 7, 100, 333, 1_000]),
        asks in prop::sample::select(vec![RemoteCheckWait::Never, RemoteCheckWait::WhereCreditIsLess, RemoteCheckWait::OnMiss]),
        is_window in any::<bool>(),
        steps in prop::collection::vec((0u8..18, 0u64..400, 0u32..6, 0u32..12, -50i64..400), 1..150),
    ) {
        let (quota, standing) = if is_window { windowed(burst, credit) } else { shared(count, burst, credit) };
        let quota = quota.asking(asks);
        let mut both = Both::fresh(&quota, at(0));
        let mut now = 0;
        for (what, gap, cost, number, level) in steps {
            now += gap;
            let now = at(now);
            match what {
                0 | 1 => {
                    both.change(&quota, now, |share| {
                        let (reported, back) = share.report(&quota, now, number / 4);
                        let (granted, paid) = (number, reported.owed);
                        let told = ShareReply { granted, paid, level: level * MICRO, demand: 1_000 * u64::from(cost), sent: now, low: cost, more: None };
                        share.settle(&quota, &told, now);
                        (reported, back)
                    });
                }
                2 => _ = both.change(&quota, now, |share| share.let_go(now)),
                3 => standing.set_hosts(number),
                4 => _ = standing.set_linked(number > 2),
                5 => assert_eq!(both.folded.calls(), both.share.calls()),
                6 => both.change(&quota, now, |share| share.owe(&quota, now, number, burst)),
                7 => both.change(&quota, now, |share| share.give_back(&quota, now, number)),
                8 => _ = both.change(&quota, now, |share| share.miss(&quota, now, number)),
                11 => both.change(&quota, now, |share| share.judged(number)),
                9 => both.change(&quota, now, |share| share.hand_back(now, number)),
                10 => {
                    let refused = (number == 0).then_some((cost, Some(Micros(50_000))));
                    let brought = KeyCheckReply { granted: number, level: level * MICRO, refused, sent: now, more: None, paid_us: 0 };
                    both.change(&quota, now, |share| share.bring(&quota, now, &brought));
                }
                _ => _ = both.admit(&quota, now, cost),
            }
            both.assert_same(&quota, now);
        }
    }
}

#[test]
fn tokens_in_hand_are_taken_at_once_until_somebody_is_to_be_told_or_they_lapse() {
    let (quota, standing) = shared(100, 100, 0);
    let mut both = Both::fresh(&quota, at(0));
    let settle = |both: &mut Both, now: Timestamp, low: u32| {
        both.change(&quota, now, |share| {
            share.report(&quota, now, 0);
            share.settle(
                &quota,
                &ShareReply {
                    granted: 10,
                    paid: 0,
                    level: 40 * MICRO,
                    demand: 500,
                    sent: now,
                    low,
                    more: None,
                },
                now,
            );
        });
    };
    settle(&mut both, at(0), 8);
    let admit = |both: &mut Both, millis: u64| both.admit(&quota, at(millis), 1).1.is_some();
    assert!(admit(&mut both, 1) && admit(&mut both, 1));
    assert!(!admit(&mut both, 1), "fewer than eight are left: somebody is told");
    assert!(both.share.calls() && both.folded.calls());
    assert!(!admit(&mut both, 2), "it is folded again");
    assert!((0..5).all(|_| admit(&mut both, 2)), "he was told");
    assert!(!admit(&mut both, 2), "the last");
    settle(&mut both, at(100), 0);
    assert!(admit(&mut both, 1_980));
    assert!(!admit(&mut both, 1_999), "they are about to lapse");
    assert!(!admit(&mut both, 2_000), "they have lapsed");
    settle(&mut both, at(3_000), 0);
    standing.set_linked(false);
    assert!(!admit(&mut both, 3_000), "an outage");
    standing.set_linked(true);
    both.assert_same(&quota, at(3_001));
}

#[test]
fn credit_is_used_at_once_until_somebody_is_to_be_told() {
    // All of 120 over three hosts: 40 for each.
    let (quota, _) = shared(100, 120, 1_000);
    let mut both = Both::fresh(&quota, at(0));
    assert!((0..20).all(|_| both.admit(&quota, at(1), 1).1.is_some()));
    assert_eq!(both.folded.heap_bytes(), 0, "nobody has heard of it");
    assert!(both.admit(&quota, at(1), 1).1.is_none(), "more than half");
    assert!(both.share.calls() && both.folded.calls());
    assert!((0..18).all(|_| both.admit(&quota, at(1), 1).1.is_some()), "he was told");
    assert!(both.admit(&quota, at(1), 1).1.is_none(), "the last");
    assert!(!both.share.calls() && !both.folded.calls(), "the sync task knows of it");
    assert_eq!(both.folded.heap_bytes(), 0);
    both.assert_same(&quota, at(1));
}

#[test]
fn keeps_debt_of_an_outage() {
    let (quota, standing) = shared(100, 120, 1_000);
    let mut both = Both::fresh(&quota, at(0));
    standing.set_linked(false);
    for _ in 0..5 {
        assert!(both.admit(&quota, at(1), 1).0.passes());
    }
    assert_eq!(both.folded.heap_bytes(), 0, "the compact form suffices");
    standing.set_linked(true);
    both.assert_same(&quota, at(1));
    assert_eq!(both.change(&quota, at(1), |share| share.report(&quota, at(1), 0)).0.owed, 5);
}

#[test]
fn levels_are_equal_at_every_nanosecond() {
    // A unit is earned in a millisecond, and the time of a reply is rounded to 1 024 ns.
    let (quota, _) = shared(1_000, 100, 0);
    for nanos in [0, 1, 512, 1_023] {
        let now = Timestamp::from_nanos((1 << 30) + nanos);
        let mut both = Both::fresh(&quota, now);
        both.change(&quota, now, |share| {
            share.report(&quota, now, 0);
            let (level, more) = (40 * MICRO, None);
            share.settle(
                &quota,
                &ShareReply { granted: 10, paid: 0, level, demand: 0, sent: now, low: 0, more },
                now,
            );
        });
        for age in [999_000, 999_999, 1_000_000, 1_001_024] {
            let now = Timestamp::from_nanos(now.as_nanos() + age);
            assert!(both.admit(&quota, now, 1).1.is_some(), "decided in the compact form");
        }
    }
}

#[test]
fn what_was_admitted_before_it_was_shared_is_not_taken_for_credit() {
    let bucket = token_bucket::TokenBucketQuota::new(Rate::new(100, SECOND).unwrap(), 120).unwrap();
    let quota = ShareQuota::new(bucket, 1_000, WhenDown::Share);
    let mut both = Both::fresh(&quota, at(0));
    assert!((0..30).all(|_| both.admit(&quota, at(1), 1).0.passes()));
    let standing = Arc::new(FleetStatus::default());
    standing.set_linked(true);
    standing.set_hosts(3);
    quota.join(&standing, 7);
    // It hears of that, and nothing else is changed by it.
    let _ = both.admit(&quota, at(1), 0);
    both.assert_same(&quota, at(1));
    for number in 0..20 {
        assert!(both.admit(&quota, at(1), 1).0.passes(), "all of the credit is there: {number}");
        both.assert_same(&quota, at(1));
    }
}

#[test]
fn what_it_takes_is_what_is_said() {
    let (quota, _) = shared(100, 100, 0);
    let mut both = Both::fresh(&quota, at(0));
    assert_eq!(both.folded.heap_bytes(), 0);
    let _ = both.admit(&quota, at(0), 1);
    assert_eq!(both.folded.heap_bytes(), Folded::heap_bytes_max(), "what was refused is to be told");
}
