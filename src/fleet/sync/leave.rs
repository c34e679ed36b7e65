//! The final sync: return held tokens and charge debts of each key.

use super::{BatchParts, Engine, IN_FLIGHT_MAX, Now, ScriptCommand, Sync};
use crate::fleet::cell::CellRequest;
use crate::fleet::command::Bucket;

impl Sync {
    /// Emits the final commands; requests must have stopped. Returns whether to call it again for the rest.
    pub fn leave(&mut self, engine: &Engine, now: Now, out: &mut Vec<ScriptCommand>) -> bool {
        if !self.status.is_redis_reachable() {
            return false;
        }
        self.answer_calls(engine, now);
        let mut asks = BatchParts::new();
        let mut is_left = false;
        for number in self.key_table.numbers() {
            if self.is_gathered(&asks, number) {
                is_left = true;
                continue;
            }
            match self.last_words(engine, number, now).unwrap_or(FinalStep::Nothing) {
                FinalStep::Nothing => {}
                FinalStep::Later => is_left = true,
                FinalStep::Ask(bucket, ask) => {
                    is_left = true;
                    self.gather(&mut asks, bucket, (number, *ask), now.at, out);
                }
            }
        }
        self.send_rest(asks, now.at, out);
        is_left
    }

    fn last_words(&mut self, engine: &Engine, number: usize, now: Now) -> Option<FinalStep> {
        let entry = self.key_table.entry_mut(number);
        if entry.in_flight {
            return Some(FinalStep::Later);
        }
        let budget = self.budgets.get(&entry.key.budget())?;
        let there = engine.peek_share(&entry.key, budget, now)?;
        if there.borrowed == 0 && there.debt == 0 && there.refund == 0 && !entry.is_believed() {
            return Some(FinalStep::Nothing);
        }
        let bucket = Bucket::of(&entry.key.name(), self.options.buckets);
        if !bucket.of_each(&mut self.buckets).has_room(IN_FLIGHT_MAX) {
            return Some(FinalStep::Later);
        }
        let ask = self.ask_about(engine, number, there.borrowed, now)?;
        Some(FinalStep::Ask(bucket, Box::new(CellRequest { want: 0, demand: 0, ..ask })))
    }
}

enum FinalStep {
    /// No host counts anything for this key.
    Nothing,
    /// In flight, or too many batches are.
    Later,
    Ask(Bucket, Box<CellRequest>),
}
