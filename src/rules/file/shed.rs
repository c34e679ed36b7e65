//! The fields of entries of `shed` and their parts.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::Deserialize;

use super::MODE;
use crate::rules::Mode;
use crate::rules::de::{DeferredMap, Scalar, Spanned};
use crate::rules::values::{AttributeName, DAY, Fraction, Name, PercentText, SECOND, Text, Time};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "an entry of `shed`")]
#[schemars(rename = "shed_entry", extend("x-place" = "`shed`"))]
pub(in crate::rules) struct ShedFields<'n> {
    /// the pool that is watched over, in one entry of one domain only
    #[serde(borrow)]
    pub(in crate::rules) pool: Name<'n>,
    /// how many requests its processes work on at once, when they do not say. Default: unknown.
    pub(in crate::rules) slots: Option<NonZeroU32>,
    /// the attributes of one caller, whose requests are refused or allowed together. Default: `{by: [user, ip], rotate: 10min}`.
    pub(in crate::rules) callers: Option<CallersFields<'n>>,
    /// refuses requests that waited too long before they reached the application; `{}` takes the defaults. Default: off.
    pub(in crate::rules) queue_age: Option<QueueAgeFields>,
    /// refuses slowly and by importance while the slots are busy; `{}` takes the defaults. Default: off.
    pub(in crate::rules) workers: Option<WorkersFields>,
    /// refuses at once and by importance while requests queue up; `{}` takes the defaults. Default: off.
    pub(in crate::rules) brake: Option<BrakeFields>,
    /// keeps slots back for the most important. Default: off.
    pub(in crate::rules) fleet: Option<ReserveFields<'n>>,
    /// other readings of how full the host is, by name; see Signals
    pub(in crate::rules) signals: Option<DeferredMap<SignalFields<'n>>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "`callers`")]
#[schemars(rename = "callers", extend("x-place" = "`callers`"))]
pub(in crate::rules) struct CallersFields<'n> {
    /// the first of these attributes that a request has names its caller. Default: `[user, ip]`.
    #[serde(borrow)]
    pub(in crate::rules) by: Option<Vec<Spanned<AttributeName<'n>>>>,
    /// the time in which all callers are drawn anew, 1s to 7day. Default: `10min`.
    pub(in crate::rules) rotate: Option<Rotate>,
}

/// Below a second, a retry would be decided anew.
type Rotate = Time<SECOND, { 7 * DAY }>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "`queue_age`")]
#[schemars(rename = "queue_age", extend("x-place" = "`queue_age`"))]
pub(in crate::rules) struct QueueAgeFields {
    /// how long all but the most important may have waited, up to 60s. Default: `500ms`.
    pub(in crate::rules) others: Option<Age>,
    /// how long the most important may have waited, up to 60s. Default: `2500ms`.
    pub(in crate::rules) critical: Option<Age>,
    #[schemars(description = MODE)]
    pub(in crate::rules) mode: Option<Mode>,
}

/// Longer waits reported by requests are not trusted.
type Age = Time<1, { 60 * SECOND }>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "`workers`")]
#[schemars(rename = "workers", extend("x-place" = "`workers`"))]
pub(in crate::rules) struct WorkersFields {
    /// below this share of busy slots the host recovers. Default: `70%`.
    pub(in crate::rules) good: Option<PercentText>,
    /// above this share of busy slots it sheds more. Default: `80%`.
    pub(in crate::rules) bad: Option<PercentText>,
    /// at full load from rest, the time to the first refusal, 1s to 1day. Default: `28s`.
    pub(in crate::rules) after: Option<After>,
    /// at full load, the time from the first refusal to the last, 30s to 1day; less than 60s is warned of. Default: `120s`.
    pub(in crate::rules) full: Option<Full>,
    /// by how much it recovers in a second between `good` and `bad`: a fraction, or 0. Default: `1/1800`, with `stripe_exact` 0.
    pub(in crate::rules) leak: Option<Fraction>,
    /// whether the most important is shed as well, last. Default: `false`.
    pub(in crate::rules) shed_critical: Option<bool>,
    /// the law as it was published: no leak, a fresh draw for each request. Default: `false`.
    pub(in crate::rules) stripe_exact: Option<bool>,
    #[schemars(description = MODE)]
    pub(in crate::rules) mode: Option<Mode>,
}

/// Shedding that starts after more than a day is no protection.
type After = Time<SECOND, DAY>;

/// Below 30 s the control loop is unstable, as its effect is measured about 5 s late.
type Full = Time<{ 30 * SECOND }, DAY>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "`brake`")]
#[schemars(rename = "brake", extend("x-place" = "`brake`"))]
pub(in crate::rules) struct BrakeFields {
    /// the share of the slots that a priority may use while the brake is on: the least important first, one for each but the most important. Default: evenly from `70%` to `90%`.
    pub(in crate::rules) bands: Option<Vec<Spanned<PercentText<0>>>>,
    #[schemars(description = MODE)]
    pub(in crate::rules) mode: Option<Mode>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "`fleet` in `shed`")]
#[schemars(rename = "reserve", extend("x-place" = "`fleet` in `shed`"))]
pub(in crate::rules) struct ReserveFields<'n> {
    /// the share of the slots that is kept back
    pub(in crate::rules) reserve: Reserve,
    /// one of `priorities`: less important requests may not use the reserve. Default: the first of `priorities`.
    #[serde(rename = "for", borrow)]
    pub(in crate::rules) reserved_for: Option<Text<'n>>,
    #[schemars(description = MODE)]
    pub(in crate::rules) mode: Option<Mode>,
}

/// A reserve of everything would refuse all other requests.
type Reserve = PercentText<1, 999>;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a signal")]
#[schemars(rename = "signal", extend("x-place" = "`signals`"))]
pub(in crate::rules) struct SignalFields<'n> {
    /// where the application listens: a port such as `:8000`, or the path of a socket; `accept_queue` alone. Default: must be there for `accept_queue`.
    #[serde(borrow)]
    pub(in crate::rules) listen: Option<Text<'n>>,
    /// whether it counts as utilization, or is only shown. Default: `false`.
    #[serde(rename = "use")]
    pub(in crate::rules) counts: Option<bool>,
    /// points `[reading, utilization]` with straight lines in between, 2 to 16. Default: see Signals.
    pub(in crate::rules) map: Option<Vec<Point<'n>>>,
}

/// A sample and its utilization.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "a point")]
#[schemars(inline, extend("title" = "point"))]
pub(in crate::rules) struct Point<'n>(
    #[serde(borrow)] pub(in crate::rules) Spanned<Scalar<'n>>,
    pub(in crate::rules) Spanned<PercentText<0>>,
);
