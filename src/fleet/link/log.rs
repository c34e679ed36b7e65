//! The log of one server: one line per change of state, rate-limited. It names the server and the class of
//! failure, never a key or a password.

use super::failure::LinkError;
use super::node::NodeState;
use crate::clock::{Timestamp, read_boot_nanos};

#[derive(Debug)]
pub(super) struct ServerLog {
    url: String,
    logged: Option<Option<LinkError>>,
    since: Timestamp,
    lines: u32,
    suppressed: u64,
}

impl ServerLog {
    pub(super) fn new(url: String) -> ServerLog {
        ServerLog { url, logged: None, since: Timestamp::ORIGIN, lines: 0, suppressed: 0 }
    }

    /// Logs a state unless it is the last one logged.
    pub(super) fn log(&mut self, state: &NodeState) {
        let news = match state {
            NodeState::Starting => return,
            NodeState::Up => None,
            NodeState::Down(error) => Some(error.clone().of_unsent()),
        };
        if self.logged.as_ref() == Some(&news) {
            return;
        }
        if !self.admit(Timestamp::from_nanos(read_boot_nanos())) {
            self.suppressed += 1;
            return;
        }
        let (redis, unsaid) = (&*self.url, std::mem::take(&mut self.suppressed));
        match &news {
            None => tracing::info!(redis, unsaid, "connected to Redis"),
            Some(error) => {
                let class = error.class.name();
                tracing::warn!(redis, class, unsaid, "no connection to Redis: {error}; probing goes on");
            }
        }
        self.logged = Some(news);
    }

    fn admit(&mut self, now: Timestamp) -> bool {
        if self.lines == 0 || now.since(self.since) >= PERIOD {
            (self.since, self.lines) = (now, 0);
        }
        self.lines += 1;
        self.lines <= LINES_MAX
    }
}

/// Lines per period: a flapping server changes several times a second.
const LINES_MAX: u32 = 6;
const PERIOD: std::time::Duration = std::time::Duration::from_secs(60);
