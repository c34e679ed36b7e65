//! A share that is kept folded says and does what the share does, whatever both have been through.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate::clock::{Micros, Timestamp};
use tidegate::limit::share::{
    CompactShare, Fallback, FleetStatus, KeyCheckReply, RemoteCheckWait, ShareQuota, ShareReply, ShareState,
};
use tidegate::limit::{self, Outcome, QuotaLevel, fixed_window};

use super::SECOND;
use super::share::{MICRO, at, joined, settled};

fn shared(count: u32, burst: u32, credit: u16) -> (ShareQuota, Arc<FleetStatus>) {
    super::share::shared(count, burst, credit, 3, Fallback::Share)
}

/// So many in each second.
fn windowed(count: u32, credit: u16) -> (ShareQuota, Arc<FleetStatus>) {
    let window = fixed_window::FixedWindowQuota::new(
        count,
        fixed_window::WindowPeriod::Nanos(SECOND),
        fixed_window::WindowAlign::Epoch,
    );
    let quota = ShareQuota::for_window(limit::Quota::FixedWindow(window.unwrap()), credit, Fallback::Share);
    joined(quota.unwrap(), 3)
}

/// The same key, as it is and folded.
struct Both {
    share: ShareState,
    folded: CompactShare,
}

impl Both {
    fn fresh(quota: &ShareQuota, now: Timestamp) -> Both {
        Both { share: ShareState::fresh(quota, now), folded: CompactShare::fresh(quota, now) }
    }

    fn change<T: PartialEq + std::fmt::Debug>(
        &mut self,
        quota: &ShareQuota,
        now: Timestamp,
        change: impl Fn(&mut ShareState) -> T,
    ) -> T {
        let changed = change(&mut self.share);
        assert_eq!(self.folded.update(quota, now, change), changed);
        changed
    }

    /// As one decision does it, which then says where the key stands.
    fn admit(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32) -> (Outcome, Option<QuotaLevel>) {
        let outcome = self.share.admit(quota, now, cost);
        if !outcome.is_allowed() {
            self.share.record_refusal(quota, now, cost);
        }
        let at_once = self.folded.admit_fast(quota, now, cost);
        match at_once {
            Some(level) => {
                assert!(outcome.is_allowed());
                assert_eq!(level, self.share.level(quota, now));
                assert!(!self.share.take_sync_due(), "nobody is told of it");
            }
            None => {
                let same = self.folded.update(quota, now, |share| {
                    let outcome = share.admit(quota, now, cost);
                    if !outcome.is_allowed() {
                        share.record_refusal(quota, now, cost);
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
        assert_eq!(unfolded.peek_report(now), self.share.peek_report(now));
        let report = |mut share: ShareState| (share.take_sync_due(), share.report(quota, now, u32::MAX));
        assert_eq!(report(unfolded), report(self.share));
        assert_eq!(unfolded.last_level(), self.share.last_level());
        let level = self.share.level(quota, now);
        assert_eq!(unfolded.level(quota, now), level);
        if !quota.has_remote_checks() {
            assert_eq!(level.remaining > 0, self.share.judge(quota, now, 1).is_allowed());
        }
        assert_eq!(unfolded.is_tracked(), self.share.is_tracked());
        let scale = quota.bucket().scale();
        assert_eq!(self.folded.nanos_until_fresh(scale, now), self.share.nanos_until_fresh(scale, now));
        for cost in [0, 1, 2, 7, u32::MAX] {
            assert_eq!(unfolded.judge(quota, now, cost), self.share.judge(quota, now, cost), "{cost}");
            let missing = [&unfolded, &self.share].map(|share| share.missing_tokens(quota, now, cost));
            assert_eq!(missing[0], missing[1], "{cost}");
        }
    }
}

proptest! {
    #[test]
    fn compact_share_matches_full_share(
        count in 1u32..200, burst in 1u32..400, credit in prop::sample::select(vec![0u16, 7, 100, 333, 1_000]),
        asks in prop::sample::select(vec![RemoteCheckWait::Never, RemoteCheckWait::BelowUnitCredit, RemoteCheckWait::OnMiss]),
        is_window in any::<bool>(),
        fine in prop::sample::select(vec![0u64, 1, 512, 999_999]),
        steps in prop::collection::vec((0u8..18, 0u64..400, 0u32..6, 0u32..12, -50i64..400), 1..150),
    ) {
        let (quota, fleet_status) = if is_window { windowed(burst, credit) } else { shared(count, burst, credit) };
        let quota = quota.with_remote_checks(asks);
        let mut both = Both::fresh(&quota, at(0));
        let mut nanos = 0;
        for (what, gap, cost, number, level) in steps {
            nanos += gap * 1_000_000 + fine;
            let now = Timestamp::from_nanos(nanos);
            match what {
                0 | 1 => {
                    both.change(&quota, now, |share| {
                        let (reported, back) = share.report(&quota, now, number / 4);
                        let told = settled(number, reported.debt, level * MICRO, now);
                        let told = ShareReply { demand: 1_000 * u64::from(cost), low_mark: cost, ..told };
                        share.apply_reply(&quota, &told, now);
                        (reported, back)
                    });
                }
                2 => _ = both.change(&quota, now, |share| share.stop_tracking(now)),
                3 => fleet_status.set_hosts(number),
                4 => _ = fleet_status.set_redis_reachable(number > 2),
                5 => assert_eq!(both.folded.take_sync_due(), both.share.take_sync_due()),
                6 => both.change(&quota, now, |share| share.charge_debt(&quota, now, number, burst)),
                7 => both.change(&quota, now, |share| share.refund(&quota, now, number)),
                8 => _ = both.change(&quota, now, |share| share.apply_timeout(&quota, now, number)),
                11 => both.change(&quota, now, |share| share.release_reservation(number)),
                9 => both.change(&quota, now, |share| share.refund_unspent(now, number)),
                10 => {
                    let refused = (number == 0).then_some((cost, Some(Micros(50_000))));
                    let reply = KeyCheckReply { granted: number, level: level * MICRO, refused, sent_at: now, next_increase: None, paid_us: 0 };
                    both.change(&quota, now, |share| share.apply_remote_reply(&quota, now, &reply));
                }
                _ => _ = both.admit(&quota, now, cost),
            }
            both.assert_same(&quota, now);
        }
    }
}

#[test]
fn admits_borrowed_tokens_until_report_due_or_expiry() {
    let (quota, fleet_status) = shared(100, 100, 0);
    let mut both = Both::fresh(&quota, at(0));
    let settle = |both: &mut Both, now: Timestamp, low: u32| {
        both.change(&quota, now, |share| {
            share.report(&quota, now, 0);
            let reply = settled(10, 0, 40 * MICRO, now);
            share.apply_reply(&quota, &ShareReply { demand: 500, low_mark: low, ..reply }, now);
        });
    };
    settle(&mut both, at(0), 8);
    let admit = |both: &mut Both, millis: u64| both.admit(&quota, at(millis), 1).1.is_some();
    assert!(admit(&mut both, 1) && admit(&mut both, 1));
    assert!(!admit(&mut both, 1), "fewer than eight are left: somebody is told");
    assert!(both.share.take_sync_due() && both.folded.take_sync_due());
    assert!(!admit(&mut both, 2), "it is folded again");
    assert!((0..5).all(|_| admit(&mut both, 2)), "he was told");
    assert!(!admit(&mut both, 2), "the last");
    settle(&mut both, at(100), 0);
    assert!(admit(&mut both, 1_980));
    assert!(!admit(&mut both, 1_999), "they are about to lapse");
    assert!(!admit(&mut both, 2_000), "they have lapsed");
    settle(&mut both, at(3_000), 0);
    fleet_status.set_redis_reachable(false);
    assert!(!admit(&mut both, 3_000), "an outage");
    fleet_status.set_redis_reachable(true);
    both.assert_same(&quota, at(3_001));
}

#[test]
fn admits_on_credit_until_report_due() {
    // All of 120 over three hosts: 40 for each.
    let (quota, _) = shared(100, 120, 1_000);
    let mut both = Both::fresh(&quota, at(0));
    assert!((0..20).all(|_| both.admit(&quota, at(1), 1).1.is_some()));
    assert_eq!(both.folded.heap_bytes(), 0, "nobody has heard of it");
    assert!(both.admit(&quota, at(1), 1).1.is_none(), "more than half");
    assert!(both.share.take_sync_due() && both.folded.take_sync_due());
    assert!((0..18).all(|_| both.admit(&quota, at(1), 1).1.is_some()), "he was told");
    assert!(both.admit(&quota, at(1), 1).1.is_none(), "the last");
    assert!(!both.share.take_sync_due() && !both.folded.take_sync_due(), "the sync task knows of it");
    assert_eq!(both.folded.heap_bytes(), 0);
    both.assert_same(&quota, at(1));
}

#[test]
fn heap_bytes_match_stated_maximum() {
    let (quota, _) = shared(100, 100, 0);
    let mut both = Both::fresh(&quota, at(0));
    assert_eq!(both.folded.heap_bytes(), 0);
    let _ = both.admit(&quota, at(0), 1);
    assert_eq!(both.folded.heap_bytes(), CompactShare::heap_bytes_max(), "what was refused is to be told");
}
