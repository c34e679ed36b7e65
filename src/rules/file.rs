//! The fields of rules files. A description is also that of the field in the JSON Schema and in `docs/rules.md`,
//! where the default stands in a column of its own.

mod shed;

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::Deserialize;

use super::de::{Deferred, DeferredMap, Spanned};
use super::rate_text::WrittenRate;
use super::values::{
    AnyValue, AttributeName, DAY, HelpText, MatchValues, Max, Name, PercentText, RequestCount, SECOND, Text,
    Texts, Time, Zone,
};
use super::{FleetMode, Guard, Mode, OnMiss, REMOTE_CHECK_WAIT_MAX_MILLIS, RefundOn, RefusedCost, Scope};
use crate::limit::share::Fallback;
pub(super) use shed::{BrakeFields, CallersFields, Point, ShedFields, SignalFields};

/// A rules file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a rules file")]
#[schemars(rename = "file", extend("x-place" = "file"))]
pub(super) struct RulesFile<'n> {
    /// the name of the domain in requests of the application
    #[serde(borrow)]
    pub(super) domain: Name<'n>,
    /// defaults for the rules of this file
    pub(super) defaults: Option<DefaultsFields>,
    /// the names of the priorities, the most important first; once in a domain; see Priorities
    pub(super) priorities: Option<Vec<Deferred<Name<'n>>>>,
    /// which requests have which priority: the first entry that matches, else the last of `priorities`
    pub(super) prioritize: Option<Vec<Deferred<PrioritizeFields<'n>>>>,
    /// requests that no rule judges; see Lists
    pub(super) exempt: Option<Vec<Deferred<ExemptFields<'n>>>>,
    /// requests that are refused always; see Lists
    pub(super) deny: Option<Vec<Deferred<DenyFields<'n>>>>,
    /// the rules
    pub(super) limits: Option<Vec<Deferred<RuleFields<'n>>>>,
    /// rules that limit work in progress; see Concurrency
    pub(super) concurrency: Option<Vec<Deferred<ConcurrencyFields<'n>>>>,
    /// requests to refuse when a pool of processes is full; see Shedding
    pub(super) shed: Option<Vec<Deferred<ShedFields<'n>>>>,
    /// a descriptor tree; see docs/descriptors.md
    pub(super) descriptors: Option<Vec<Deferred<DescriptorFields<'n>>>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "`defaults`")]
#[schemars(rename = "defaults", extend("x-place" = "`defaults`"))]
pub(super) struct DefaultsFields {
    #[schemars(
        description = "whether each host counts for itself or all hosts have one budget; see Fleet. Default: that of the settings, else `host`."
    )]
    pub(super) scope: Option<Scope>,
}

/// The fields of rules of `limits` and of `concurrency`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "$common")]
pub(super) struct CommonFields<'n> {
    #[schemars(description = NAME)]
    #[serde(borrow)]
    pub(super) name: Name<'n>,
    #[schemars(description = MATCH)]
    pub(super) r#match: Option<Match>,
    /// the attributes whose values are counted apart, at most 16; `[]` is one counter for all
    pub(super) key: Vec<Spanned<KeyEntry<'n>>>,
    #[schemars(description = MODE)]
    pub(super) mode: Option<Mode>,
    /// above which share of the limit a request that passes is noted as near it. Default: never.
    pub(super) warn_at: Option<PercentText>,
    /// whether response headers may name it. Default: `true`.
    pub(super) advertise: Option<bool>,
    #[schemars(description = HELP)]
    pub(super) help: Option<HelpText<'n>>,
    /// the attributes of `key` whose values operators may see; of others they see digests
    pub(super) show_keys: Option<Vec<Spanned<AttributeName<'n>>>>,
    /// whether each host counts for itself or all hosts have one budget; see Fleet. Default: that of `defaults`, else of the settings, else `host`.
    pub(super) scope: Option<Scope>,
    /// how hosts share the budget, with `scope: fleet`; see Fleet. Default: `{mode: borrow}`.
    pub(super) fleet: Option<FleetFields>,
    /// the action when it refuses most callers right after a change: see docs/kill-switches.md. Default: `tell`.
    pub(super) guard: Option<Guard>,
    /// a table `NAME.csv` beside the rules file with the numbers of exact keys; see Overrides
    pub(super) overrides_file: Option<Text<'n>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a rule")]
#[schemars(rename = "rule", extend("x-place" = "rule"))]
pub(super) struct RuleFields<'n> {
    #[serde(rename = "$common", borrow)]
    #[schemars(flatten)]
    pub(super) common: CommonFields<'n>,
    #[schemars(description = ALGORITHM)]
    pub(super) algorithm: Option<Algorithm>,
    #[schemars(description = RATE)]
    pub(super) rate: WrittenRate,
    #[serde(rename = "$limit")]
    #[schemars(flatten)]
    pub(super) limit: LimitFields,
    /// the unit of its counts; it does not judge a request that does not name the unit. Default: `requests`.
    pub(super) unit: Option<Name<'n>>,
    /// the outcome of a lease that refunds its cost: with `ok` only failures count; see Leases. Default: never.
    pub(super) refund_on: Option<RefundOn>,
    /// how far all hosts together may go past the budget, with `scope: fleet`; see Fleet. Default: 10%.
    pub(super) max_over: Option<PercentText<0>>,
    /// other numbers, or another algorithm, measured beside the rule; other fields are as in the rule
    pub(super) candidate: Option<CandidateFields>,
    /// other rates for some requests: the first entry that matches, after the rows of `overrides_file`
    pub(super) overrides: Option<Vec<Deferred<OverrideFields>>>,
}

/// The fields of a limit beside its algorithm and rate. Only some algorithms have them: [`ONLY`].
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename = "$limit")]
pub(super) struct LimitFields {
    /// how much a full bucket holds. Default: the number of the rate.
    pub(super) burst: Option<NonZeroU32>,
    /// how much may wait, in units of cost. Default: 0.
    pub(super) queue: Option<u32>,
    /// into how many parts the window is cut: more is more exact and takes more memory. Default: 10.
    #[schemars(extend("maximum" = 60))]
    pub(super) buckets: Option<NonZeroU32>,
    /// when a window starts: by the calendar, or with the first request of its key. Default: `utc`.
    pub(super) align: Option<Align>,
    /// whose calendar, such as `Europe/Berlin`. Default: UTC.
    pub(super) timezone: Option<Zone>,
    /// the treatment of requests above the limit: `refuse`, `{soft: 10%, for: 60s}` or `{elastic: 100%}`. Default: `refuse`.
    pub(super) over: Option<OverValue>,
    /// whether a refused request costs nothing or as much as one that passed. Default: `free`.
    pub(super) refused: Option<RefusedCost>,
    /// how long a key stays refused after a refusal; requests in that time do not extend it. Default: not at all.
    pub(super) block: Option<Time>,
    /// how far later charges may go below zero. Default: one burst, or the number of the rate.
    pub(super) max_debt: Option<u32>,
}

#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Deserialize,
    serde::Serialize,
    JsonSchema,
    strum::Display,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Algorithm {
    #[default]
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    // Of rules of `concurrency`, which have no field for it. A doc comment would put it into the schema.
    #[serde(skip)]
    Concurrency,
}

impl Algorithm {
    /// Whether the algorithm has a field.
    pub(super) fn has(self, field: &str) -> bool {
        ONLY.iter().find(|(name, _)| *name == field).is_none_or(|(_, only)| only.contains(&self))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Align {
    Utc,
    First,
}

/// `refuse`, or a part beyond the limit.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged, inline)]
pub(super) enum OverValue {
    Text(Refuse),
    Mapping(OverFields),
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Refuse {
    Refuse,
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename = "`over`")]
#[schemars(rename = "over", extend("x-place" = "`over`"))]
pub(super) struct OverFields {
    /// how much of the limit may be used on top of it: such requests pass, marked and charged
    pub(super) soft: Option<PercentText<1, 10_000>>,
    /// how long a caller may go on so, from the first request passed over; then until it has room again. Default: without end.
    #[serde(rename = "for")]
    pub(super) lasts: Option<Time>,
    /// a second quota of so much, used while the pool has room: such requests pass, marked
    pub(super) elastic: Option<PercentText<1, 10_000>>,
}

/// The fields of a shadow rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a candidate")]
#[schemars(rename = "candidate", extend("x-place" = "`candidate`"))]
pub(super) struct CandidateFields {
    #[schemars(description = ALGORITHM)]
    pub(super) algorithm: Option<Algorithm>,
    #[schemars(description = RATE)]
    pub(super) rate: Option<WrittenRate>,
    #[serde(rename = "$limit")]
    #[schemars(flatten)]
    pub(super) limit: LimitFields,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "an override")]
#[schemars(rename = "override", extend("x-place" = "`overrides`"))]
pub(super) struct OverrideFields {
    #[schemars(description = MATCH)]
    pub(super) r#match: Match,
    #[schemars(description = RATE)]
    pub(super) rate: WrittenRate,
    /// how much a full bucket holds. Default: the number of its own rate.
    pub(super) burst: Option<NonZeroU32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "`fleet`")]
#[schemars(rename = "fleet", extend("x-place" = "`fleet` in a rule"))]
pub(super) struct FleetFields {
    /// whether hosts borrow tokens ahead of need, or each request waits for Redis; see Fleet. Default: `borrow`.
    pub(super) mode: Option<FleetMode>,
    /// the treatment of a request when its host holds too few tokens; see Fleet. Default: `ask`.
    pub(super) on_miss: Option<OnMiss>,
    /// the limit while Redis does not answer; see Fleet. Default: `share`.
    pub(super) on_redis_down: Option<Fallback>,
    /// how long a request waits for its remote check at most, 2ms to 50ms; then `on_redis_down` holds; see Fleet. Default: 5ms.
    pub(super) wait: Option<Wait>,
    /// the former name of `wait`
    pub(super) deadline: Option<Wait>,
}

/// The lower bound is the latency of a busy network.
pub(super) type Wait = Time<2, REMOTE_CHECK_WAIT_MAX_MILLIS>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a concurrency rule")]
#[schemars(rename = "concurrency_rule", extend("x-place" = "`concurrency`"))]
pub(super) struct ConcurrencyFields<'n> {
    #[serde(rename = "$common", borrow)]
    #[schemars(flatten)]
    pub(super) common: CommonFields<'n>,
    #[schemars(description = MAX)]
    pub(super) max: Max,
    /// when work counts as ended that is neither released nor renewed, 1s to 7day; see Leases. Default: 60s.
    pub(super) expires: Option<Expires>,
    /// another `max`, measured beside the rule
    pub(super) candidate: Option<ConcurrencyCandidateFields>,
    /// another `max` for some requests: the first entry that matches, after the rows of `overrides_file`
    pub(super) overrides: Option<Vec<Deferred<ConcurrencyOverrideFields>>>,
}

/// Below a second, a pause of the process would expire its leases. Longer work renews its lease.
pub(super) type Expires = Time<SECOND, { 7 * DAY }>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a candidate")]
#[schemars(rename = "concurrency_candidate", extend("x-place" = "`candidate` in `concurrency`"))]
pub(super) struct ConcurrencyCandidateFields {
    #[schemars(description = MAX)]
    pub(super) max: Max,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "an override")]
#[schemars(rename = "concurrency_override", extend("x-place" = "`overrides` in `concurrency`"))]
pub(super) struct ConcurrencyOverrideFields {
    #[schemars(description = MATCH)]
    pub(super) r#match: Match,
    #[schemars(description = MAX)]
    pub(super) max: Max,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "an entry of `exempt`")]
#[schemars(rename = "exemption", extend("x-place" = "`exempt`"))]
pub(super) struct ExemptFields<'n> {
    #[schemars(description = NAME)]
    #[serde(borrow)]
    pub(super) name: Name<'n>,
    #[schemars(description = MATCH)]
    pub(super) r#match: Option<Match>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "an entry of `deny`")]
#[schemars(rename = "denial", extend("x-place" = "`deny`"))]
pub(super) struct DenyFields<'n> {
    #[schemars(description = NAME)]
    #[serde(borrow)]
    pub(super) name: Name<'n>,
    #[schemars(description = MATCH)]
    pub(super) r#match: Option<Match>,
    #[schemars(description = MODE)]
    pub(super) mode: Option<Mode>,
    #[schemars(description = HELP)]
    pub(super) help: Option<HelpText<'n>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "an entry of `prioritize`")]
#[schemars(rename = "priority", extend("x-place" = "`prioritize`"))]
pub(super) struct PrioritizeFields<'n> {
    #[schemars(description = MATCH)]
    pub(super) r#match: Option<Match>,
    /// one of `priorities`
    #[serde(borrow)]
    pub(super) priority: Text<'n>,
}

/// Attributes and their values.
pub(super) type Match = DeferredMap<MatchValues>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a value of `match`")]
#[schemars(rename = "condition", extend("x-place" = "value of `match`"))]
pub(super) struct ConditionFields {
    /// none of these values; an absent attribute never matches
    pub(super) not: Option<Deferred<MatchValues>>,
    /// an address of one of these networks, such as `192.0.2.0/24`
    pub(super) cidr: Option<Deferred<Texts>>,
    /// one of these patterns
    pub(super) glob: Option<Deferred<Texts>>,
    /// whether `glob` is compared without case. Default: `false`.
    pub(super) ignore_case: Option<bool>,
    /// whether the attribute is there at all
    pub(super) present: Option<bool>,
}

/// An attribute of a key.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(untagged, inline)]
pub(super) enum KeyEntry<'n> {
    #[serde(borrow)]
    Text(AttributeName<'n>),
    Mapping(KeyFields<'n>),
}

#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename = "an entry of `key`")]
#[schemars(rename = "key_part", extend("x-place" = "entry of `key`"))]
pub(super) struct KeyFields<'n> {
    /// the attribute whose values are counted apart
    #[serde(borrow)]
    pub(super) attribute: AttributeName<'n>,
    /// whether its letters count in lower case. Default: `false`.
    pub(super) lowercase: Option<bool>,
    /// how many bits of an IPv6 address count; IPv4 stays whole
    #[schemars(extend("maximum" = 128))]
    pub(super) ipv6_prefix: Option<NonZeroU32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a descriptor")]
#[schemars(rename = "descriptor", extend("x-place" = "`descriptors`"))]
pub(super) struct DescriptorFields<'n> {
    /// the key of the entry
    #[serde(borrow)]
    #[schemars(required)]
    pub(super) key: Option<Text<'n>>,
    /// the value of the entry; `*` stands for any run of characters. Default: any value.
    pub(super) value: Option<Text<'n>>,
    /// the limit of descriptors that end here; without it the descriptor leads on, or allows matching requests. Default: no limit.
    pub(super) rate_limit: Option<RateLimitFields<'n>>,
    /// the possible next entries
    pub(super) descriptors: Option<Vec<Deferred<DescriptorFields<'n>>>>,
    /// its own limit is judged and refuses nothing; descriptors below do not inherit it. Default: `false`.
    pub(super) shadow_mode: Option<bool>,
    /// all values that its pattern matches share one counter; it needs a `*`. Default: `false`.
    pub(super) share_threshold: Option<bool>,
    /// its own limit refuses nothing; a request over it passes and is noted as `quota`; not inherited. Default: `false`.
    pub(super) quota_mode: Option<bool>,
    /// read, and without effect. Default: `false`.
    pub(super) detailed_metric: Option<bool>,
    /// read, and without effect. Default: `false`.
    pub(super) value_to_metric: Option<bool>,
    /// read, and without effect
    pub(super) metadata: Option<DeferredMap<AnyValue>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "`rate_limit`")]
#[schemars(rename = "rate_limit", extend("x-place" = "`rate_limit`"))]
pub(super) struct RateLimitFields<'n> {
    #[serde(borrow)]
    /// the length of a window, in small or capital letters; a month is 30 days, a year 365. Default: must be there, unless `unlimited`.
    pub(super) unit: Option<Text<'n>>,
    /// how many may pass in a window; 0 refuses all. Default: `0`.
    pub(super) requests_per_unit: Option<RequestCount>,
    /// everything passes, and nothing is counted. Default: `false`.
    pub(super) unlimited: Option<bool>,
    /// the name of this limit for `replaces`
    #[serde(borrow)]
    pub(super) name: Option<Text<'n>>,
    /// limits that do not count for a request that this one counts for
    pub(super) replaces: Option<Vec<Spanned<ReplacedFields<'n>>>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "an entry of `replaces`")]
#[schemars(rename = "replacement", extend("x-place" = "`replaces`"))]
pub(super) struct ReplacedFields<'n> {
    /// the `name` of the limit that is replaced
    #[serde(borrow)]
    #[schemars(required)]
    pub(super) name: Option<Spanned<Text<'n>>>,
}

/// The algorithms that have a field; all have the others.
pub(super) const ONLY: &[(&str, &[Algorithm])] = &[
    ("burst", &[Algorithm::TokenBucket]),
    ("queue", &[Algorithm::LeakyBucket]),
    ("buckets", &[Algorithm::SlidingWindow]),
    ("align", &[Algorithm::FixedWindow]),
    ("timezone", &[Algorithm::FixedWindow]),
    ("over", NOT_LEAKY),
    ("refused", &[Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingWindow]),
    ("max_debt", NOT_LEAKY),
    ("refund_on", NOT_LEAKY),
];

const NOT_LEAKY: &[Algorithm] =
    &[Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingWindow];

const NAME: &str = "its name in replies, logs and metrics; unique in its domain";

const MATCH: &str = "the attributes that a request must have, all of them, and of a list any value; see Matching. Default: all requests.";

pub(super) const MODE: &str =
    "whether refusals are enforced, only counted, or the rule is not checked. Default: `enforce`.";

const HELP: &str = "one line that a refused caller is shown, at most 512 bytes: a link as a rule";

const ALGORITHM: &str = "how it counts; see Algorithms. Default: `token_bucket`.";

const RATE: &str = "how much in which time, such as `100/s`; see Rates";

const MAX: &str = "how much work at once; see Concurrency";
