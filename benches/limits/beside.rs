//! `governor`, compared with the token bucket: keyed, with `String` keys in its default store.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};

use crate::workload::{BURST, REFILL_SECONDS, UserName, Users};

/// A limiter and a buffer for its key.
pub(crate) struct Governor<C: Clock> {
    limiter: RateLimiter<String, DefaultKeyedStateStore<String>, C, NoOpMiddleware<C::Instant>>,
    /// Rewritten for each request: a million keys on the heap would cost two cache misses each.
    key: String,
    time: Virtual,
}

/// Virtual time, as the engine gets it: the engine reads no clock for a decision either.
#[derive(Clone, Debug, Default)]
pub(crate) struct Virtual(Arc<AtomicU64>);

impl Clock for Virtual {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::from(self.0.load(Ordering::Relaxed))
    }
}

impl Governor<Virtual> {
    pub(crate) fn new() -> Governor<Virtual> {
        let time = Virtual::default();
        Governor::with(time.clone(), time)
    }
}

impl Governor<DefaultClock> {
    /// With its default clock.
    pub(crate) fn with_own_clock() -> Governor<DefaultClock> {
        Governor::with(DefaultClock::default(), Virtual::default())
    }
}

impl<C: Clock> Governor<C> {
    fn with(clock: C, time: Virtual) -> Governor<C> {
        let quota = Quota::with_period(Duration::from_secs(REFILL_SECONDS))
            .zip(NonZeroU32::new(BURST as u32))
            .map(|(quota, burst)| quota.allow_burst(burst))
            .unwrap_or_else(|| panic!("neither is zero"));
        let limiter = RateLimiter::new(quota, DefaultKeyedStateStore::default(), clock);
        Governor { limiter, key: String::new(), time }
    }

    /// With a state for each caller.
    pub(crate) fn filled(mut self, callers: u32) -> Governor<C> {
        (0..callers).for_each(|user| self.decide(user));
        self
    }

    pub(crate) fn run(&mut self, users: &mut Users, decisions: u32) {
        for _ in 0..decisions {
            self.time.0.store(self.time.0.load(Ordering::Relaxed) + 1_000, Ordering::Relaxed);
            self.decide(users.draw());
        }
    }

    #[inline]
    fn decide(&mut self, user: u32) {
        self.key.clear();
        self.key.push_str(UserName::new(user).as_str());
        assert!(self.limiter.check_key(&self.key).is_ok(), "none is refused");
    }
}
