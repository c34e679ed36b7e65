//! Work in progress, from its frames to the engine: RELEASE, RENEW and SIGNAL.

use super::answer::Standing;
use super::judge::Asking;
use crate::engine;
use crate::protocol::{Code, Reply, WorkOutcome, encode_reply};
use crate::record::What;

impl Asking<'_> {
    /// Ends a lease, and says whether there was one.
    pub(super) fn release(
        &self,
        id: Option<u64>,
        lease: u64,
        outcome: WorkOutcome,
        replies: &mut Vec<u8>,
    ) -> Standing {
        let outcome = match outcome {
            WorkOutcome::Ok => engine::WorkOutcome::Ok,
            WorkOutcome::Error => engine::WorkOutcome::Error,
            WorkOutcome::Dropped => engine::WorkOutcome::Dropped,
        };
        let ok = self.engine().release(self.session, lease, outcome, self.now);
        if ok && self.shared.recorder.is_on() {
            self.note(What::Ended(lease, outcome));
        }
        done(id, ok, replies)
    }

    /// Starts the time of a lease again, and says whether there is one.
    pub(super) fn renew(&self, id: u64, lease: u64, replies: &mut Vec<u8>) -> Standing {
        let ok = self.engine().renew(self.session, lease, self.now);
        if ok && self.shared.recorder.is_on() {
            self.note(What::Renewed(lease));
        }
        done(Some(id), ok, replies)
    }

    /// Takes a reading that the application pushes.
    pub(super) fn signal(
        &self,
        id: Option<u64>,
        pool: &str,
        name: &str,
        permille: u16,
        replies: &mut Vec<u8>,
    ) -> Standing {
        #[cfg(all(debug_assertions, feature = "test-hooks"))]
        assert!(name != PANIC_SIGNAL, "asked to panic");
        let taken = self.engine().signal(self.session, pool, name, permille, self.now);
        if taken.is_ok() && self.shared.recorder.is_on() {
            self.note(What::Signal { name: name.into(), permille });
        }
        match (taken, id) {
            (Err(not_its_pool), Some(_)) => {
                self.shared.telemetry.error(Code::NotAllowed);
                let message = format!("{not_its_pool}, which `{pool}` is not");
                encode_reply(replies, &Reply::Error { id, code: Code::NotAllowed, message: &message });
                Standing::Kept
            }
            (Err(_), None) => {
                self.shared.telemetry.error(Code::NotAllowed);
                Standing::Kept
            }
            (Ok(()), id) => done(id, true, replies),
        }
    }
}

/// The signal that makes a debug build panic, so that tests see a panic outside a judgement.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
const PANIC_SIGNAL: &str = "debug-panic";

/// Replies, unless the client wants no reply.
fn done(id: Option<u64>, ok: bool, replies: &mut Vec<u8>) -> Standing {
    if let Some(id) = id {
        encode_reply(replies, &Reply::Done { id, ok });
    }
    Standing::Kept
}
