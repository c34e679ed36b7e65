//! The way from the threads that decide to the one that talks: bounded, and nobody waits on it.

use crate::clock::Timestamp;
use crate::engine::{Ask, OnBrought, Ticket};
use std::fmt;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// A request waits for this.
pub struct Question {
    /// What it lacks.
    pub ticket: Arc<Ticket>,
    /// Until then.
    pub due: Timestamp,
    /// Where the answer goes.
    pub on_brought: OnBrought,
}

/// Where questions go.
#[derive(Clone, Debug)]
pub struct Questions(Sender<Question>);

impl Questions {
    /// The way, and its end.
    #[must_use]
    pub fn new() -> (Questions, Receiver<Question>) {
        let (to, from) = channel(QUESTIONS_MAX);
        (Questions(to), from)
    }
}

impl Ask for Questions {
    fn ask(&self, ticket: Arc<Ticket>, due: Timestamp, on_brought: OnBrought) -> bool {
        self.0.try_send(Question { ticket, due, on_brought }).is_ok()
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// Questions that nobody has looked at yet: more than are asked in ten milliseconds.
const QUESTIONS_MAX: usize = 1_024;
