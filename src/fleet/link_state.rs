//! The state of the link to Redis and the schedule of heartbeats. Pure: time is an argument.
//!
//! ```text
//!   linked ──── a command was sent, no reply for max(1 s, timeout) ────▶ outage
//!     ▲     (0.3 s without a connection, 0.1 s if it refuses all)        │
//!     ▲                                                                  │
//!     └───────── any reply ◀──── a heartbeat after 0.1–1 s (random) ◀────┘
//! ```
//!
//! The time without any reply decides, not the age of one command: with 30 % of replies lost Redis still counts
//! as reachable.

use super::rng::Rng;
use crate::clock::Timestamp;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct LinkState {
    linked: bool,
    /// The time of the first command since the last reply.
    waiting: Option<Timestamp>,
    /// Redis has refused a command since its last reply, as it does with all commands.
    is_refusing: bool,
    heartbeat: Timestamp,
    rng: Rng,
}

impl LinkState {
    /// Starts without a link; a heartbeat is due at once.
    pub fn new(seed: u64, now: Timestamp) -> LinkState {
        LinkState { linked: false, waiting: None, is_refusing: false, heartbeat: now, rng: Rng::new(seed) }
    }

    pub fn is_linked(&self) -> bool {
        self.linked
    }

    /// The next time to check if no event comes before: a heartbeat is due or an outage begins.
    pub fn next(&self, is_connected: bool, timeout: Duration) -> Timestamp {
        self.silent_until(is_connected, timeout).map_or(self.heartbeat, |until| until.min(self.heartbeat))
    }

    /// Returns whether a heartbeat is due, and if so schedules the next: after 1 s, sooner in an outage.
    pub fn accepts_heartbeat(&mut self, now: Timestamp) -> bool {
        if now < self.heartbeat {
            return false;
        }
        self.heartbeat = if self.linked { now.after(HEARTBEAT_EVERY) } else { self.probe_after(now) };
        true
    }

    /// Makes a heartbeat due now, unless Redis is unreachable.
    pub fn hasten(&mut self, now: Timestamp) {
        if self.linked {
            self.heartbeat = self.heartbeat.min(now);
        }
    }

    pub fn sent(&mut self, now: Timestamp) {
        self.waiting.get_or_insert(now);
    }

    /// Records a reply to any command, which ends an outage.
    pub fn record_reply(&mut self, now: Timestamp) {
        self.waiting = None;
        self.is_refusing = false;
        if !std::mem::replace(&mut self.linked, true) {
            self.heartbeat = now.after(COUNTED_AGAIN_AFTER);
        }
    }

    /// Records an error reply that says that Redis runs no command.
    pub fn record_refusal(&mut self) {
        self.is_refusing = true;
    }

    /// Schedules an early heartbeat after one without a reply, as Redis may just have lost it.
    pub fn heartbeat_failed(&mut self, now: Timestamp) {
        if self.linked {
            self.heartbeat = self.heartbeat.min(now.after(self.rng.up_to(PROBE_MIN)));
        }
    }

    /// Probes at once after a reconnection during an outage.
    pub fn connected(&mut self, now: Timestamp) {
        if !self.linked {
            self.heartbeat = self.heartbeat.min(now);
        }
    }

    /// Detects an outage: no reply for `timeout` and at least 1 s, or, without a connection, for the time of the first
    /// attempts to reconnect.
    pub fn detect_outage(&mut self, is_connected: bool, timeout: Duration, now: Timestamp) {
        if self.silent_until(is_connected, timeout).is_some_and(|until| until < now) {
            self.linked = false;
            self.heartbeat = self.probe_after(now);
        }
    }

    /// The end of the allowed time without replies, if a command waits and no outage is on.
    fn silent_until(&self, is_connected: bool, timeout: Duration) -> Option<Timestamp> {
        let silent_max = match (self.is_refusing, is_connected) {
            (true, _) => REFUSED_MAX,
            (false, true) => timeout.max(SILENT_MAX),
            (false, false) => GONE_MAX,
        };
        self.waiting.filter(|_| self.linked).map(|since| since.after(silent_max))
    }

    /// Full jitter, so that hosts that lost Redis together do not return together.
    fn probe_after(&mut self, now: Timestamp) -> Timestamp {
        now.after(PROBE_MIN + self.rng.up_to(PROBE_SPAN))
    }
}

const HEARTBEAT_EVERY: Duration = Duration::from_secs(1);

/// Time from reconnection to the first heartbeat: hosts that start or return together take too large shares
/// until all are counted.
const COUNTED_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// The minimum time without replies before an outage.
const SILENT_MAX: Duration = Duration::from_secs(1);

/// Reconnecting takes 0.1 to 0.2 s. Without a connection after this time the host does better with its local
/// share, as it has only its borrowed tokens meanwhile.
const GONE_MAX: Duration = Duration::from_millis(300);

/// Clear refusals need no longer proof than that none of several commands runs.
const REFUSED_MAX: Duration = Duration::from_millis(100);

const PROBE_MIN: Duration = Duration::from_millis(100);

const PROBE_SPAN: Duration = Duration::from_millis(900);
