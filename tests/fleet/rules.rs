//! The rules of a plan.

use std::sync::Arc;

use tidegate::limit::share::RemoteCheckWait;
use tidegate::rules::Domain;

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
    let Plan { rate, period_s, burst, wait_ms, when_down, .. } = plan;
    let quota = match plan.kind {
        Kind::Bucket => format!("rate: {rate}/{period_s}s, burst: {burst}"),
        Kind::Fixed => format!("algorithm: fixed_window, rate: {burst}/{period_s}s"),
        Kind::Calendar => {
            format!("algorithm: fixed_window, rate: {burst}/{period_s}s, timezone: Europe/Berlin")
        }
        Kind::Sliding => format!("algorithm: sliding_window, rate: {burst}/{period_s}s, buckets: 10"),
        Kind::Permits => format!("max: {burst}, expires: 1h"),
        Kind::Reserve => return domains(RESERVE).remove(0),
    };
    let on_miss = match plan.asks {
        RemoteCheckWait::Always => "mode: exact",
        RemoteCheckWait::Never if plan.credit > 0 => "on_miss: admit",
        RemoteCheckWait::Never => "on_miss: refuse",
        RemoteCheckWait::OnMiss | RemoteCheckWait::BelowUnitCredit => "on_miss: ask",
    };
    let fleet = format!("scope: fleet, fleet: {{{on_miss}, wait: {wait_ms}ms, on_redis_down: {when_down}}}");
    let shared = format!("{{name: shared, key: [tenant], {quota}, {fleet}}}");
    // One an hour on each host: refuses nearly all matching requests, before or after a remote check.
    let own = if plan.held > 0 { "{name: own, key: [job], rate: 1/h}" } else { "" };
    let text = match plan.kind {
        Kind::Permits => format!("domain: api\nlimits: [{own}]\nconcurrency: [{shared}]\n"),
        _ => format!("domain: api\nlimits: [{shared}, {own}]\n"),
    };
    domains(&text).remove(0)
}
