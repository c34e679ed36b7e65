//! Requests of one host that wait for a call, and where the answers come.

use std::sync::{Arc, Mutex};

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{Brought, Ticket};
use tidegate::fleet::asking::Asking;
use tidegate::fleet::call::Call;
use tidegate::fleet::questions::Question;
use tidegate::fleet::sync::Sync;

/// One of them: `W` tells which it is.
pub(crate) struct Parked<W> {
    pub(crate) ticket: Arc<Ticket>,
    /// Whether it has waited before: nobody waits a third time.
    pub(crate) is_second: bool,
    pub(crate) what: W,
    due: Timestamp,
    answer: Slot,
}

type Slot = Arc<Mutex<Option<Option<Brought>>>>;

/// All that wait on a host, and its calls for them.
pub(crate) struct Waiting<W> {
    pub(crate) asking: Asking,
    parked: Vec<Parked<W>>,
    /// Those whose cell is on its way to another name.
    held: Vec<Question>,
}

impl<W> Waiting<W> {
    pub(crate) fn new(asking: Asking) -> Waiting<W> {
        Waiting { asking, parked: Vec::new(), held: Vec::new() }
    }

    /// A request waits from now on.
    pub(crate) fn park(
        &mut self,
        (ticket, what, is_second): (Arc<Ticket>, W, bool),
        sync: &Sync,
        now: Now,
        out: &mut Vec<Call>,
    ) {
        let answer = Slot::default();
        let to = Arc::clone(&answer);
        let on_brought = Box::new(move |brought| drop(to.lock().unwrap().replace(brought)));
        let due = now.at.after(ticket.patience);
        self.ask(Question { ticket: Arc::clone(&ticket), due, on_brought }, sync, now, out);
        self.parked.push(Parked { ticket, is_second, what, due, answer });
    }

    /// As the task of a daemon does it.
    fn ask(&mut self, question: Question, sync: &Sync, now: Now, out: &mut Vec<Call>) {
        let is_carried = question.ticket.needs.iter().any(|need| sync.is_carried(&need.key));
        if is_carried && now.at < question.due {
            self.held.push(question);
            return;
        }
        let Question { ticket, due, on_brought } = question;
        let due = if is_carried { now.at } else { due };
        self.asking.ask((&*ticket, due), on_brought, |budget| sync.version(budget), now, out);
    }

    /// What is to be said again, and of whom the cell may be there by now.
    pub(crate) fn tick(&mut self, sync: &Sync, now: Now, out: &mut Vec<Call>) {
        for question in std::mem::take(&mut self.held) {
            self.ask(question, sync, now, out);
        }
        self.asking.tick(now, out);
    }

    /// Those that wait for nothing any more, with what came; `None`: nothing did in time.
    pub(crate) fn take_ready(&mut self, now: Now) -> Vec<(Parked<W>, Option<Brought>)> {
        let mut ready = Vec::new();
        for parked in std::mem::take(&mut self.parked) {
            let brought = parked.answer.lock().unwrap().take();
            match brought {
                None if parked.due > now.at => self.parked.push(parked),
                brought => ready.push((parked, brought.flatten())),
            }
        }
        ready
    }
}
