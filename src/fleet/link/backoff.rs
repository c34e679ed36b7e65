//! The delay before the next attempt to connect: random, so that the hosts of a fleet do not return together.

use std::time::Duration;

use super::failure::FailureClass;
use crate::fleet::rng::drawn;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// Starts anew after a command was answered.
    pub(super) fn reset(&mut self) {
        self.attempts = 0;
    }

    /// The delay after a failure of this class.
    pub(super) fn wait(&mut self, class: FailureClass) -> Duration {
        self.wait_by(class, u32::from_ne_bytes(drawn()))
    }

    fn wait_by(&mut self, class: FailureClass, chance: u32) -> Duration {
        if class.is_of_rights() {
            // Only an operator can fix it, and each attempt adds to the server's log.
            return RIGHTS_WAIT;
        }
        self.attempts = self.attempts.saturating_add(1);
        let widest = (WAIT_MIN_MS << self.attempts.min(DOUBLINGS_MAX)).min(WAIT_MAX_MS);
        let span = widest - WAIT_MIN_MS;
        Duration::from_millis(WAIT_MIN_MS + ((u64::from(chance) * span) >> u32::BITS))
    }
}

const WAIT_MIN_MS: u64 = 100;
const WAIT_MAX_MS: u64 = 5_000;
const DOUBLINGS_MAX: u32 = 6;
const RIGHTS_WAIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::{Backoff, FailureClass, drawn};

    #[test]
    fn the_range_grows_to_five_seconds_and_ends_there() {
        let mut backoff = Backoff::default();
        let longest: Vec<_> =
            (0..8).map(|_| backoff.wait_by(FailureClass::Down, u32::MAX).as_millis()).collect();
        assert_eq!(longest, [199, 399, 799, 1599, 3199, 4999, 4999, 4999]);
        assert_eq!(
            backoff.wait_by(FailureClass::Down, 0).as_millis(),
            100,
            "the whole range, not its upper end"
        );
        backoff.reset();
        assert!(backoff.wait(FailureClass::Timeout).as_millis() < 200);
        assert_eq!(backoff.wait(FailureClass::Auth).as_secs(), 30);
        assert_eq!(backoff.wait(FailureClass::NoPerm).as_secs(), 30);
    }

    #[test]
    fn no_two_hosts_wait_alike() {
        let waits: std::collections::HashSet<_> = (0..100).map(|_| drawn::<4>()).collect();
        assert!(waits.len() > 90);
    }
}
