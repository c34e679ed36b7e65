//! The bucket or window of one caller, charged with its admissions at their times of arrival.

use crate::measure::Bucket;
use crate::plan::Plan;
use crate::rules::Kind;

#[derive(Clone, Debug)]
pub(super) struct Oracle {
    bucket: Bucket,
    burst: f64,
    earned_on_the_way: f64,
    /// Refused requests that still fit: cost and time of refusal.
    pub(super) refused: Vec<(f64, u64)>,
    kind: Kind,
    /// For a window: time and cost of admissions that count.
    admitted: Vec<(u64, f64)>,
}

impl Oracle {
    pub(super) fn new(plan: &Plan) -> Oracle {
        Oracle {
            bucket: Bucket::new(plan, 0.0),
            burst: f64::from(plan.burst),
            earned_on_the_way: f64::from(plan.rate) * plan.slowest_us() as f64 * 1.5 / 1e6,
            refused: Vec::new(),
            kind: plan.kind,
            admitted: Vec::new(),
        }
    }

    /// Returns the free tokens at a moment on the Redis clock; windows last a second.
    fn free(&mut self, us: u64) -> f64 {
        if self.kind.is_window() {
            // The oldest tenth of a sliding window counts fully until it expires.
            let counts = |at: u64| match self.kind {
                Kind::Fixed => at / 1_000_000 == us / 1_000_000,
                _ => at / 100_000 + 10 >= us / 100_000,
            };
            self.admitted.retain(|(at, _)| counts(*at));
            return self.burst - self.admitted.iter().map(|(_, cost)| cost).sum::<f64>();
        }
        self.bucket.refill(us)
    }

    pub(super) fn admits(&mut self, cost: f64, us: u64) {
        let free = self.free(us) - cost;
        if self.kind.is_window() {
            self.admitted.push((us, cost));
        }
        self.bucket.level = free;
        self.refused.retain(|(cost, until)| us > *until || *cost <= free);
    }

    /// Records a request that arrived now and is refused at `then`.
    pub(super) fn refuses(&mut self, cost: f64, us: u64, then: u64) {
        // At a window edge host clocks differ by half a round trip.
        let turned = match self.kind {
            Kind::Fixed => us % 1_000_000 < 10_000,
            Kind::Sliding => us % 100_000 < 10_000,
            _ => false,
        };
        // Redis charges half a round trip after arrival, and the host counts from the reply on.
        if !turned && self.free(us) >= cost + self.earned_on_the_way {
            self.refused.push((cost, then));
        }
    }
}
