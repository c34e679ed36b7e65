//! The limit while the daemon is unreachable: token buckets in this process. Reads no clock.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::answer::read_rate;
use crate::decision::{Decision, Verdict};
use crate::fault::Reason;
use crate::wire::{Op, Request, Value};

/// Rates by rule, `*` for the rest, and the buckets.
#[derive(Debug)]
pub(crate) struct Fallback {
    quotas: HashMap<String, FallbackQuota>,
    state: Mutex<FallbackState>,
}

#[derive(Clone, Copy, Debug)]
struct FallbackQuota {
    per_second: f64,
    burst: f64,
}

#[derive(Debug, Default)]
struct FallbackState {
    /// The rule that bound last, by domain and names of attributes.
    rules: HashMap<(String, Vec<String>), (String, Instant)>,
    buckets: HashMap<BucketKey, (f64, Instant)>,
}

/// The entry, the domain, and the descriptors with their pairs sorted.
type BucketKey = (String, String, Vec<Vec<(String, String)>>);

/// The error of a rate that cannot be read.
#[derive(Debug)]
pub struct RateError(String);

impl std::fmt::Display for RateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the fallback {:?} is not a rate; help: write it like 20/s, 5/15min or 100/h burst 200",
            self.0
        )
    }
}

impl std::error::Error for RateError {}

impl Fallback {
    pub(crate) fn new<'r>(
        rates: impl IntoIterator<Item = (&'r str, &'r str)>,
    ) -> Result<Fallback, RateError> {
        let quotas = rates.into_iter().map(|(rule, rate)| {
            let quota = read_quota(rate).ok_or_else(|| RateError(rate.to_owned()))?;
            Ok((rule.to_owned(), quota))
        });
        Ok(Fallback { quotas: quotas.collect::<Result<_, _>>()?, state: Mutex::default() })
    }

    /// Notes the rule that bound a request.
    pub(crate) fn remember(&self, request: &Request, decision: &Decision, now: Instant) {
        if let Some(rule) = decision.rule.as_ref().filter(|_| self.quotas.keys().any(|name| name != "*")) {
            put(
                &mut crate::lock(&self.state).rules,
                names_of(request),
                (rule.clone(), now),
                RULES_MAX,
                |of| of.1,
            );
        }
    }

    /// Decides a request; `None` if no rate is for it.
    pub(crate) fn decide(&self, request: &Request, now: Instant) -> Option<Decision> {
        let mut state = crate::lock(&self.state);
        let rule = state.rules.get(&names_of(request)).map(|(rule, _)| rule.clone()).unwrap_or_default();
        let names = [format!("{}/{rule}", request.domain), rule, "*".to_owned()];
        let (entry, quota) = names.into_iter().find_map(|name| {
            let quota = *self.quotas.get(&name)?;
            Some((name, quota))
        })?;
        let key = (entry, request.domain.clone(), sorted(request));
        let (was, at) = state.buckets.get(&key).copied().unwrap_or((quota.burst, now));
        let refill = now.saturating_duration_since(at).as_secs_f64() * quota.per_second;
        let mut tokens = (was + refill).min(quota.burst);
        let cost = requests(&request.cost);
        let is_allowed = cost <= tokens + ROUNDING;
        if is_allowed && request.op != Op::Peek {
            tokens = (tokens - cost).max(0.0);
        }
        if request.op != Op::Peek {
            put(&mut state.buckets, key, (tokens, now), BUCKETS_MAX, |of| of.1);
        }
        let until = |wanted: f64| micros_up((wanted - tokens) / quota.per_second);
        let remaining = (tokens + ROUNDING).floor();
        let retry_after = match is_allowed {
            true => Some(Duration::ZERO),
            false => (cost <= quota.burst).then(|| until(cost)),
        };
        Some(Decision {
            verdict: if is_allowed { Verdict::Allow } else { Verdict::Limit },
            reason: Some(Reason::Fallback),
            limit: Some(whole(quota.burst)),
            window: Some(micros_up(quota.burst / quota.per_second)),
            remaining: Some(whole(remaining)),
            reset_after: Some(if tokens < quota.burst { until(remaining + 1.0) } else { Duration::ZERO }),
            retry_after,
            ..Decision::default()
        })
    }
}

/// Inserts an entry. In a full map the one that was used longest ago gives way.
fn put<K: Eq + Hash + Clone, V>(
    map: &mut HashMap<K, V>,
    key: K,
    value: V,
    max: usize,
    used_at: impl Fn(&V) -> Instant,
) {
    if map.len() >= max && !map.contains_key(&key) {
        let oldest = map.iter().min_by_key(|(_, value)| used_at(value)).map(|(key, _)| key.clone());
        oldest.and_then(|oldest| map.remove(&oldest));
    }
    map.insert(key, value);
}

fn names_of(request: &Request) -> (String, Vec<String>) {
    let names = request.descriptors.iter().flatten().map(|(name, _)| name.clone());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names.dedup();
    (request.domain.clone(), names)
}

fn sorted(request: &Request) -> Vec<Vec<(String, String)>> {
    let mut descriptors = request.descriptors.clone();
    descriptors.iter_mut().for_each(|pairs| pairs.sort_unstable());
    descriptors.sort_unstable();
    descriptors
}

fn requests(cost: &Value) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "a larger cost is above every burst")]
    match cost {
        Value::Unsigned(cost) => *cost as f64,
        Value::Map(units) => {
            let unit = units.iter().find(|(unit, _)| unit == "requests");
            unit.map_or(1.0, |(_, cost)| requests(cost))
        }
        _ => 1.0,
    }
}

/// Reads a rate such as `20/s` or `100/h burst 200`.
fn read_quota(text: &str) -> Option<FallbackQuota> {
    let (rate, burst) = text.split_once(" burst ").map_or((text, None), |(rate, burst)| (rate, Some(burst)));
    let (count, periods, _, noun) = read_rate(rate)?;
    let number = |digits: &str| digits.parse::<u32>().ok().filter(|number| *number > 0).map(f64::from);
    let periods = if periods.is_empty() { 1.0 } else { number(periods)? };
    let (_, unit) = SECONDS.into_iter().find(|(name, _)| *name == noun)?;
    let (count, seconds) = (number(count)?, periods * unit);
    let burst = burst.map_or(Some(count), number)?;
    (seconds <= 366.0 * 86_400.0).then_some(FallbackQuota { per_second: count / seconds, burst })
}

/// Rounds up to microseconds, but ignores errors of rounding.
fn micros_up(seconds: f64) -> Duration {
    Duration::try_from_secs_f64((seconds * 1e6 - 1e-3).ceil().max(0.0) / 1e6).unwrap_or(Duration::MAX)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is whole, from 0 to 2^32")]
fn whole(number: f64) -> u64 {
    number as u64
}

/// Tokens lost to rounding.
const ROUNDING: f64 = 1e-6;

const RULES_MAX: usize = 256;
const BUCKETS_MAX: usize = 10_000;

const SECONDS: [(&str, f64); 7] = [
    ("millisecond", 0.001),
    ("second", 1.0),
    ("minute", 60.0),
    ("hour", 3_600.0),
    ("day", 86_400.0),
    ("week", 604_800.0),
    ("month", 2_592_000.0),
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Fallback;
    use crate::Attributes;
    use crate::decision::{Decision, Verdict};
    use crate::wire::{Op, Request, Value};

    fn request(user: &str, cost: u64) -> Request {
        Request {
            op: Op::Hit,
            domain: "api".to_owned(),
            descriptors: Attributes::from([("user", user)]).checked().unwrap(),
            cost: Value::Unsigned(cost),
            priority: None,
            options: Vec::new(),
        }
    }

    #[test]
    fn limits_each_set_of_attributes_by_its_rule() {
        let fallback = Fallback::new([("*", "2/s"), ("api/per-user", "1/10s burst 3")]).unwrap();
        let start = Instant::now();
        let check = |user: &str, millis: u64, cost: u64| {
            let decision =
                fallback.decide(&request(user, cost), start + Duration::from_millis(millis)).unwrap();
            (
                decision.verdict,
                decision.remaining.unwrap(),
                decision.retry_after.map(|retry| retry.as_millis()),
            )
        };
        let (allow, limit) = (Verdict::Allow, Verdict::Limit);
        assert_eq!(check("u1", 0, 2), (allow, 0, Some(0)));
        assert_eq!(check("u1", 0, 1), (limit, 0, Some(500)));
        assert_eq!(check("u1", 500, 1), (allow, 0, Some(0)));
        assert_eq!(check("u1", 500, 3), (limit, 0, None), "above the burst");
        assert_eq!(check("u2", 500, 1), (allow, 1, Some(0)));
        let bound = Decision { rule: Some("per-user".to_owned()), ..Decision::default() };
        fallback.remember(&request("u3", 1), &bound, start);
        assert_eq!(check("u1", 500, 3), (allow, 0, Some(0)), "another bucket, by the rule that bound");
        assert_eq!(check("u1", 500, 1), (limit, 0, Some(10_000)));
    }

    #[test]
    fn keeps_a_bounded_number_of_buckets() {
        let fallback = Fallback::new([("*", "1/h")]).unwrap();
        let start = Instant::now();
        for user in 0..10_100 {
            fallback.decide(&request(&user.to_string(), 1), start + Duration::from_millis(user)).unwrap();
        }
        assert_eq!(crate::lock(&fallback.state).buckets.len(), 10_000);
    }

    #[test]
    fn refuses_rates_that_it_cannot_read() {
        for rate in
            ["", "20", "0/s", "1/0s", "1/year", "1/s burst 0", "-1/s", "1.5/s", "4294967296/s", "1/13month"]
        {
            let error = Fallback::new([("*", rate)]).unwrap_err().to_string();
            assert!(error.contains("is not a rate; help: write it like"), "{error}");
        }
    }
}
