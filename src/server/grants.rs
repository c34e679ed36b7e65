//! The grants among the replies that wait to be written: one that cannot be told is taken back. It writes nothing.

use super::Shared;
use crate::engine::Session;

/// Leases, each with where its reply ends.
#[derive(Debug, Default)]
pub(super) struct Grants(Vec<Grant>);

#[derive(Clone, Copy, Debug)]
struct Grant {
    lease: u64,
    /// Past everything, until its reply is whole.
    reply_end: usize,
}

impl Grants {
    /// A lease was granted; its reply is yet to be put into bytes.
    pub(super) fn add(&mut self, lease: u64) {
        self.0.push(Grant { lease, reply_end: usize::MAX });
    }

    /// The reply to the last one ends here.
    pub(super) fn end_at(&mut self, reply_end: usize) {
        if let Some(last) = self.0.last_mut() {
            last.reply_end = reply_end;
        }
    }

    /// So many bytes of the replies were written, and no more will be: what was granted in the others ends.
    pub(super) fn told(&mut self, written: usize, session: &Session, shared: &Shared) {
        for grant in self.0.drain(..).filter(|grant| grant.reply_end > written) {
            shared.engine.take_back(session, grant.lease, shared.clock.now());
        }
        self.0.shrink_to(KEPT);
    }
}

/// Room that a connection keeps from one batch to the next.
const KEPT: usize = 4;
