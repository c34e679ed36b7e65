//! Which secret makes the keys, and what waits for cells that go along with a turn.

use super::Talk;
use crate::clock::Now;
use crate::fleet::call::Call;
use crate::fleet::questions::Question;
use tracing::{info, warn};

impl Talk {
    /// Turns to another secret, if it is time.
    pub(super) fn attend_secret(&mut self, now: Now) {
        let turns_us = self.turning.turns_us();
        self.sync.turns(turns_us);
        self.asking.turns(turns_us);
        let Some(choice) = self.turning.turns(self.lasts, now) else { return };
        let before = self.uses.replace((choice.uses, choice.lacks));
        self.engine.use_secret(choice.uses, choice.former.map(|(former, _)| former));
        self.take_budgets();
        if before == Some((choice.uses, choice.lacks)) {
            return;
        }
        if choice.has_turned {
            self.sync.turned(now.at);
            self.asking.turned(now.at);
        }
        let view = self.turning.view(now);
        let secret = view.uses.map(|mark| mark.to_string()).unwrap_or_default();
        if choice.lacks {
            let theirs = view.lacks.map(|mark| mark.to_string()).unwrap_or_default();
            warn!(
                secret,
                theirs,
                "THIS HOST DOES NOT HAVE THE FLEET SECRET THAT IS IN USE: it shares no budget with the hosts that do, until \
                 `fleet_secret_files` names theirs as well"
            );
        } else if before.is_some() {
            info!(secret, "all hosts make keys with another fleet secret from now on, this one as well");
        }
    }

    /// A request waits for a call. One about a key whose cell is on its way waits for that first.
    pub(super) fn ask_one(&mut self, question: Question, now: Now, out: &mut Vec<Call>) {
        // A key is moved before its request is asked about, by a thread that does not wait for this one: what came after the
        // others were taken may have moved since.
        self.sync.take_moved(&self.engine, now.at);
        let is_carried = question.ticket.needs.iter().any(|need| self.sync.is_carried(&need.key));
        if is_carried && now.at < question.due && self.held.len() < HELD_MAX {
            self.held.push(question);
            return;
        }
        let Question { ticket, due, on_brought } = question;
        let due = if is_carried { now.at } else { due };
        let sync = &self.sync;
        self.asking.ask((&*ticket, due), on_brought, |budget| sync.version(budget), now, out);
    }

    /// Requests that waited for cells may ask about them, where these are there.
    pub(super) fn ask_held(&mut self, now: Now, out: &mut Vec<Call>) {
        for question in std::mem::take(&mut self.held) {
            self.ask_one(question, now, out);
        }
    }
}

/// Requests that wait for cells: more than are decided while one is carried; who comes then goes by `on_redis_down`.
const HELD_MAX: usize = 4_096;
