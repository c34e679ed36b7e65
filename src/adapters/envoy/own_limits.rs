//! The limits that descriptors have of their own: fixed windows, as of the nodes of a tree, for each list of entries and unit.

use tonic::Status;

use super::messages::{RateLimitDescriptor, RateLimitOverride};
use super::statuses::UNITS;
use crate::adapters::decision::HttpDecision;
use crate::adapters::digest_table::DigestTable;
use crate::clock::{Now, Timestamp};
use crate::limit::Outcome;
use crate::limit::fixed_window::{FixedWindowQuota, FixedWindowState, WindowAlign, WindowPeriod};
use crate::protocol::{DecisionReply, LimitEntry, Mode, Verdict};

/// The windows: the start of the count, the units counted, and the length in nanoseconds.
pub(in crate::adapters) type OwnLimitTable = DigestTable<3>;

/// Makes the quota of a limit, if its unit is one.
pub(super) fn read_quota(limit: &RateLimitOverride) -> Result<FixedWindowQuota, Status> {
    let seconds = UNITS.iter().find(|(unit, _)| *unit == limit.unit).map_or(0, |(_, seconds)| *seconds);
    let period = WindowPeriod::Nanos(seconds * NANOS_PER_SECOND);
    let quota = FixedWindowQuota::new(limit.requests_per_unit, period, WindowAlign::Epoch);
    quota.map_err(|_| {
        Status::invalid_argument("the `limit` of a descriptor needs a unit: SECOND to YEAR, or WEEK")
    })
}

/// Judges a descriptor by its quota and charges the cost, also if that refuses. A cost of 0 asks whether one more would pass.
pub(super) fn judge(
    table: &mut OwnLimitTable,
    domain: &str,
    descriptor: &RateLimitDescriptor,
    quota: &FixedWindowQuota,
    cost: u64,
    mode: Mode,
    now: Now,
) -> HttpDecision {
    let cost = u32::try_from(cost).unwrap_or(u32::MAX);
    let nanos = quota.window_nanos_max();
    let until_fresh =
        |[began, count, nanos]: &[u64; 3]| window(*began, *count).nanos_until_fresh(*nanos, now);
    let key = (domain, nanos, &descriptor.entries);
    let (outcome, level) = table.update(&key, until_fresh, |known| {
        let mut window =
            known.map_or_else(FixedWindowState::default, |[began, count, _]| window(began, count));
        let outcome = window.judge(quota, now, cost.max(1));
        window.charge(quota, now, cost);
        let (began, count) = window.to_parts();
        ((cost > 0).then(|| [began.as_nanos(), count.into(), nanos]), (outcome, window.level(quota, now)))
    });
    let refuses = mode == Mode::Enforce && !outcome.is_allowed();
    let entry = LimitEntry {
        rule: NAME,
        limit: level.limit,
        window_us: level.window.0,
        remaining: level.remaining,
        reset_us: level.reset.0,
        refuses,
        descriptors: 1,
    };
    HttpDecision::from_reply(&DecisionReply {
        rule: Some(NAME),
        limit: Some(level.limit),
        window_us: Some(level.window.0),
        remaining: Some(level.remaining),
        reset_us: Some(level.reset.0),
        retry_us: match outcome {
            Outcome::Later(wait) if refuses => Some(wait.0),
            Outcome::Never if refuses => None,
            _ => Some(0),
        },
        all: Some(&[entry]),
        ..DecisionReply::new(0, if refuses { Verdict::Limit } else { Verdict::Allow })
    })
}

fn window(began: u64, count: u64) -> FixedWindowState {
    FixedWindowState::from_parts(Timestamp::from_nanos(began), u32::try_from(count).unwrap_or(u32::MAX))
}

/// The name of each of these limits, in the place of a rule.
const NAME: &str = "envoy";

const NANOS_PER_SECOND: u64 = 1_000_000_000;
