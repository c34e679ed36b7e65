//! The rules of a plan.

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use tidegate::limit::concurrency::ConcurrencyQuota;
use tidegate::limit::fixed_window::{FixedWindowQuota, WindowAlign, WindowPeriod};
use tidegate::limit::share::{FleetTerms, REMOTE_CHECK_WAIT_DEFAULT, RemoteCheckWait, ShareQuota};
use tidegate::limit::sliding_window::SlidingWindowQuota;
use tidegate::limit::token_bucket::TokenBucketQuota;
use tidegate::limit::{Quota, Rate};
use tidegate::rules::source::Span;
use tidegate::rules::{Domain, KeyPart, Limit, Position, Rule};

use crate::engines::domains;
use crate::plan::Plan;

/// What the hosts share, as large as the burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Bucket,
    Fixed,
    /// In a time zone: hosts send its edges to Redis.
    Calendar,
    Sliding,
    Permits,
    /// The reserve of a pool.
    Reserve,
}

impl Kind {
    pub(crate) fn is_window(self) -> bool {
        matches!(self, Kind::Fixed | Kind::Calendar | Kind::Sliding)
    }
}

/// The shared rule of each plan with keys.
pub(crate) const RULE: &str = "api/shared";

const RESERVE: &str = "
domain: api
priorities: [critical, other]
shed:
  - pool: web
    fleet: {reserve: 20%, for: critical}
";

/// Makes the rules of one host, which join its fleet.
pub(crate) fn domain(plan: &Plan) -> Arc<Domain> {
    if plan.kind == Kind::Reserve {
        return domains(RESERVE).remove(0);
    }
    let rule = |name, key, quota| Rule {
        key: vec![KeyPart::plain(key)],
        ..Rule::new(name, Position { file: "simulation".into(), span: Span::START }, Limit::new(quota))
    };
    let expires = (plan.kind == Kind::Permits).then(|| Duration::from_secs(3_600));
    let mut rules = vec![Rule { expires, ..rule("shared", "tenant", shared(plan)) }];
    if plan.held > 0 {
        // One an hour on each host: refuses nearly all matching requests, before or after a remote check.
        let own = TokenBucketQuota::new(Rate::new(1, 3_600_000_000_000).unwrap(), 1).unwrap();
        rules.push(rule("own", "job", Quota::TokenBucket(own)));
    }
    Arc::new(Domain::new("api", rules))
}

fn shared(plan: &Plan) -> Quota {
    let nanos = plan.period_s * 1_000_000_000;
    let fixed = |align| {
        Quota::FixedWindow(FixedWindowQuota::new(plan.burst, WindowPeriod::Nanos(nanos), align).unwrap())
    };
    let window = match plan.kind {
        Kind::Fixed => Some(fixed(WindowAlign::Epoch)),
        Kind::Calendar => Some(fixed(WindowAlign::Zone(TimeZone::get("Europe/Berlin").unwrap()))),
        Kind::Sliding => Some(Quota::SlidingWindow(SlidingWindowQuota::new(plan.burst, nanos, 10).unwrap())),
        Kind::Permits => {
            let asks = if plan.asks() { RemoteCheckWait::OnMiss } else { RemoteCheckWait::Never };
            let terms = FleetTerms::new(plan.when_down, asks, REMOTE_CHECK_WAIT_DEFAULT);
            return Quota::Concurrency(ConcurrencyQuota::new(plan.burst.try_into().unwrap()).shared(terms));
        }
        Kind::Bucket | Kind::Reserve => None,
    };
    let share = match window {
        Some(window) => ShareQuota::for_window(window, plan.credit, plan.when_down).unwrap(),
        None => {
            let bucket = TokenBucketQuota::new(Rate::new(plan.rate, nanos).unwrap(), plan.burst).unwrap();
            ShareQuota::new(bucket, plan.credit, plan.when_down)
        }
    };
    let wait = Duration::from_millis(plan.wait_ms);
    Quota::FleetBudget(Box::new(share.with_remote_checks(plan.asks).with_wait_max(wait)))
}
