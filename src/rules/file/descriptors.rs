//! The fields of descriptors. As in the Envoy rate limit service, each is allowed only where it has an effect.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::rules::de::{DeferredList, DeferredMap, Spanned};
use crate::rules::values::{AnyValue, RequestCount, Text};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a descriptor")]
#[schemars(rename = "descriptor", extend("x-place" = "`descriptors`"))]
pub(in crate::rules) struct DescriptorFields<'n> {
    /// the key of the entry
    #[serde(borrow)]
    #[schemars(required)]
    pub(in crate::rules) key: Option<Text<'n>>,
    /// the value of the entry; `*` stands for any run of characters. Default: any value.
    pub(in crate::rules) value: Option<Text<'n>>,
    /// the limit of descriptors that end here; without it the descriptor leads on, or allows matching requests. Default: no limit.
    pub(in crate::rules) rate_limit: Option<RateLimitFields<'n>>,
    /// the possible next entries
    pub(in crate::rules) descriptors: Option<DeferredList<DescriptorFields<'n>>>,
    /// its own limit is judged and refuses nothing; descriptors below do not inherit it. Default: `false`.
    pub(in crate::rules) shadow_mode: Option<bool>,
    /// all values that its pattern matches share one counter; it needs a `*`. Default: `false`.
    pub(in crate::rules) share_threshold: Option<bool>,
    /// its own limit refuses nothing; a request over it passes and is noted as `quota`; not inherited. Default: `false`.
    pub(in crate::rules) quota_mode: Option<bool>,
    /// read, and without effect. Default: `false`.
    pub(in crate::rules) detailed_metric: Option<bool>,
    /// read, and without effect. Default: `false`.
    pub(in crate::rules) value_to_metric: Option<bool>,
    /// read, and without effect
    pub(in crate::rules) metadata: Option<DeferredMap<AnyValue>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "`rate_limit`")]
#[schemars(rename = "rate_limit", extend("x-place" = "`rate_limit`"))]
pub(in crate::rules) struct RateLimitFields<'n> {
    #[serde(borrow)]
    /// the length of a window, in small or capital letters; a month is 30 days, a year 365. Default: must be there, unless `unlimited`.
    pub(in crate::rules) unit: Option<Text<'n>>,
    /// how many may pass in a window; 0 refuses all. Default: `0`.
    pub(in crate::rules) requests_per_unit: Option<RequestCount>,
    /// everything passes, and nothing is counted. Default: `false`.
    pub(in crate::rules) unlimited: Option<bool>,
    /// the name of this limit for `replaces`
    #[serde(borrow)]
    pub(in crate::rules) name: Option<Text<'n>>,
    /// limits that do not count for a request that this one counts for
    pub(in crate::rules) replaces: Option<Vec<Spanned<ReplacedFields<'n>>>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "an entry of `replaces`")]
#[schemars(rename = "replacement", extend("x-place" = "`replaces`"))]
pub(in crate::rules) struct ReplacedFields<'n> {
    /// the `name` of the limit that is replaced
    #[serde(borrow)]
    #[schemars(required)]
    pub(in crate::rules) name: Option<Spanned<Text<'n>>>,
}
