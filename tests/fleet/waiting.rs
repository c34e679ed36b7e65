//! Requests of one host that wait for a command, and where the answers come.

use std::sync::{Arc, Mutex};

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{CheckReply, Shortfalls};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::member::HostMember;
use tidegate::fleet::remote_checks::WaitingRequest;

/// One of them: `W` tells which it is.
pub(crate) struct Parked<W> {
    pub(crate) shortfalls: Arc<Shortfalls>,
    /// Whether it has waited before: nobody waits a third time.
    pub(crate) is_second: bool,
    pub(crate) what: W,
    due: Timestamp,
    answer: Slot,
}

type Slot = Arc<Mutex<Option<Option<CheckReply>>>>;

/// All that wait on a host.
pub(crate) struct Waiting<W>(Vec<Parked<W>>);

impl<W> Waiting<W> {
    pub(crate) fn new() -> Waiting<W> {
        Waiting(Vec::new())
    }

    /// A request waits from now on.
    pub(crate) fn park(
        &mut self,
        (shortfalls, what, is_second): (Arc<Shortfalls>, W, bool),
        member: &mut HostMember,
        now: Now,
        out: &mut Vec<ScriptCommand>,
    ) {
        let answer = Slot::default();
        let to = Arc::clone(&answer);
        let on_reply = Box::new(move |brought| {
            *to.lock().unwrap() = Some(brought);
            Arc::strong_count(&to) > 1
        });
        let due = now.at.after(shortfalls.patience);
        member.start_check(WaitingRequest { shortfalls: Arc::clone(&shortfalls), due, on_reply }, now, out);
        member.tend_permits(now, out);
        self.0.push(Parked { shortfalls, is_second, what, due, answer });
    }

    /// Those whose clients go now, whatever comes for them: nobody waits for it any more.
    pub(crate) fn forget(&mut self, mut leaves: impl FnMut() -> bool) {
        self.0.retain(|_| !leaves());
    }

    /// Those that wait for nothing any more, with what came; `None`: nothing did in time.
    pub(crate) fn take_ready(&mut self, now: Now) -> Vec<(Parked<W>, Option<CheckReply>)> {
        let mut ready = Vec::new();
        for parked in std::mem::take(&mut self.0) {
            let brought = parked.answer.lock().unwrap().take();
            match brought {
                None if parked.due > now.at => self.0.push(parked),
                brought => ready.push((parked, brought.flatten())),
            }
        }
        ready
    }
}
