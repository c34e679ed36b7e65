//! The circuit breaker of remote checks: after too many late replies in a row it pauses the checks whose waits are too short
//! for Redis. Checks that wait for longer go on.

use super::PendingChecks;
use crate::clock::Timestamp;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Breaker {
    misses: Misses,
    pause: Option<Pause>,
}

/// Checks one after the other that had no reply in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Misses {
    count: u32,
    /// Their time together.
    waited: Duration,
    last: Timestamp,
    /// The shortest of their waits: a reply that took longer does not end the row.
    wait: Duration,
}

/// No checks with such waits until `probe`, then one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    /// The longest wait that it is about.
    wait: Duration,
    probe: Timestamp,
    after: Duration,
    /// The probe is in flight.
    is_probing: bool,
}

impl Misses {
    const NONE: Misses =
        Misses { count: 0, waited: Duration::ZERO, last: Timestamp::ORIGIN, wait: Duration::MAX };
}

impl Breaker {
    pub(super) const CLOSED: Breaker = Breaker { misses: Misses::NONE, pause: None };

    /// The pause of checks with this wait.
    fn pause_of(&mut self, wait: Duration) -> Option<&mut Pause> {
        self.pause.as_mut().filter(|pause| wait <= pause.wait)
    }
}

impl PendingChecks {
    /// Whether a check with this wait is made now.
    pub(super) fn may_start(&mut self, wait: Duration, now: Timestamp) -> bool {
        if !self.status.is_redis_reachable() {
            return false;
        }
        let Some(pause) = self.breaker.pause_of(wait) else { return true };
        if pause.is_probing || now < pause.probe {
            return false;
        }
        pause.is_probing = true;
        // Only the probe asks Redis; other requests use the local decision meanwhile.
        self.publish_pause();
        true
    }

    /// Counts the late reply of a check with this wait that began at `begun`; after too many, pauses checks and ends those
    /// that it is about. Checks that waited at the same time say the same about Redis, so they count once.
    pub(super) fn missed(&mut self, wait: Duration, begun: Timestamp, now: Timestamp) {
        let (wait, after) = if let Some(pause) = self.breaker.pause_of(wait) {
            if !pause.is_probing {
                return;
            }
            (pause.wait, (pause.after * 2).min(PAUSE_MAX))
        } else {
            let misses = &mut self.breaker.misses;
            if begun < misses.last {
                return;
            }
            misses.count += 1;
            misses.waited += now.since(begun);
            misses.last = now;
            misses.wait = misses.wait.min(wait);
            if misses.count < MISSES_MAX && misses.waited < WAITED_MAX {
                return;
            }
            (misses.wait, PAUSE_MIN)
        };
        self.counts.stopped += 1;
        let probe = now.after(after / 2 + self.rng.up_to(after));
        self.breaker.misses = Misses::NONE;
        self.breaker.pause = Some(Pause { wait, probe, after, is_probing: false });
        self.publish_pause();
        self.dismiss(wait);
    }

    /// Records a reply in time to a check with this wait.
    pub(super) fn answered_in_time(&mut self, wait: Duration, took: Duration) {
        if self.breaker.pause_of(wait).is_some() {
            self.breaker = Breaker::CLOSED;
        } else if took <= self.breaker.misses.wait {
            self.breaker.misses = Misses::NONE;
        }
        self.publish_pause();
    }

    /// Shortens the pause by a reply to any command, which took this time: checks with longer waits go on, and one that came
    /// in time for most requests lets the next check probe.
    pub fn record_reply_after(&mut self, took: Duration, now: Timestamp) {
        let Some(pause) = self.breaker.pause.as_mut().filter(|pause| !pause.is_probing) else { return };
        pause.wait = pause.wait.min(took.max(IN_TIME));
        if took <= IN_TIME {
            pause.probe = now.min(pause.probe);
        }
        self.publish_pause();
    }

    /// Lets the next request probe once the pause is over.
    pub(super) fn offer_probe(&mut self, now: Timestamp) {
        if self.breaker.pause.is_some_and(|pause| !pause.is_probing && pause.probe <= now) {
            self.status.set_late_wait(Duration::ZERO);
        }
    }

    fn publish_pause(&self) {
        if self.status.is_redis_reachable() {
            self.status.set_late_wait(self.breaker.pause.map_or(Duration::ZERO, |pause| pause.wait));
        }
    }
}

/// Late replies one after the other that open the breaker.
const MISSES_MAX: u32 = 5;

/// The time that late replies one after the other may take: where `wait` is long, fewer of them open the breaker.
const WAITED_MAX: Duration = Duration::from_millis(100);

const PAUSE_MIN: Duration = Duration::from_millis(100);

const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The default of `wait`.
const IN_TIME: Duration = Duration::from_millis(5);
