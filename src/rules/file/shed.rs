//! The fields of entries of `shed` and their parts.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::Deserialize;

use super::MODE;
use crate::rules::Mode;
use crate::rules::de::{DeferredMap, Scalar, Spanned};
use crate::rules::shed::{QueueAge, Workers};
use crate::rules::values::{AttributeName, DAY, Name, PercentText, SECOND, Text, Time};

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
    pub(in crate::rules) queue_age: Option<QueueAge>,
    /// refuses slowly and by importance while the slots are busy; `{}` takes the defaults. Default: off.
    pub(in crate::rules) workers: Option<Workers>,
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
