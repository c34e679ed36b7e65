//! Scopes of rules, and how hosts share a fleet budget. Plain data, independent of Redis.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use super::percent;
use crate::clock::Micros;
use crate::limit::{Quota, Rate, greatest_common_divisor, share};

/// The scope in which a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
#[schemars(inline)]
pub enum Scope {
    /// Each host counts separately.
    #[default]
    Host,
    /// All hosts that share a Redis have one budget.
    Fleet,
}

/// Scopes from the settings, for rules without one of their own or from the defaults of their file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    /// The scope of all domains.
    pub all: Scope,
    /// The scopes of single domains.
    pub domains: Vec<(Box<str>, Scope)>,
    /// The weight of these hosts' region in every fleet budget, in thousandths; `None` without regions.
    pub weight: Option<u16>,
}

/// The `fleet` settings of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetSettings {
    /// Whether a decision waits for Redis.
    pub mode: FleetMode,
    /// The result for a request if its host has no token; `None` means `ask`.
    pub on_miss: Option<OnMiss>,
    /// The fallback during an outage of Redis.
    pub on_redis_down: share::Fallback,
    /// How far the fleet may exceed its budget, in thousandths of it; `None` means a tenth.
    pub max_over: Option<u16>,
    /// The region whose hosts share the budget; `None` with a single Redis.
    pub region: Option<Region>,
    /// The longest wait for a remote check; `None` means the default of [`FleetSettings::wait`].
    pub wait: Option<Duration>,
}

/// The part of a rule that the hosts of one region have, independent of other regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The weight in thousandths.
    pub(crate) weight: u16,
    /// The numbers of all regions together; `None` if only overrides of the rule limit.
    pub(crate) whole: Option<WholeNumbers>,
}

/// The configured numbers of a rule, before the region's weight applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeNumbers {
    /// A bucket of tokens.
    Tokens {
        /// The refill rate.
        rate: Rate,
        /// The burst, in tokens.
        burst: u32,
    },
    /// The maximum of concurrent permits.
    Permits(u32),
}

/// Whether a decision waits for Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, IntoStaticStr, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
#[schemars(inline)]
pub enum FleetMode {
    /// Hosts borrow tokens in advance, so that no decision waits.
    #[default]
    Borrow,
    /// Every decision is a remote check.
    Exact,
}

/// The result for a request if its host has no token.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr, Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
#[schemars(inline)]
pub enum OnMiss {
    /// Allowed on credit, within `max_over`.
    #[default]
    Admit,
    /// Refused.
    Refuse,
    /// Pending until a remote check.
    Ask,
}

impl Scopes {
    /// Returns the scope of a domain.
    pub fn of(&self, domain: &str) -> Scope {
        let own = self.domains.iter().find(|(name, _)| **name == *domain);
        own.map_or(self.all, |(_, scope)| *scope)
    }
}

impl FleetSettings {
    /// Returns `max_over` in thousandths of the budget.
    pub(crate) fn over(&self) -> u16 {
        self.max_over.unwrap_or(OVER)
    }

    /// Returns the longest wait for a remote check.
    pub fn wait(&self) -> Duration {
        self.wait.unwrap_or(share::REMOTE_CHECK_WAIT_DEFAULT)
    }

    /// Returns how many times the budget all of `hosts` together admit at most, if `cut_off` of them do not reach Redis
    /// and the others do.
    pub fn admitted_max(&self, hosts: u32, cut_off: u32) -> f64 {
        let cut_off = f64::from(cut_off);
        match self.on_redis_down {
            share::Fallback::Allow if cut_off > 0.0 => f64::INFINITY,
            share::Fallback::Share => 1.0 + cut_off / f64::from(hosts.max(1)),
            share::Fallback::Local => 1.0 + cut_off,
            share::Fallback::Allow | share::Fallback::Refuse => 1.0,
        }
    }

    /// Formats the settings as they are written, without defaults.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{{mode: {}", self.mode);
        if let Some(on_miss) = self.on_miss {
            text.push_str(&format!(", on_miss: {on_miss}"));
        }
        text.push_str(&format!(", on_redis_down: {}", self.on_redis_down));
        if let Some(wait) = self.wait {
            text.push_str(&format!(", wait: {}", Micros::from(wait)));
        }
        text + "}"
    }
}

pub(super) fn is_window(quota: &Quota) -> bool {
    match quota {
        Quota::FixedWindow(_) | Quota::SlidingWindow(_) => true,
        Quota::FleetBudget(quota) => quota.window().is_some(),
        _ => false,
    }
}

/// The result for a request if its host has too few tokens, at this host count.
///
/// `admit` allows each cold host at least one token on credit. Where a host's part of `max_over` is less than one token,
/// the request waits for a remote check instead, so that `max_over` holds. Permits are never admitted on credit.
fn on_miss(quota: &Quota, hosts: u32) -> OnMiss {
    match quota {
        Quota::FleetBudget(share) if share.may_check_remotely(hosts) => OnMiss::Ask,
        Quota::FleetBudget(share) if share.credit() > 0 => OnMiss::Admit,
        Quota::Concurrency(quota) if quota.may_wait() => OnMiss::Ask,
        _ => OnMiss::Refuse,
    }
}

/// A refill of `num` millionths of a token every `den` microseconds, in lowest terms, as Redis scripts count it: 1000/s is
/// 1000/1, 10/h is 1/360.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CellRate {
    pub(crate) num: u32,
    pub(crate) den: u32,
}

impl CellRate {
    /// Makes a rate; `None` if scripts, which count in doubles, cannot count it exactly: it is not in lowest terms, or the
    /// product of its numbers plus a remainder may reach 2⁵³.
    pub fn new(num: u64, den: u64) -> Option<CellRate> {
        let is_exact = (1..=PRODUCT_MAX).contains(&num.saturating_mul(den))
            && num <= RATE_PARTS_MAX
            && greatest_common_divisor(num, den) == 1;
        let (num, den) = (u32::try_from(num).ok()?, u32::try_from(den).ok()?);
        is_exact.then_some(CellRate { num, den })
    }

    /// Converts the rate of a rule; `None` if it is too fast, or its numbers are too large, to be counted exactly.
    pub fn of(rate: Rate) -> Option<CellRate> {
        // N per p ns are N × 10⁶ millionths per p ÷ 10³ µs. A count has 32 bits.
        let (num, den) = (u64::from(rate.count()) * 1_000_000_000, rate.period_nanos());
        let common = greatest_common_divisor(num, den).max(1);
        CellRate::new(num / common, den / common)
    }

    /// The millionths of a token of one step.
    pub fn num(self) -> u64 {
        self.num.into()
    }

    /// The microseconds of one step.
    pub fn den(self) -> u64 {
        self.den.into()
    }
}

/// The largest excess over the budget of one key at a given host count, as long as Redis answers and keeps its
/// data.
///
/// In any span W all hosts together admit at most `B + R·W + extra`. A host without tokens may pass a part of
/// `max_over` on credit, at least one token; its next sync reports the credit, which is then charged. A host
/// on which a key stays below the host's part of the rate never reports: these requests are `quiet`, a share
/// of R·W.
///
/// In a window all hosts together admit at most `N + extra`, which includes unreported requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetBound {
    /// The host count.
    pub hosts: u32,
    /// The result for a request if its host has no token.
    pub on_miss: OnMiss,
    /// The excess in tokens, once in any span.
    pub extra: u32,
    /// The share of the rate that hosts with little use of the key may never report, in thousandths.
    #[serde(rename = "quiet_permille")]
    pub quiet: u16,
    /// The largest burst, and the largest cost of one request, that passes on a host without tokens of the key while
    /// Redis answers in time.
    #[serde(rename = "cold_max")]
    pub(crate) cold: u32,
    /// Commands about one key per second, of all hosts, if they use its rate evenly by requests of one token; `None` for
    /// permits. With `admit` and `refuse` the most.
    pub commands_per_second: Option<u64>,
    /// The round trip in microseconds below which 95 % of the rate is used, if requests of one token come to all hosts;
    /// `None` if less may be used, or for windows without remote checks, where it is unknown.
    pub round_trip_max_us: Option<u64>,
    /// Whether `extra` applies once per window.
    #[serde(skip)]
    pub(crate) windows: bool,
    /// The unit that hosts borrow: `token` or `permit`.
    #[serde(skip)]
    pub unit: &'static str,
    /// The fleet budget.
    #[serde(skip)]
    limit: u32,
}

impl FleetBound {
    /// Computes the bound for a host count; `None` if the algorithm does not support a fleet.
    pub fn of(settings: &FleetSettings, quota: &Quota, hosts: u32) -> Option<FleetBound> {
        let unit = match quota {
            // A window of 0 refuses everything on each host.
            Quota::FleetBudget(_) | Quota::FixedWindow(_) => "token",
            Quota::Concurrency(quota) if quota.is_fleet() => "permit",
            _ => return None,
        };
        let (on_miss, limit) = (on_miss(quota, hosts), quota.limit());
        let needs_whole_token =
            matches!(quota, Quota::FleetBudget(share) if share.credit_below_one_unit(hosts));
        let (extra, quiet) = match on_miss {
            // Each host has at least one permit.
            OnMiss::Refuse if matches!(quota, Quota::Concurrency(_)) => (hosts.saturating_sub(limit), 0),
            OnMiss::Refuse | OnMiss::Ask => (0, 0),
            // One token for each cold host.
            OnMiss::Admit if needs_whole_token => (hosts, settings.over()),
            OnMiss::Admit => (percent::of(settings.over(), limit), settings.over()),
        };
        let quiet = if is_window(quota) { 0 } else { quiet };
        let cold = match on_miss {
            OnMiss::Ask => limit,
            OnMiss::Admit => (extra / hosts.max(1)).max(1).min(limit),
            OnMiss::Refuse => 0,
        };
        let share = match quota {
            Quota::FleetBudget(share) => Some(share),
            _ => None,
        };
        let commands_per_second = share.map(|share| commands_per_second(share, hosts));
        let round_trip_max = share.and_then(|share| round_trip_max(share, hosts, on_miss, settings.wait()));
        let round_trip_max_us = round_trip_max.map(|longest| Micros::from(longest).0);
        let windows = is_window(quota);
        Some(FleetBound {
            hosts,
            on_miss,
            extra,
            quiet,
            cold,
            commands_per_second,
            round_trip_max_us,
            windows,
            unit,
            limit,
        })
    }

    /// Returns a warning if the budget is small for this host count.
    pub fn doubt(&self, quota: &Quota) -> Option<String> {
        if matches!(quota, Quota::Concurrency(_)) {
            let part = (self.limit / self.hosts.max(1)).max(1);
            let is_small = self.on_miss == OnMiss::Refuse
                && self.limit < PERMITS_PER_HOST_MIN.saturating_mul(self.hosts);
            return is_small.then(|| {
                format!(
                    "`max` {} over {} hosts with `on_miss: refuse` is {part} for each: a host refuses more while others have room; \
                     `on_miss: ask` costs a call of Redis for each lease",
                    self.limit, self.hosts
                )
            });
        }
        let is_tiny = matches!(quota, Quota::FleetBudget(share) if share.is_tiny(self.hosts));
        if self.on_miss != OnMiss::Admit || !is_tiny {
            return None;
        }
        let most = u64::from(self.limit) + u64::from(self.extra);
        let other = "`on_miss: ask` costs one call of Redis for each request";
        let rate = quota.format_rate();
        Some(format!("{rate} over {} hosts: `on_miss: admit` may pass {most} at once; {other}", self.hosts))
    }
}

/// See [`FleetBound::commands_per_second`]. The numbers are those of the sync with Redis, and a simulation of it checks the
/// results (`tests/fleet/users.rs`).
fn commands_per_second(share: &share::ShareQuota, hosts: u32) -> u64 {
    let (rate, limit) = (share.bucket().rate(), u64::from(share.bucket().burst()));
    let (waits, borrows) = (share.may_check_remotely(hosts), share.borrows(hosts));
    let hosts = u64::from(hosts.max(1));
    let requests = (u64::from(rate.count()) * 1_000_000_000).div_ceil(rate.period_nanos());
    if !waits {
        return hosts * (requests / hosts + 1).min(SYNCS_PER_SECOND_MAX);
    }
    let lent = if share.window().is_some() { limit - limit / 4 } else { limit };
    // A host borrows the tokens of two requests or more in a tenth of a second, with a quarter more, and at most two of its
    // parts of a quarter of the burst.
    let (needed, part) = ((requests + 4 * hosts) / (8 * hosts), lent.saturating_sub(1) / 4 / hosts);
    let borrows = borrows && (2..=2 * part).contains(&needed);
    if borrows { hosts * SYNCS_PER_SECOND + requests / REQUESTS_PER_MISS } else { requests }
}

/// See [`FleetBound::round_trip_max_us`]: measured by a simulation, which checks them (`tests/fleet/table.rs`). The more
/// tokens a host may hold, the longer it serves its requests before a reply comes.
fn round_trip_max(
    quota: &share::ShareQuota,
    hosts: u32,
    on_miss: OnMiss,
    wait: Duration,
) -> Option<Duration> {
    let tokens = quota.bucket().burst() / hosts.max(1);
    let fills_in = Duration::from(quota.bucket().window());
    let at_least = |part, seconds| quota.window().is_none() && tokens >= part && fills_in >= seconds;
    let (half, one) = (Duration::from_millis(500), Duration::from_secs(1));
    let millis = match on_miss {
        OnMiss::Ask if at_least(10, one) && quota.borrows(hosts) => 200,
        OnMiss::Ask => return Some(wait),
        OnMiss::Admit if at_least(50, half) => 100,
        OnMiss::Admit if at_least(10, half) => 50,
        OnMiss::Admit if at_least(2, one) => 20,
        OnMiss::Refuse if at_least(50, half) => 50,
        OnMiss::Refuse if at_least(25, half) => 10,
        OnMiss::Admit | OnMiss::Refuse => return None,
    };
    Some(Duration::from_millis(millis))
}

pub(super) const OVER: u16 = 100;

/// The largest number of millionths of a token in one step of a rate: 10⁹ tokens per second.
const RATE_PARTS_MAX: u64 = 1_000_000_000;

/// The largest product of a rate's numbers: twice this is below 2⁵³.
const PRODUCT_MAX: u64 = 4_000_000_000_000_000;

/// Syncs of a host for a key from which it borrows, and the most for a key that many hosts lack tokens of.
const SYNCS_PER_SECOND: u64 = 10;
const SYNCS_PER_SECOND_MAX: u64 = 24;

/// Of requests that come at random times, one in about this many finds no borrowed token.
const REQUESTS_PER_MISS: u64 = 60;

/// A host's part of a concurrency limit below which its share of the work varies by more than the part.
const PERMITS_PER_HOST_MIN: u32 = 4;

/// The longest `wait` for a remote check, in milliseconds: users notice longer delays.
pub const REMOTE_CHECK_WAIT_MAX_MILLIS: u64 = 50;
