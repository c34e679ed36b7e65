//! The bucket or window of one caller, charged with its admissions at their times of arrival.

use super::{Scenario, Window};

#[derive(Clone, Debug)]
pub(super) struct Oracle {
    rate: f64,
    burst: f64,
    earned_on_the_way: f64,
    level: f64,
    at_us: u64,
    pub(super) excess: f64,
    /// Refused requests that still fit: cost and time of refusal.
    pub(super) refused: Vec<(f64, u64)>,
    /// For a window: time and cost of admissions that count.
    window: Option<(Window, Vec<(u64, f64)>)>,
}

impl Oracle {
    pub(super) fn new(scenario: &Scenario<'_>) -> Oracle {
        let slowest = *scenario.round_trips.iter().max().unwrap();
        let limit = if scenario.window.is_some() { scenario.rate } else { scenario.burst };
        Oracle {
            rate: f64::from(scenario.rate) / 1e6,
            burst: f64::from(limit),
            earned_on_the_way: f64::from(scenario.rate) * slowest as f64 * 1.5 / 1e6,
            level: f64::from(limit),
            at_us: 0,
            excess: 0.0,
            refused: Vec::new(),
            window: scenario.window.map(|window| (window, Vec::new())),
        }
    }

    /// Returns the free tokens at a moment; windows last a second.
    fn free(&mut self, us: u64) -> f64 {
        if let Some((window, admitted)) = &mut self.window {
            // The oldest tenth of a sliding window counts fully until it expires.
            let counts = |at: u64| match window {
                Window::Fixed => at / 1_000_000 == us / 1_000_000,
                Window::Sliding => at / 100_000 + 10 >= us / 100_000,
            };
            admitted.retain(|(at, _)| counts(*at));
            return self.burst - admitted.iter().map(|(_, cost)| cost).sum::<f64>();
        }
        self.level = (self.level + us.saturating_sub(self.at_us) as f64 * self.rate).min(self.burst);
        self.at_us = self.at_us.max(us);
        self.level
    }

    pub(super) fn admits(&mut self, cost: f64, us: u64) {
        let free = self.free(us) - cost;
        match &mut self.window {
            Some((_, admitted)) => admitted.push((us, cost)),
            None => self.level = free,
        }
        self.excess = self.excess.max(-free);
        self.refused.retain(|(cost, until)| us > *until || *cost <= free);
    }

    /// Records a request that arrived now and is refused at `then`.
    pub(super) fn refuses(&mut self, cost: f64, us: u64, then: u64) {
        // At a window edge host clocks differ by half a round trip.
        let turned = match self.window {
            Some((Window::Fixed, _)) => us % 1_000_000 < 10_000,
            Some((Window::Sliding, _)) => us % 100_000 < 10_000,
            None => false,
        };
        // Redis charges half a round trip after arrival, and the host counts from the reply on.
        if !turned && self.free(us) >= cost + self.earned_on_the_way {
            self.refused.push((cost, then));
        }
    }
}
