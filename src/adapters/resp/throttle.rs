//! The token buckets of CL.THROTTLE, whose quotas are in the requests: one for each key and quota, in memory alone.

use crate::adapters::digest_table::DigestTable;
use crate::clock::{Micros, Timestamp};
use crate::limit::token_bucket::{GcraState, TokenBucketQuota};
use crate::limit::{Outcome, Rate, TickScale};

/// The buckets, each as its arrival time on the finest scale, so that all can be compared.
#[derive(Debug, Default)]
pub(in crate::adapters) struct ThrottleTable {
    /// The quotas in use, each with the time at which all its buckets are full.
    quotas: Vec<([i64; 3], Timestamp)>,
    pub(super) buckets: DigestTable<1>,
}

impl ThrottleTable {
    /// Judges a request of `cost` units under a quota: `max_burst`, `count`, `period` in seconds. Returns the answer of
    /// redis-cell: 1 if it is limited, the limit, the remaining units, and the seconds until a retry and until the bucket is full.
    pub(super) fn judge(
        &mut self,
        key: &[u8],
        numbers: [i64; 3],
        cost: u64,
        now: Timestamp,
    ) -> Result<[i64; 5], String> {
        let quota = read_quota(numbers)?;
        self.enter_quota(numbers, now, now.after(quota.window().into()))?;
        let until_full =
            |[arrival]: &[u64; 1]| GcraState::from_arrival(*arrival).ticks_until_full(TickScale::FINEST, now);
        // A larger cost is above every burst too.
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let (outcome, after) = self.buckets.update(&(numbers, key), until_full, |bucket| {
            let full = GcraState::full(TickScale::FINEST, now);
            let state = bucket.map_or(full, |[arrival]| GcraState::from_arrival(arrival));
            let (outcome, after) = state.judge(&quota, now, cost);
            ((after != state).then(|| [after.arrival()]), (outcome, after))
        });
        // Whole milliseconds, rounded up, as in redis-cell.
        let seconds = |millis: u64| millis.div_ceil(1_000).cast_signed();
        let retry = match outcome {
            Outcome::Later(Micros(micros)) => seconds(micros / 1_000),
            _ => -1,
        };
        let reset = seconds(after.ticks_until_full(TickScale::FINEST, now) / TICKS_PER_MILLI);
        let remaining = after.level(&quota, now).remaining.cast_signed();
        Ok([i64::from(!outcome.is_allowed()), quota.burst().into(), remaining, retry, reset])
    }

    /// Notes the use of a quota. A new one takes the place of one whose buckets are full.
    fn enter_quota(&mut self, quota: [i64; 3], now: Timestamp, full_at: Timestamp) -> Result<(), String> {
        let known = self.quotas.iter().position(|(known, _)| *known == quota);
        let unused = || self.quotas.iter().position(|(_, full_at)| *full_at <= now);
        let index = known.or_else(unused).unwrap_or(self.quotas.len());
        if index == QUOTAS_MAX {
            return Err(format!("{QUOTAS_MAX} quotas are in use: use the same for all keys"));
        }
        self.quotas.splice(index..self.quotas.len().min(index + 1), [(quota, full_at)]);
        Ok(())
    }
}

/// Makes the quota of these numbers, with a burst of `max_burst` + 1.
fn read_quota([max_burst, count, period]: [i64; 3]) -> Result<TokenBucketQuota, String> {
    let burst = u32::try_from(max_burst).ok().filter(|burst| *burst < u32::MAX - 1);
    let nanos = u64::try_from(period).ok().and_then(|seconds| seconds.checked_mul(1_000_000_000));
    let (Some(burst), Ok(count), Some(nanos)) = (burst, u32::try_from(count), nanos) else {
        return Err("max_burst, count or period is negative or too large".to_owned());
    };
    let rate = Rate::new(count, nanos);
    let quota = rate.and_then(|rate| TokenBucketQuota::on_scale(rate, burst + 1, TickScale::FINEST));
    quota.map_err(|error| error.to_string())
}

/// Applications have a few. A client that makes up quotas would never be limited.
const QUOTAS_MAX: usize = 256;

const TICKS_PER_MILLI: u64 = 1_000_000 * TickScale::FINEST.ticks_per_nano() as u64;

#[cfg(test)]
mod tests;
