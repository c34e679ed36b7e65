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

/// The answers of redis-cell, as its documentation and its formula have them, and the bounds of the table.
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{QUOTAS_MAX, ThrottleTable};
    use crate::adapters::digest_table::KEYS_MAX;
    use crate::clock::Timestamp;

    const SECOND: u64 = 1_000_000_000;

    fn at_millis(millis: u64) -> Timestamp {
        Timestamp::from_nanos(1_000 * SECOND + millis * 1_000_000)
    }

    #[test]
    fn gives_places_of_quotas_whose_buckets_are_full() {
        let mut table = ThrottleTable::default();
        let periods = 1..=i64::try_from(QUOTAS_MAX).unwrap();
        for period in periods.clone() {
            assert_eq!(table.judge(b"k", [0, 1, period], 1, at_millis(0)).unwrap()[0], 0);
        }
        let other = |table: &mut ThrottleTable, millis| table.judge(b"k", [7, 1, 1], 1, at_millis(millis));
        assert!(other(&mut table, 999).unwrap_err().starts_with("256 quotas are in use"));
        // The shortest is full then; the others still refuse.
        assert_eq!(other(&mut table, 1_000).unwrap(), [0, 8, 7, -1, 1]);
        for period in periods.skip(1) {
            assert_eq!(table.judge(b"k", [0, 1, period], 1, at_millis(1_000)).unwrap()[0], 1, "{period}");
        }
        assert_eq!(table.quotas.len(), QUOTAS_MAX);
    }

    /// Beyond its size the table limits on: keys that are soonest full give way, which is counted.
    #[test]
    fn keeps_the_emptiest_buckets_when_it_is_full() {
        let mut table = ThrottleTable::default();
        let day = [0, 1, 86_400];
        for key in 0..100_u32 {
            assert_eq!(table.judge(&key.to_be_bytes(), day, 1, at_millis(0)).unwrap()[0], 0);
        }
        let keys = u32::try_from(2 * KEYS_MAX).unwrap();
        for key in 100..keys {
            let _ = table.judge(&key.to_be_bytes(), [0, 1, 60], 1, at_millis(1));
        }
        assert!(table.buckets.evictions > 0);
        for key in 0..100_u32 {
            assert_eq!(table.judge(&key.to_be_bytes(), day, 1, at_millis(2)).unwrap()[0], 1, "{key}");
        }
        let evictions = table.buckets.evictions;
        for key in keys..keys + 1_000 {
            assert_eq!(table.judge(&key.to_be_bytes(), [0, 1, 60], 0, at_millis(2)).unwrap()[0], 0);
            let _ = table.judge(&key.to_be_bytes(), [0, 1, 60], 1, at_millis(61_000));
        }
        assert_eq!(
            table.buckets.evictions, evictions,
            "a look takes no place, and full buckets give way first"
        );
    }

    /// The formula in exact units of `1/count` ns: theoretical arrival times of each key.
    fn reference(tat: &mut u128, [max_burst, count, period]: [i64; 3], cost: u64, now: u128) -> [i64; 5] {
        let interval = u128::try_from(period).unwrap() * u128::from(SECOND);
        let burst = u128::try_from(max_burst).unwrap() + 1;
        let now = now * u128::try_from(count).unwrap();
        let was = (*tat).max(now);
        let new = was + interval * u128::from(cost);
        let tolerance = interval * burst;
        let is_limited = cost > 0 && new > now + tolerance;
        let ahead = if is_limited { was } else { new } - now;
        if !is_limited {
            *tat = new;
        }
        let seconds = |units: u128| {
            let millis = units / (u128::try_from(count).unwrap() * 1_000_000);
            i64::try_from(millis.div_ceil(1_000)).unwrap()
        };
        // Decisions round up to microseconds first.
        let wait = || (new - now - tolerance).next_multiple_of(u128::try_from(count).unwrap() * 1_000);
        let retry = if is_limited && u128::from(cost) <= burst { seconds(wait()) } else { -1 };
        let remaining = i64::try_from((tolerance - ahead) / interval).unwrap();
        [is_limited.into(), max_burst + 1, remaining, retry, seconds(ahead)]
    }

    proptest! {
        #[test]
        fn agrees_with_the_formula(
            max_burst in 0_i64..40,
            // Divisors of 128 s in ns, so that no rate is rounded.
            count in prop::sample::select(vec![1_i64, 2, 4, 5, 8, 10, 16, 20, 25, 40, 50, 64, 100, 1_000]),
            period in 1_i64..100_000,
            steps in prop::collection::vec((0_usize..3, 0_u64..20_000_000_000, 0_u64..45), 1..200),
        ) {
            let mut table = ThrottleTable::default();
            let (mut tats, mut now) = ([0_u128; 3], 5 * SECOND);
            for (key, later, cost) in steps {
                now += later;
                let quota = [max_burst, count, period];
                let expected = reference(&mut tats[key], quota, cost, now.into());
                let name = [u8::try_from(key).unwrap(), 0xff];
                prop_assert_eq!(table.judge(&name, quota, cost, Timestamp::from_nanos(now)).unwrap(), expected);
            }
        }
    }
}
