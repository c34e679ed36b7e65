//! Where a limit counts, and how hosts share it that count together. Plain data: nothing here knows of Redis.

use super::field::Field;
use crate::clock::Micros;
use crate::limit::{Quota, Rate, highest_common_factor, share};
use std::time::Duration;

/// Where a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each host counts for itself.
    #[default]
    Host,
    /// All hosts that share a Redis have one budget.
    Fleet,
}

/// The scopes that the settings give to rules that say none, nor do the defaults of their file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    /// Of any domain.
    pub all: Scope,
    /// Of some.
    pub domains: Vec<(Box<str>, Scope)>,
    /// The part of every shared budget that the hosts of one Redis have, in thousandths; `None`: all of it.
    pub weight: Option<u16>,
}

/// How hosts share the budget of one rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetTerms {
    /// Whether a decision waits for Redis.
    pub mode: FleetMode,
    /// What becomes of a request for which its host holds no token; `None`: `ask`.
    pub on_miss: Option<OnMiss>,
    /// What holds while Redis does not answer.
    pub on_redis_down: OnRedisDown,
    /// How far the fleet may go past its budget, in thousandths of it; `None`: a tenth.
    pub max_over: Option<u16>,
    /// The region whose hosts share it; `None`: there is but one Redis.
    pub region: Option<Region>,
    /// How long a request waits for its remote check at most; `None`: what [`FleetTerms::wait`] says.
    pub wait: Option<Duration>,
}

/// What the hosts of one region have of a rule: a part that does not depend on the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// In thousandths.
    pub weight: u16,
    /// What all regions have together; `None`: the rule has none of its own, and only its overrides limit.
    pub whole: Option<Whole>,
}

/// The numbers of a rule as it says them, of which a region has its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// A bucket of tokens.
    Tokens {
        /// How fast it fills.
        rate: Rate,
        /// How many it holds.
        burst: u32,
    },
    /// So much work at once.
    Places(u32),
}

/// Whether a decision waits for Redis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FleetMode {
    /// Hosts borrow tokens ahead of need: no decision waits.
    #[default]
    Borrow,
    /// Redis is asked each time.
    Exact,
}

/// What becomes of a request for which its host holds no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMiss {
    /// It passes on credit, as far as the stated bound goes.
    Admit,
    /// It is refused.
    Refuse,
    /// It waits for one call.
    Ask,
}

/// What holds while Redis does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRedisDown {
    /// Each host has its part: the budget divided by the hosts that were last counted.
    #[default]
    Share,
    /// Each host has the whole limit.
    Local,
    /// Nothing is limited.
    Allow,
    /// Nothing passes.
    Refuse,
}

impl Scopes {
    /// What holds in a domain.
    #[must_use]
    pub fn of(&self, domain: &str) -> Scope {
        let own = self.domains.iter().find(|(name, _)| **name == *domain);
        own.map_or(self.all, |(_, scope)| *scope)
    }
}

impl FleetTerms {
    /// How far the fleet may go past its budget, in thousandths of it.
    #[must_use]
    pub fn over(&self) -> u16 {
        self.max_over.unwrap_or(OVER)
    }

    /// How long a request waits for its remote check at most.
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.wait.unwrap_or(share::PATIENCE)
    }

    /// What becomes of a request for which its host holds too little, with this number of live hosts.
    ///
    /// `admit` lets every cold host pass one token at least. Where a host's part of `max_over` is less than one token,
    /// the request waits for a remote check instead: `max_over` is a promise. A permit is never admitted on credit.
    #[must_use]
    pub fn on_miss(&self, quota: &Quota, hosts: u32) -> OnMiss {
        let has_credit = !matches!(quota, Quota::Places(_) | Quota::Concurrency(_))
            && self.mode == FleetMode::Borrow
            && (self.max_over.is_none() || self.has_whole_part(quota, hosts));
        match self.on_miss {
            Some(OnMiss::Refuse) => OnMiss::Refuse,
            Some(OnMiss::Admit) if has_credit => OnMiss::Admit,
            _ => OnMiss::Ask,
        }
    }

    /// Whether each host may be one whole token past the budget and the fleet stays within what it may be past it.
    #[must_use]
    pub fn has_whole_part(&self, quota: &Quota, hosts: u32) -> bool {
        // Of a window's, half may be used at once.
        let parts = if is_window(quota) { 2_000 } else { 1_000 };
        u64::from(self.over()) * u64::from(quota.limit()) >= parts * u64::from(hosts)
    }

    /// As one would write them, without what holds anyway.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{{mode: {}", name_of(MODES, self.mode));
        if let Some(on_miss) = self.on_miss {
            text.push_str(&format!(", on_miss: {}", on_miss.name()));
        }
        text.push_str(&format!(", on_redis_down: {}", self.on_redis_down.name()));
        if let Some(wait) = self.wait {
            text.push_str(&format!(", wait: {}", span_text(wait)));
        }
        text + "}"
    }
}

/// A span as one would write it: `5ms`.
fn span_text(span: Duration) -> Micros {
    Micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

/// Whether there are so few places for so many hosts that one often finds none while others lie idle.
pub(super) fn are_few(quota: &Quota, hosts: u32) -> bool {
    matches!(quota, Quota::Places(quota) if quota.is_few(hosts))
}

/// Whether it is a window, of one host or of many.
pub(super) fn is_window(quota: &Quota) -> bool {
    match quota {
        Quota::FixedWindow(_) | Quota::SlidingWindow(_) => true,
        Quota::Share(quota) => quota.window().is_some(),
        _ => false,
    }
}

/// Whether the fleet's whole budget is less than two tokens a host.
pub(super) fn is_tiny(quota: &Quota, hosts: u32) -> bool {
    u64::from(quota.limit()) < 2 * u64::from(hosts)
}

impl Scope {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(SCOPES, self)
    }
}

impl FleetMode {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(MODES, self)
    }
}

impl OnMiss {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(ON_MISS, self)
    }
}

impl OnRedisDown {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        name_of(ON_REDIS_DOWN, self)
    }
}

fn name_of<T: Copy + PartialEq>(words: &[(Field, T)], value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word.name)
}

/// Whether an algorithm can count over a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverFleet {
    /// It can.
    Built,
    /// It never will.
    Never,
}

/// Whether an algorithm, as rules write it, can count over a fleet.
pub(super) fn over_fleet(algorithm: &str) -> OverFleet {
    let known = OVER_FLEET.iter().find(|(name, _)| *name == algorithm);
    known.map_or(OverFleet::Never, |(_, standing)| *standing)
}

/// A rate as the fleet counts it: so many millionths of a token every so many microseconds, in lowest terms. `None`: it
/// is too fast, or its numbers are too odd, to be counted exactly in what a script of Redis can count with.
#[must_use]
pub fn fleet_rate(rate: Rate) -> Option<(u64, u64)> {
    // N each p ns are N × 10⁶ millionths each p ÷ 10³ µs. A count has 32 bits.
    let (parts, period) = (u64::from(rate.count()) * 1_000_000_000, rate.period_nanos());
    let common = highest_common_factor(parts, period).max(1);
    let (parts, period) = (parts / common, period / common);
    fleet_counts(parts, period).then_some((parts, period))
}

/// A rate that scripts can count, near this one: for what says how much there is at the mean, and counts nothing.
#[must_use]
pub(crate) fn nearest_fleet_rate(rate: Rate) -> (u64, u64) {
    let (mut parts, mut period) = (u64::from(rate.count()) * 1_000_000_000, rate.period_nanos());
    loop {
        let common = highest_common_factor(parts, period).max(1);
        (parts, period) = (parts / common, period / common);
        if fleet_counts(parts, period) {
            return (parts, period);
        }
        // Halved often enough they are one in one.
        (parts, period) = ((parts / 2).max(1), (period / 2).max(1));
    }
}

/// Whether the scripts of Redis, which count in doubles, count this rate exactly: it is in lowest terms, and the product of
/// its numbers, with a remainder beside it, stays below 2⁵³.
#[must_use]
pub fn fleet_counts(parts: u64, period: u64) -> bool {
    let product = parts.saturating_mul(period);
    (1..=PRODUCT_MAX).contains(&product)
        && parts <= RATE_PARTS_MAX
        && period <= u64::from(u32::MAX)
        && highest_common_factor(parts, period) == 1
}

/// The words of `scope`.
pub(crate) const SCOPES: &[(Field, Scope)] =
    &[(Field::built("host"), Scope::Host), (Field::built("fleet"), Scope::Fleet)];

/// The words of `mode` in `fleet`. [`MODE_WORDS`] has those that are built.
pub(super) const MODES: &[(Field, FleetMode)] =
    &[(Field::built("borrow"), FleetMode::Borrow), (Field::built("exact"), FleetMode::Exact)];

/// The words of `on_miss`. [`ON_MISS_WORDS`] has those that are built.
pub(super) const ON_MISS: &[(Field, OnMiss)] = &[
    (Field::built("admit"), OnMiss::Admit),
    (Field::built("refuse"), OnMiss::Refuse),
    (Field::built("ask"), OnMiss::Ask),
];

/// The words of `on_redis_down`.
pub(super) const ON_REDIS_DOWN: &[(Field, OnRedisDown)] = &[
    (Field::built("share"), OnRedisDown::Share),
    (Field::built("local"), OnRedisDown::Local),
    (Field::built("allow"), OnRedisDown::Allow),
    (Field::built("refuse"), OnRedisDown::Refuse),
];

/// What the table in the docs and the schema say.
pub(super) const MODE_WORDS: &[&str] = &["borrow", "exact"];
/// What the table in the docs and the schema say.
pub(super) const ON_MISS_WORDS: &[&str] = &["admit", "refuse", "ask"];

/// What can be counted over a fleet; what is not here never will be: a pace and a list of every request are not made of
/// parts that hosts could hold.
const OVER_FLEET: [(&str, OverFleet); 4] = [
    ("token_bucket", OverFleet::Built),
    ("fixed_window", OverFleet::Built),
    ("sliding_window", OverFleet::Built),
    ("concurrency", OverFleet::Built),
];

/// How far the fleet may go past its budget where a rule does not say, in thousandths of it.
pub(super) const OVER: u16 = 100;

/// Millionths of a token in one step of a rate: a thousand million tokens in a second.
const RATE_PARTS_MAX: u64 = 1_000_000_000;

/// What the numbers of a rate multiply to: two of these are below 2⁵³.
const PRODUCT_MAX: u64 = 4_000_000_000_000_000;

#[cfg(test)]
mod tests {
    use super::{MODE_WORDS, MODES, ON_MISS, ON_MISS_WORDS, fleet_rate};
    use crate::limit::Rate;
    use crate::rules::field::Field;

    #[test]
    fn the_table_names_what_is_built() {
        fn built<T>(words: &[(Field, T)]) -> Vec<&'static str> {
            words.iter().filter(|(word, _)| word.built).map(|(word, _)| word.name).collect()
        }
        assert_eq!(built(MODES), MODE_WORDS);
        assert_eq!(built(ON_MISS), ON_MISS_WORDS);
    }

    #[test]
    fn a_rate_is_millionths_of_a_token_each_microsecond() {
        const SECOND: u64 = 1_000_000_000;
        for (count, period, expected) in [
            (1_000, SECOND, Some((1_000, 1))),
            (10, 3_600 * SECOND, Some((1, 360))),
            (7, 3 * SECOND, Some((7, 3))),
            (1, 366 * 86_400 * SECOND, Some((1, 31_622_400))),
            (1_234_567, 86_400 * SECOND, Some((1_234_567, 86_400))),
            (1_000_000_000, SECOND, Some((1_000_000_000, 1))),
            (2_000_000_000, SECOND, None),
            // More parts than are counted.
            (1_000_000_007, 30 * 86_400 * SECOND, None),
            // Its product is below 2⁵³, but not with a remainder beside it.
            (999_999_937, 5_000_000 * SECOND, None),
            (999_999_937, 4_000_000 * SECOND, Some((999_999_937, 4_000_000))),
            // Less than a microsecond's worth of period is a part of a token more.
            (3, 1_000_000_500, Some((2_000_000, 666_667))),
        ] {
            let rate = Rate::new(count, period).unwrap();
            assert_eq!(fleet_rate(rate), expected, "{rate}");
        }
    }
}
