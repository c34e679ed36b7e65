//! The sessions of one recording: those already written to the trace, and those about to end.

use std::collections::HashMap;

use super::digest::{RecordingKey, letters};
use super::noted::{EventOrigin, SESSION_BYTES};
use crate::clock::Timestamp;
use crate::engine::OpenSession;

/// The sessions that were written and have not ended.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Per session: the time at which it ends unless a client reconnects.
    told: HashMap<u64, Option<Timestamp>>,
}

/// The name of a session in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionLabel(u64);

impl SessionLabel {
    pub(super) fn of(who: &EventOrigin, key: &RecordingKey) -> SessionLabel {
        SessionLabel::new(who.user, &who.named, key)
    }

    pub(super) fn of_open(open: &OpenSession, key: &RecordingKey) -> SessionLabel {
        let mut named = [1; SESSION_BYTES];
        named.iter_mut().skip(1).zip(open.name).for_each(|(to, from)| *to = from);
        SessionLabel::new(open.user, &named, key)
    }

    fn new(user: u32, named: &[u8], key: &RecordingKey) -> SessionLabel {
        SessionLabel(key.digest("session", &[&user.to_le_bytes(), named].concat()))
    }

    pub(super) fn text(self) -> String {
        letters(self.0)
    }
}

impl Sessions {
    /// Marks a session as connected. Returns whether it still has to be written.
    pub(super) fn is_new(&mut self, label: SessionLabel) -> bool {
        // Beyond the bound the session is written each time; a replay takes that as one more connection.
        let is_full = self.told.len() >= SESSIONS_MAX;
        match self.told.get_mut(&label.0) {
            Some(ends_at) => {
                *ends_at = None;
                false
            }
            None if is_full => true,
            None => {
                self.told.insert(label.0, None);
                true
            }
        }
    }

    /// Sets the time at which a session ends unless a client reconnects.
    pub(super) fn leave(&mut self, label: SessionLabel, ends_at: Timestamp) {
        self.told.get_mut(&label.0).into_iter().for_each(|known| *known = Some(ends_at));
    }

    /// Removes an ended session. Returns whether it was written.
    pub(super) fn end(&mut self, label: SessionLabel) -> bool {
        self.told.remove(&label.0).is_some()
    }

    /// Removes and returns the sessions whose reconnect time has passed.
    pub(super) fn end_due(&mut self, at: Timestamp) -> Vec<SessionLabel> {
        let due = self.told.extract_if(|_, ends_at| ends_at.is_some_and(|ends_at| ends_at <= at));
        due.map(|(label, _)| SessionLabel(label)).collect()
    }
}

/// Four times the concurrent maximum, as dropped events may include the ends of sessions.
const SESSIONS_MAX: usize = 65_536;
