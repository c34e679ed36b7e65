//! The breaker: when to ask the daemon, and when to log. Reads no clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::fault::Fault;

/// Failures since the last reply, and the pause after several.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: u32,
    failed_at: Option<Instant>,
    until: Option<Instant>,
    pause: Duration,
    logged: LoggedState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LoggedState {
    #[default]
    Nothing,
    Failing,
    Well,
}

/// Whether a request may be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    Send,
    /// After a successful PING.
    Probe,
    Stopped,
}

/// A change to log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Fails,
    AnswersAgain,
}

impl Breaker {
    pub(crate) fn is_open(&self) -> bool {
        self.until.is_some()
    }

    /// Asks for permission. One caller at a time probes; if it never ends, another one follows.
    pub(crate) fn permission(&mut self, now: Instant) -> Permission {
        match self.until {
            None => Permission::Send,
            Some(until) if now < until => Permission::Stopped,
            Some(_) => {
                self.until = Some(now + PAUSE_MAX);
                Permission::Probe
            }
        }
    }

    /// Closes the breaker after a successful probe: one failure opens it again before the next reply.
    pub(crate) fn probed(&mut self) {
        (self.until, self.failures) = (None, FAILURES_MAX - 1);
    }

    /// Counts a reply (`None`) or a failure of an exchange that began at `began`. `chance` is from 0 to 1.
    pub(crate) fn settle(
        &mut self,
        fault: Option<&Fault>,
        began: Instant,
        now: Instant,
        chance: f64,
    ) -> Option<Change> {
        let was_open = self.is_open();
        match fault {
            None => (self.failures, self.until, self.pause) = (0, None, Duration::ZERO),
            // Failures whose waits overlap are one.
            Some(_) if self.failed_at.is_some_and(|at| began < at) => {}
            Some(fault) => {
                self.failures += 1;
                self.failed_at = Some(now);
                if fault.is_absent || was_open || self.failures >= FAILURES_MAX {
                    self.failures = self.failures.max(FAILURES_MAX);
                    self.pause = (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
                    self.until = Some(now + self.pause.mul_f64(0.5 + chance / 2.0));
                }
            }
        }
        // A failure before any reply is logged at once, later ones when the breaker opens.
        let is_failing =
            fault.is_some() && (self.logged != LoggedState::Well || self.failures >= FAILURES_MAX);
        let before = self.logged;
        self.logged = if is_failing { LoggedState::Failing } else { LoggedState::Well };
        match (before, is_failing) {
            (LoggedState::Nothing | LoggedState::Well, true) => Some(Change::Fails),
            (LoggedState::Failing, false) => Some(Change::AnswersAgain),
            _ => None,
        }
    }
}

const FAILURES_MAX: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Breaker, Change, Permission};
    use crate::fault::{Fault, Reason};

    #[test]
    fn opens_after_three_failures_that_do_not_overlap() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let late = Fault::new("late", Reason::Timeout);
        let mut breaker = Breaker::default();
        assert_eq!(breaker.settle(Some(&late), at(0), at(20), 1.0), Some(Change::Fails));
        assert_eq!(breaker.settle(Some(&late), at(19), at(21), 1.0), None, "it overlaps");
        assert_eq!(breaker.settle(Some(&late), at(21), at(40), 1.0), None);
        assert_eq!(breaker.permission(at(40)), Permission::Send);
        assert_eq!(breaker.settle(Some(&late), at(41), at(60), 0.0), None);
        assert_eq!(breaker.permission(at(109)), Permission::Stopped);
        assert_eq!(breaker.permission(at(110)), Permission::Probe, "half of 100 ms");
        assert_eq!(breaker.permission(at(111)), Permission::Stopped, "one at a time");
        // A failed probe doubles the pause.
        assert_eq!(breaker.settle(Some(&late), at(111), at(131), 1.0), None);
        assert_eq!(breaker.permission(at(330)), Permission::Stopped);
        assert_eq!(breaker.permission(at(331)), Permission::Probe);
        breaker.probed();
        assert_eq!(breaker.permission(at(332)), Permission::Send);
        assert_eq!(breaker.settle(None, at(332), at(333), 1.0), Some(Change::AnswersAgain));
        assert_eq!(breaker.settle(Some(&late), at(334), at(340), 1.0), None, "one failure after a reply");
    }

    #[test]
    fn opens_at_once_if_no_process_listens() {
        let start = Instant::now();
        let absent = Fault { is_absent: true, ..Fault::new("absent", Reason::Unreachable) };
        let mut breaker = Breaker::default();
        for round in 1..=10_u32 {
            let now = start + round * Duration::from_secs(10);
            assert_eq!(breaker.settle(Some(&absent), now, now, 1.0).is_some(), round == 1);
            let pause = Duration::from_millis((50 << round).min(2_000));
            assert_eq!(breaker.permission(now + pause - Duration::from_millis(1)), Permission::Stopped);
            assert_eq!(breaker.permission(now + pause), Permission::Probe, "{round}");
        }
    }
}
