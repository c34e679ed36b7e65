//! The response to a request: its code, the status of each descriptor, and the headers of the caller.

use super::judge::DecidedGroup;
use super::messages::{
    CurrentLimit, DescriptorStatus, HeaderValue, OK, OVER_LIMIT, RateLimitResponse, WholeSeconds,
};
use crate::adapters::STATUS_HEADER;
use crate::adapters::decision::{HttpDecision, LimitLevel};

/// Combines the decisions: a request passes if all groups pass.
pub(super) fn combine(groups: &[DecidedGroup], descriptors: usize) -> RateLimitResponse {
    let mut statuses = vec![DescriptorStatus::default(); descriptors];
    for group in groups {
        for (place, index) in group.descriptors.iter().enumerate() {
            if let Some(status) = statuses.get_mut(*index) {
                *status = status_of(&group.decision, place);
            }
        }
    }
    let decisions = groups.iter().map(|group| &group.decision);
    let refusing = decisions.clone().filter(|decision| !decision.allowed).max_by_key(|decision| {
        // Never is the longest wait.
        decision.retry_after.map_or(u64::MAX, |retry| retry.0)
    });
    let least = |decision: &&HttpDecision| {
        decision
            .remaining
            .zip(decision.limit)
            .map_or(f64::INFINITY, |(remaining, limit)| part(remaining, limit))
    };
    let told = refusing.or_else(|| decisions.min_by(|one, other| least(one).total_cmp(&least(other))));
    RateLimitResponse {
        overall_code: code(refusing.is_some()),
        statuses,
        response_headers_to_add: told.map(headers).unwrap_or_default(),
        raw_body: refusing.map(|decision| decision.answer.problem().into()).unwrap_or_default(),
    }
}

/// The status of the descriptor at this place of its group: by its own node of the tree, else by the rule that leaves least.
fn status_of(decision: &HttpDecision, place: usize) -> DescriptorStatus {
    let all = decision.all.as_deref().unwrap_or_default();
    let own = all.iter().find(|limit| limit.descriptors >> place & 1 == 1);
    let of_rules = all.iter().filter(|limit| limit.descriptors == 0);
    // Refusing limits first, then those with the smallest remaining part.
    let order = |limit: &LimitLevel| (!limit.refuses, part(limit.remaining, limit.limit));
    let limit = own.or_else(|| {
        of_rules.min_by(|one, other| {
            let ((one_passes, one), (other_passes, other)) = (order(one), order(other));
            one_passes.cmp(&other_passes).then(one.total_cmp(&other))
        })
    });
    // A load shedder, a deny list or a hidden rule refuses the whole request.
    let is_refused_whole = !decision.allowed && !all.iter().any(|limit| limit.refuses);
    let refuses = is_refused_whole || limit.is_some_and(|limit| limit.refuses);
    let Some(limit) = limit else {
        return DescriptorStatus { code: code(refuses), ..DescriptorStatus::default() };
    };
    DescriptorStatus {
        code: code(refuses),
        current_limit: Some(CurrentLimit {
            requests_per_unit: saturate(limit.limit),
            unit: UNITS
                .iter()
                .find(|(_, seconds)| seconds * 1_000_000 == limit.window.0)
                .map_or(0, |(unit, _)| *unit),
            name: limit.rule.clone(),
        }),
        limit_remaining: if refuses { 0 } else { saturate(limit.remaining) },
        duration_until_reset: Some(WholeSeconds {
            seconds: i64::try_from(limit.reset_after.0.div_ceil(1_000_000)).unwrap_or(i64::MAX),
        }),
    }
}

/// The remaining part of a limit.
#[allow(clippy::cast_precision_loss, reason = "near ties may be decided either way")]
fn part(remaining: u64, limit: u64) -> f64 {
    remaining as f64 / limit.max(1) as f64
}

/// The headers of every client. Those of `X-Ratelimit` are left to Envoy, which has a setting for them.
fn headers(decision: &HttpDecision) -> Vec<HeaderValue> {
    let header =
        |name: &str, value: &str| HeaderValue { key: name.to_ascii_lowercase(), value: value.to_owned() };
    let own = decision.headers.iter().filter(|(name, _)| !name.starts_with("X-"));
    let mut headers: Vec<HeaderValue> = own.map(|(name, value)| header(name, value)).collect();
    if !decision.allowed {
        headers.push(header(STATUS_HEADER, &decision.status.to_string()));
        headers.push(header("content-type", "application/problem+json"));
    }
    headers
}

fn code(refuses: bool) -> i32 {
    if refuses { OVER_LIMIT } else { OK }
}

fn saturate(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The units of the service and their seconds.
pub(super) const UNITS: [(i32, u64); 7] =
    [(1, 1), (2, 60), (3, 3_600), (4, 86_400), (7, 604_800), (5, 2_592_000), (6, 31_536_000)];
