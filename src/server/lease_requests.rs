//! RELEASE, RENEW and SIGNAL, from frames to the engine.

use super::answer::AfterFrame;
use super::request::RequestContext;
use crate::engine;
use crate::protocol::{Code, OutcomeCode, WireReply, encode_reply};
use crate::record::NotedKind;

impl RequestContext<'_> {
    /// Ends a lease, and replies whether there was one.
    pub(super) fn release(
        &self,
        id: Option<u64>,
        lease: u64,
        outcome: OutcomeCode,
        replies: &mut Vec<u8>,
    ) -> AfterFrame {
        let outcome = match outcome {
            OutcomeCode::Ok => engine::WorkOutcome::Ok,
            OutcomeCode::Error => engine::WorkOutcome::Error,
            OutcomeCode::Dropped => engine::WorkOutcome::Dropped,
        };
        let ok = self.engine().release_lease(self.session, lease, outcome, self.now);
        if ok && self.shared.recorder.is_on() {
            self.record(NotedKind::Ended(lease, outcome));
        }
        write_done(id, ok, replies)
    }

    /// Restarts the time of a lease, and replies whether there is one.
    pub(super) fn renew(&self, id: u64, lease: u64, replies: &mut Vec<u8>) -> AfterFrame {
        let ok = self.engine().renew_lease(self.session, lease, self.now);
        if ok && self.shared.recorder.is_on() {
            self.record(NotedKind::Renewed(lease));
        }
        write_done(Some(id), ok, replies)
    }

    /// Takes a sample of a signal that the application pushes.
    pub(super) fn signal(
        &self,
        id: Option<u64>,
        pool: &str,
        name: &str,
        permille: u16,
        replies: &mut Vec<u8>,
    ) -> AfterFrame {
        #[cfg(all(debug_assertions, feature = "test-hooks"))]
        assert!(name != PANIC_SIGNAL, "asked to panic");
        let taken = self.engine().record_pushed_signal(self.session, pool, name, permille, self.now);
        if taken.is_ok() && self.shared.recorder.is_on() {
            self.record(NotedKind::Signal { name: name.into(), permille });
        }
        match (taken, id) {
            (Err(not_its_pool), Some(_)) => {
                self.shared.telemetry.count_error(Code::NotAllowed);
                let message = format!("{not_its_pool}, which `{pool}` is not");
                encode_reply(replies, &WireReply::Error { id, code: Code::NotAllowed, message: &message });
                AfterFrame::Continue
            }
            (Err(_), None) => {
                self.shared.telemetry.count_error(Code::NotAllowed);
                AfterFrame::Continue
            }
            (Ok(()), id) => write_done(id, true, replies),
        }
    }
}

/// The signal that makes a debug build panic, to test a panic outside of a decision.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
const PANIC_SIGNAL: &str = "debug-panic";

/// Writes the reply, unless the client requested none.
fn write_done(id: Option<u64>, ok: bool, replies: &mut Vec<u8>) -> AfterFrame {
    if let Some(id) = id {
        encode_reply(replies, &WireReply::Done { id, ok });
    }
    AfterFrame::Continue
}
