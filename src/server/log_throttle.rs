//! Rate limit of a log line, so that a client that retries at once does not fill the disk. The caller writes the line.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Timestamp;

/// The throttle of one log line.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<ThrottleState>);

/// The time of the last line and the events since then.
#[derive(Debug, Default)]
struct ThrottleState {
    logged_at: Option<Timestamp>,
    unlogged: u64,
}

impl LogThrottle {
    /// Counts an event. Returns the number of events since the last line if another line is due.
    pub fn count_event(&self, now: Timestamp) -> Option<u64> {
        let mut state = self.0.lock();
        state.unlogged += 1;
        let due = state.logged_at.is_none_or(|logged| now.since(logged) >= LOG_INTERVAL_MIN);
        due.then(|| {
            state.logged_at = Some(now);
            std::mem::take(&mut state.unlogged)
        })
    }
}

const LOG_INTERVAL_MIN: Duration = Duration::from_secs(10);
