//! The utilization controller: moves a severity by the utilization of the workers. It takes minutes on purpose, so that
//! it neither oscillates nor reacts to a spike. Readings are arguments, and it refuses no request itself.
//!
//! Source: the worker utilization load shedder of Paul Tarjan, “Scaling your API with rate limiters” (Stripe, 2017), and
//! the script published with it. One number, the severity s, moves by a slope a(u) of the utilization u:
//!
//! ```text
//!   a                                   1 ┐           ╱     u below good        u ÷ good − 1, recovering
//!                                         │         ╱       good ≤ u ≤ bad      nothing, or the leak
//!   0 ┼───────────────────╱━━━━━━━━━━━━╱             u above bad         (u − bad) ÷ (1 − bad), at most 1
//!     │             ╱     good        bad
//!  −1 ┘ ╱                                               s ← clamp(s + dt · a ÷ full, −after ÷ full, 1)
//! ```
//!
//! Where it departs from the script, and why:
//!
//! * the severity at rest is a fraction, −28/120; the script divides integers and rests at −1, four times as deep;
//! * above one, u counts as it is and the slope is held at 1; the script's slope becomes an integer there, and stands still;
//! * a step covers at most [`STEP_MAX`]: the script applies one reading to whatever time has passed since the last;
//! * it starts at rest, so that a process just started sheds nothing;
//! * without a reading s is held, then recovers: nothing is shed for long on no evidence;
//! * between `good` and `bad` s may leak away. Without that, a host that settles there sheds for ever. With it, one that
//!   must go on shedding comes to rest at `bad`.

use std::time::Duration;

/// The parameters of the controller. Sensible values have 0 < `good` ≤ `bad` < 1, `after` ≥ 0, `full` > 0, `leak` ≥ 0;
/// others are of little use, but never yield a severity of NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Controller {
    /// The share of busy slots below which the host recovers.
    pub good: f64,
    /// The share of busy slots above which it sheds more.
    pub bad: f64,
    /// Seconds at full load from rest to the first refusal.
    pub after: f64,
    /// Seconds at full load from the first refusal to the last.
    pub full: f64,
    /// The decrease of the severity per second between `good` and `bad`.
    pub leak: f64,
}

/// The severity, between `−after ÷ full` at rest and 1, and the time without readings. Nothing is refused up to 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowSeverity {
    value: f64,
    silent: Duration,
}

impl Controller {
    /// The severity of a host that has been idle for long.
    fn rest(&self) -> f64 {
        let rest = -(self.after / self.full);
        if rest.is_finite() { rest.min(0.0) } else { 0.0 }
    }

    /// The change of the severity per second at this utilization. A negative utilization counts as zero.
    fn per_second(&self, utilization: f64) -> f64 {
        let u = utilization.max(0.0);
        if u < self.good {
            (u / self.good - 1.0).max(-1.0) / self.full
        } else if u <= self.bad {
            -self.leak
        } else {
            // With `bad` at 1 only a signal of the application is above it, which counts as full.
            let way = 1.0 - self.bad;
            let slope = if way > 0.0 { (u - self.bad) / way } else { 1.0 };
            slope.min(1.0) / self.full
        }
    }
}

impl Default for Controller {
    /// The published numbers, with a leak of 1/1800 per second.
    fn default() -> Controller {
        Controller { good: 0.70, bad: 0.80, after: 28.0, full: 120.0, leak: 1.0 / 1_800.0 }
    }
}

impl SlowSeverity {
    /// Makes the severity at rest: nothing is shed, and all of `after` is left.
    pub fn at_rest(controller: &Controller) -> SlowSeverity {
        SlowSeverity { value: controller.rest(), silent: Duration::ZERO }
    }

    /// Makes a severity from its value and the time without readings.
    pub fn restore(controller: &Controller, value: f64, silent: Duration) -> SlowSeverity {
        SlowSeverity {
            value: value.max(controller.rest()).min(1.0),
            silent: silent.min(HOLD_WITHOUT_READINGS),
        }
    }

    /// Returns the severity after a time without readings, of any length: equals the steps without a reading.
    #[must_use]
    pub fn after_missing_readings(mut self, controller: &Controller, elapsed: Duration) -> SlowSeverity {
        self.advance(controller, None, elapsed);
        self
    }

    /// The time without readings, at most the time for which the severity is held.
    pub fn time_without_readings(&self) -> Duration {
        self.silent
    }

    /// The severity s; negative while nothing is refused.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// Whether no step could lower it.
    pub fn is_at_rest(&self, controller: &Controller) -> bool {
        self.value <= controller.rest()
    }

    /// Updates the severity; called about once a second with the time since the last call, of which at most
    /// [`STEP_MAX`] counts.
    ///
    /// `utilization` is a share: 1 is full. Without one (`None`, NaN, infinite) s is held for [`HOLD_WITHOUT_READINGS`], and then moves
    /// as at half of `good`. A negative utilization counts as zero.
    pub fn step(&mut self, controller: &Controller, utilization: Option<f64>, elapsed: Duration) {
        self.advance(controller, utilization.filter(|u| u.is_finite()), elapsed.min(STEP_MAX));
    }

    fn advance(&mut self, controller: &Controller, utilization: Option<f64>, elapsed: Duration) {
        let (utilization, moving) = match utilization {
            Some(utilization) => {
                self.silent = Duration::ZERO;
                (utilization, elapsed)
            }
            None => {
                let held = elapsed.min(HOLD_WITHOUT_READINGS.saturating_sub(self.silent));
                self.silent += held;
                (controller.good / 2.0, elapsed.saturating_sub(held))
            }
        };
        let moved = self.value + controller.per_second(utilization) * moving.as_secs_f64();
        // `max` first: it returns the severity at rest for NaN.
        self.value = moved.max(controller.rest()).min(1.0);
    }
}

/// The longest time that one reading stands for. Two steps, because one may come late; time asleep does not count.
pub const STEP_MAX: Duration = Duration::from_secs(2);

/// The time for which the severity is held without a reading: long enough to restart a source under load.
pub const HOLD_WITHOUT_READINGS: Duration = Duration::from_secs(30);
