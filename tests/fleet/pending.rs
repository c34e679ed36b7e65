//! Models the pending requests of one host and the replies to them.

use std::sync::{Arc, Mutex};

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{CheckReply, Shortfalls};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::member::HostMember;
use tidegate::fleet::remote_checks::WaitingRequest;

use crate::host::FleetRequest;

pub(crate) struct Pending {
    pub(crate) shortfalls: Arc<Shortfalls>,
    /// Whether it waited before: no request waits a third time.
    pub(crate) is_second: bool,
    pub(crate) request: FleetRequest,
    due: Timestamp,
    answer: Slot,
}

type Slot = Arc<Mutex<Option<Option<CheckReply>>>>;

/// All pending requests of a host.
#[derive(Default)]
pub(crate) struct Waiting(Vec<Pending>);

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add_pending(
        &mut self,
        (shortfalls, request, is_second): (Arc<Shortfalls>, FleetRequest, bool),
        member: &mut HostMember,
        now: Now,
        out: &mut Vec<ScriptCommand>,
    ) {
        let answer = Slot::default();
        let to = Arc::clone(&answer);
        let on_reply = Box::new(move |reply| {
            *to.lock().unwrap() = Some(reply);
            Arc::strong_count(&to) > 1
        });
        let due = now.at.after(shortfalls.patience);
        member.start_check(WaitingRequest { shortfalls: Arc::clone(&shortfalls), due, on_reply }, now, out);
        member.tend_permits(now, out);
        self.0.push(Pending { shortfalls, is_second, request, due, answer });
    }

    /// Drops requests whose clients disconnect now, with any reply.
    pub(crate) fn forget(&mut self, mut leaves: impl FnMut() -> bool) {
        self.0.retain(|_| !leaves());
    }

    /// Returns decided requests with their replies; `None`: timed out.
    pub(crate) fn take_ready(&mut self, now: Now) -> Vec<(Pending, Option<CheckReply>)> {
        let mut ready = Vec::new();
        for pending in std::mem::take(&mut self.0) {
            let reply = pending.answer.lock().unwrap().take();
            match reply {
                None if pending.due > now.at => self.0.push(pending),
                reply => ready.push((pending, reply.flatten())),
            }
        }
        ready
    }
}
