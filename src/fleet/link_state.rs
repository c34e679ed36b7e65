//! Whether Redis is heard, and when to say that this host is alive. Pure: time is an argument.
//!
//! ```text
//!   heard ──── something was sent, and nothing has come for max(1 s, timeout) ────▶ cut off
//!     ▲                 (0.3 s, where there is no connection either)                   │
//!     ▲                                                                                │
//!     └───────────── any answer ◀──── a beat after 0.1–1 s, drawn at random ◀──────────┘
//! ```
//!
//! What counts is silence, not the age of one call: where three replies of ten are lost, Redis is heard all the same.

use super::dice::Dice;
use crate::clock::Timestamp;
use std::time::Duration;

/// How a host stands with one Redis.
#[derive(Clone, Debug)]
pub struct LinkState {
    linked: bool,
    /// Since when somebody waits, nothing having come since.
    waiting: Option<Timestamp>,
    beat: Timestamp,
    dice: Dice,
}

impl LinkState {
    /// Nothing heard yet; a beat is due at once.
    #[must_use]
    pub fn new(seed: u64, now: Timestamp) -> LinkState {
        LinkState { linked: false, waiting: None, beat: now, dice: Dice::new(seed) }
    }

    /// Whether Redis is heard.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        self.linked
    }

    /// When to look again, if nothing is sent and nothing comes before: a beat is due, or it has been silent for too long.
    #[must_use]
    pub fn next(&self, is_connected: bool, timeout: Duration) -> Timestamp {
        self.silent_until(is_connected, timeout).map_or(self.beat, |until| until.min(self.beat))
    }

    /// Whether a beat is to be sent now. It says so once: another is due a second later, or sooner, as long as nothing
    /// is heard.
    pub fn takes_beat(&mut self, now: Timestamp) -> bool {
        if now < self.beat {
            return false;
        }
        self.beat = if self.linked { now.after(BEAT_EVERY) } else { self.probe_after(now) };
        true
    }

    /// A call of any kind was sent.
    pub fn sent(&mut self, now: Timestamp) {
        self.waiting.get_or_insert(now);
    }

    /// An answer to any call has come. Returns whether that ends an outage.
    pub fn heard(&mut self, now: Timestamp) -> bool {
        self.waiting = None;
        let begins = !self.linked;
        self.linked = true;
        if begins {
            self.beat = now.after(COUNTED_AGAIN_AFTER);
        }
        begins
    }

    /// A beat was not answered in time. As long as Redis may just have lost it, another is not waited for.
    pub fn beat_failed(&mut self, now: Timestamp) {
        if self.linked {
            self.beat = self.beat.min(now.after(self.dice.up_to(PROBE_MIN)));
        }
    }

    /// There is a connection again: as long as nothing is heard, that is a moment to try.
    pub fn connected(&mut self, now: Timestamp) {
        if !self.linked {
            self.beat = self.beat.min(now);
        }
    }

    /// Looks whether it has been silent for too long: for `timeout`, and for a second; where there is no connection, for as
    /// long as the first attempts to have one again take. Returns whether that begins an outage.
    pub fn is_cut_off(&mut self, is_connected: bool, timeout: Duration, now: Timestamp) -> bool {
        let begins = self.silent_until(is_connected, timeout).is_some_and(|until| until < now);
        if begins {
            self.linked = false;
            self.beat = self.probe_after(now);
        }
        begins
    }

    /// Until when it may be silent, if somebody waits and it is not cut off.
    fn silent_until(&self, is_connected: bool, timeout: Duration) -> Option<Timestamp> {
        let silent_max = if is_connected { timeout.max(SILENT_MAX) } else { GONE_MAX };
        self.waiting.filter(|_| self.linked).map(|since| since.after(silent_max))
    }

    /// Full jitter, so that hosts that lost Redis together do not come back together.
    fn probe_after(&mut self, now: Timestamp) -> Timestamp {
        now.after(PROBE_MIN + self.dice.up_to(PROBE_SPAN))
    }
}

/// How often a host says that it is alive.
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// Others may begin, or come back, at the same moment: as long as they are not counted, each takes a larger part than its own.
const COUNTED_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Nothing is taken for an outage before this.
const SILENT_MAX: Duration = Duration::from_secs(1);

/// A lost connection is made anew after 0.1 to 0.2 s. Who has none by now is better off with a part of his own: meanwhile a
/// host has only what is in its hands.
const GONE_MAX: Duration = Duration::from_millis(300);

const PROBE_MIN: Duration = Duration::from_millis(100);

const PROBE_SPAN: Duration = Duration::from_millis(900);

#[cfg(test)]
mod tests {
    use super::LinkState;
    use crate::clock::Timestamp;
    use std::time::Duration;

    #[test]
    fn who_has_just_been_heard_asks_soon_again_how_many_there_are() {
        let start = Timestamp::default();
        let at = |ms: u64| start.after(Duration::from_millis(ms));
        let mut link = LinkState::new(1, start);
        let mut beats = Vec::new();
        for ms in 0..2_500 {
            if link.takes_beat(at(ms)) {
                beats.push(ms);
                link.sent(at(ms));
                link.heard(at(ms));
            }
        }
        assert_eq!(beats, [0, 250, 1_250, 2_250]);
    }

    #[test]
    fn silence_is_an_outage_after_a_second_and_sooner_where_there_is_no_connection() {
        let start = Timestamp::default();
        let at = |ms: u64| start.after(Duration::from_millis(ms));
        let quick = Duration::from_millis(250);
        for (is_connected, timeout, silent_ms, is_outage) in [
            (true, quick, 1_000, false),
            (true, quick, 1_001, true),
            (true, Duration::from_secs(2), 2_000, false),
            (true, Duration::from_secs(2), 2_001, true),
            (false, Duration::from_secs(2), 300, false),
            (false, Duration::from_secs(2), 301, true),
        ] {
            let mut link = LinkState::new(1, start);
            link.heard(start);
            assert!(!link.is_cut_off(is_connected, timeout, at(60_000)), "nobody waits for anything");
            link.sent(start);
            let case = format!("{is_connected} {timeout:?} {silent_ms}");
            assert_eq!(link.is_cut_off(is_connected, timeout, at(silent_ms)), is_outage, "{case}");
            assert_eq!(link.is_linked(), !is_outage, "{case}");
            assert!(!link.is_cut_off(is_connected, timeout, at(silent_ms)), "an outage begins once: {case}");
        }
    }
}
