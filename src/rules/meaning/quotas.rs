//! Converts the written numbers to quotas: one for the rule and one per distinct override, all on one scale.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use super::limits::{Numbers, WrittenOver as Written};
use super::overrides::{OverrideQuota, OverridesReader};
use crate::limit::concurrency::ConcurrencyQuota;
use crate::limit::fixed_window::{FixedWindowQuota, WindowAlign};
use crate::limit::leaky_bucket::LeakyBucketQuota;
use crate::limit::sliding_log::SlidingLogQuota;
use crate::limit::sliding_window::SlidingWindowQuota;
use crate::limit::token_bucket::TokenBucketQuota;
use crate::limit::{LimitError, Quota, Rate, TickScale};
use crate::rules::de::FileNode;
use crate::rules::file::{Algorithm, Align};
use crate::rules::percent::{self, Percent, WHOLE};
use crate::rules::problem::ValueProblem;
use crate::rules::rate_text::{WrittenRate, impossible};
use crate::rules::{Allowance, Limit, OverTreatment};

impl Numbers<'_> {
    /// Makes the limit with one allowance per class.
    pub(super) fn limit(&self, overrides: &OverridesReader<'_>) -> Option<Limit> {
        let own = OverrideQuota { rate: self.rate, burst: self.fields.burst.map(u32::from) };
        // The rule's own quota is checked first, so that errors point to its field.
        self.field_of(&own).settle(own.check().and_then(|()| self.allowance(&own, None)))?;
        let all = std::iter::once(&own).chain(&overrides.quotas);
        let scale = self.scale(all.clone());
        // Overrides were checked when read, so only errors of the common scale remain.
        let allowances = all.map(|override_quota| self.allowance(override_quota, scale)).collect();
        let allowances: Vec<_> = self.whole.settle(allowances)?;
        self.about_soft(allowances.first());
        self.about_debt(&allowances);
        let soft_for = match self.over {
            Written::Soft(_, span) => span,
            _ => None,
        };
        let block = self.fields.block.map(|block| block.0);
        Some(Limit { allowances, refused: self.fields.refused.unwrap_or_default(), block, soft_for })
    }

    /// Warns of a soft part of less than one unit.
    fn about_soft(&self, allowance: Option<&Option<Allowance>>) {
        let Some(Some(Allowance { quota, over: OverTreatment::Soft(soft), .. })) = allowance else { return };
        let Written::Soft(share, _) = self.over else { return };
        if soft.limit() == quota.limit() {
            let least = Percent(u32::try_from(WHOLE.div_ceil(u64::from(quota.limit()))).unwrap_or(u32::MAX));
            let message = format!("`soft: {}` of {} is less than one", Percent(share), quota.limit());
            let help = format!("write at least {least}, or leave it out");
            self.mapping.warn_at("over", message, help);
        }
    }

    /// Warns of a debt beyond the range of a key's state.
    fn about_debt(&self, allowances: &[Option<Allowance>]) {
        let most = allowances.iter().flatten().map(|allowance| allowance.quota.debt_max()).min();
        let (Some(written), Some(most)) = (self.fields.max_debt, most) else { return };
        if written > most {
            let message = format!("`max_debt: {written}` is more than a key can owe at this rate");
            self.mapping.warn_at(
                "max_debt",
                message,
                format!("write at most {most}: the rest has no effect"),
            );
        }
    }

    /// Returns the field for an error of the rate together with other fields.
    fn field_of(&self, own: &OverrideQuota) -> FileNode<'_> {
        let is_set = [
            ("burst", self.fields.burst.is_some()),
            ("queue", self.fields.queue.is_some()),
            ("buckets", self.fields.buckets.is_some()),
        ];
        // An unsupported rate is an error of the rate itself.
        let bucket = matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket);
        let rate_alone = bucket && own.rate.steady().is_err();
        let field = is_set.into_iter().find(|(_, is_set)| *is_set && !rate_alone);
        self.mapping.field(field.map_or("rate", |(field, _)| field))
    }

    /// Makes the allowance of this quota; `None` is unlimited. Without `scale`, that of the rate is used.
    pub(super) fn allowance(
        &self,
        override_quota: &OverrideQuota,
        scale: Option<TickScale>,
    ) -> Result<Option<Allowance>, ValueProblem> {
        let Some(quota) = self.quota(override_quota, scale)? else { return Ok(None) };
        let over = match self.over {
            Written::Refuse => OverTreatment::Refuse,
            Written::Soft(share, _) => OverTreatment::Soft(Box::new(softened(&quota, share)?)),
            Written::Elastic(share) => OverTreatment::Elastic(Box::new(share_of(&quota, share, scale)?)),
        };
        let max_debt = self.fields.max_debt.unwrap_or(quota.limit());
        let quota = match quota {
            Quota::SlidingLog(log) => Quota::SlidingLog(log.with_stored_units(most(&log, &over, max_debt))),
            other => other,
        };
        Ok(Some(Allowance { over, max_debt, ..Allowance::new(quota) }))
    }

    fn quota(
        &self,
        override_quota: &OverrideQuota,
        scale: Option<TickScale>,
    ) -> Result<Option<Quota>, ValueProblem> {
        let (count, period) = match override_quota.rate {
            WrittenRate::Unlimited => return Ok(None),
            WrittenRate::AtOnce(max) => return Ok(Some(Quota::Concurrency(ConcurrencyQuota::new(max)))),
            WrittenRate::Every(count, period) => (count, period),
        };
        let wrong = |error: LimitError| impossible(override_quota.rate, error);
        let bucket = || {
            let rate = Rate::new(count, period.nanos()).map_err(wrong)?;
            Ok((rate, scale.unwrap_or(TickScale::for_rate(rate))))
        };
        let quota = match self.algorithm {
            Algorithm::TokenBucket => {
                let (rate, scale) = bucket()?;
                let burst = override_quota.burst.unwrap_or(count);
                let wrong = |error| bucket_wrong(error, &format!("burst {burst}"), rate);
                Quota::TokenBucket(TokenBucketQuota::on_scale(rate, burst, scale).map_err(wrong)?)
            }
            Algorithm::LeakyBucket => {
                let (rate, scale) = bucket()?;
                let queue = self.fields.queue.unwrap_or_default();
                let wrong = |error| bucket_wrong(error, &format!("queue {queue}"), rate);
                Quota::LeakyBucket(LeakyBucketQuota::on_scale(rate, queue, scale).map_err(wrong)?)
            }
            Algorithm::FixedWindow => {
                let align = match (self.fields.align, &self.fields.timezone) {
                    (Some(Align::First), _) => WindowAlign::First,
                    (_, Some(zone)) => calendar_of(&zone.0),
                    (_, None) => WindowAlign::Utc,
                };
                Quota::FixedWindow(FixedWindowQuota::new(count, period, align).map_err(wrong)?)
            }
            Algorithm::SlidingLog => {
                Quota::SlidingLog(SlidingLogQuota::new(count, period.nanos()).map_err(wrong)?)
            }
            Algorithm::SlidingWindow => {
                let buckets = self.fields.buckets.map_or(BUCKETS, u32::from);
                // Values too large for the type are also above the maximum.
                let buckets = u8::try_from(buckets).unwrap_or(u8::MAX);
                Quota::SlidingWindow(SlidingWindowQuota::new(count, period.nanos(), buckets).map_err(wrong)?)
            }
            Algorithm::Concurrency => unreachable!("its rules are read with a `max`: they would not limit"),
        };
        Ok(Some(quota))
    }

    /// Returns the scale on which all rates are exact, including overrides and elastic shares; the finest
    /// scale if that takes more than 128 ticks per nanosecond. `None` for windows, which have no scale.
    fn scale<'t>(&self, all: impl Iterator<Item = &'t OverrideQuota>) -> Option<TickScale> {
        if !matches!(self.algorithm, Algorithm::TokenBucket | Algorithm::LeakyBucket) {
            return None;
        }
        let mut common = TickScale::NANOS;
        for rate in all.filter_map(|override_quota| override_quota.rate.steady().ok().flatten()) {
            let elastic = match self.over {
                Written::Elastic(share) => share_of_rate(rate, share),
                _ => None,
            };
            for rate in [Some(rate), elastic].into_iter().flatten() {
                let Some(both) = common.lcm(TickScale::for_rate(rate)) else {
                    return Some(TickScale::FINEST);
                };
                common = both;
            }
        }
        Some(common)
    }
}

/// Makes the alignment of a time zone. All names of UTC need no lookup in a transition table.
fn calendar_of(zone: &TimeZone) -> WindowAlign {
    let changes = zone.following(Timestamp::MIN).next().is_some();
    if !changes && zone.to_offset(Timestamp::UNIX_EPOCH) == Offset::UTC {
        WindowAlign::Utc
    } else {
        WindowAlign::Zone(zone.clone())
    }
}

fn bucket_wrong(error: LimitError, what: &str, rate: Rate) -> ValueProblem {
    let help = match error {
        LimitError::BurstTooLarge => "write a smaller `burst`, or a faster rate",
        LimitError::QueueTooLong => "write a smaller `queue`, or a faster rate",
        _ => {
            let message = format!("{error} together with the other rates of its rule: {rate}");
            return ValueProblem::new(
                message,
                "write it, or the rates of the overrides, in numbers that have common factors",
            );
        }
    };
    ValueProblem::new(format!("{error}: {what} at {rate}"), help)
}

/// Returns the number of units that a key's log must hold: N and the debt, or the soft limit.
fn most(log: &SlidingLogQuota, over: &OverTreatment, max_debt: u32) -> u32 {
    let soft = match over {
        OverTreatment::Soft(larger) => larger.limit(),
        OverTreatment::Refuse | OverTreatment::Elastic(_) => 0,
    };
    log.count().saturating_add(max_debt).max(soft)
}

/// Makes a quota with a larger limit at the same refill rate.
fn softened(quota: &Quota, share: u16) -> Result<Quota, ValueProblem> {
    let limit = quota.limit();
    let soft = limit.checked_add(percent::of(share, limit));
    let soft = soft.ok_or_else(|| over_wrong("soft", share, limit, &"4294967295 is the largest number"))?;
    with_limit(quota, soft).map_err(|error| over_wrong("soft", share, limit, &error))
}

/// Makes the elastic quota, a share of the first: at least one unit, at a share of the rate.
fn share_of(quota: &Quota, share: u16, scale: Option<TickScale>) -> Result<Quota, ValueProblem> {
    let limit = quota.limit();
    let part = percent::of(share, limit).max(1);
    let made = match quota {
        Quota::TokenBucket(quota) => {
            let rate = share_of_rate(quota.rate(), share).unwrap_or(quota.rate());
            let scale = scale.unwrap_or(TickScale::for_rate(rate));
            TokenBucketQuota::on_scale(rate, part, scale).map(Quota::TokenBucket)
        }
        window => with_limit(window, part),
    };
    made.map_err(|error| over_wrong("elastic", share, limit, &error))
}

pub(super) fn with_limit(quota: &Quota, limit: u32) -> Result<Quota, LimitError> {
    Ok(match quota {
        Quota::TokenBucket(quota) => {
            Quota::TokenBucket(TokenBucketQuota::on_scale(quota.rate(), limit, quota.scale())?)
        }
        // `limit` does not apply: a leaky bucket has no `over`.
        Quota::LeakyBucket(quota) => Quota::LeakyBucket(*quota),
        // Neither soft nor elastic.
        Quota::Concurrency(quota) => Quota::Concurrency(quota.clone()),
        Quota::FleetBudget(quota) => Quota::FleetBudget(quota.clone()),
        Quota::FixedWindow(quota) => Quota::FixedWindow(quota.with_count(limit)?),
        Quota::SlidingLog(quota) => Quota::SlidingLog(quota.with_count(limit)?),
        Quota::SlidingWindow(quota) => Quota::SlidingWindow(quota.with_count(limit)?),
    })
}

/// Returns a share of a rate: exact if representable, else the nearest slower one, at least one per period.
fn share_of_rate(rate: Rate, share: u16) -> Option<Rate> {
    let exact = u64::from(rate.count()) * u64::from(share);
    let factor =
        (1..=WHOLE).rev().find(|factor| WHOLE.is_multiple_of(*factor) && exact.is_multiple_of(*factor))?;
    let count = u32::try_from(exact / factor).ok();
    let period = rate.period_nanos().checked_mul(WHOLE / factor);
    let exact = count.zip(period).and_then(|(count, period)| Rate::new(count, period).ok());
    exact.or_else(|| Rate::new(percent::of(share, rate.count()).max(1), rate.period_nanos()).ok())
}

fn over_wrong(field: &str, share: u16, limit: u32, error: &dyn std::fmt::Display) -> ValueProblem {
    let share = Percent(share);
    ValueProblem::new(format!("{error}: `{field}: {share}` of {limit}"), format!("write a smaller `{field}`"))
}

/// The estimate errs by at most a tenth of the window, with one heap block of 64 bytes per key. A single
/// bucket would need less memory, but errs by a whole window.
const BUCKETS: u32 = 10;
