//! Budgets that many hosts share, in the words of all algorithms.

use super::{Algorithm, Fading, Level, Micros, Now, Outcome, Quota, Shard, Table, Tag, Wait, lives_in};
use crate::limit::share::{self, Folded};

impl Algorithm for share::Quota {
    type State = Folded;

    const ADOPTS: bool = false;

    const IS_SHARED: bool = true;

    lives_in!(shares, Share);

    fn fresh(&self, now: Now) -> Folded {
        Folded::fresh(self, now.at)
    }

    fn judge(&self, state: &Folded, now: Now, cost: u32, _: Option<Micros>) -> (Outcome, Wait) {
        (state.unfold(self, now.at).judge(self, now.at, cost), Wait::NONE)
    }

    fn charge(&self, state: &mut Folded, now: Now, cost: u32, _: Wait) {
        state.change(self, now.at, |share| share.charge(self, now.at, cost));
    }

    fn admit(&self, state: &mut Folded, now: Now, cost: u32, _: Option<Micros>, _: bool) -> Outcome {
        state.change(self, now.at, |share| share.admit(self, now.at, cost))
    }

    #[inline]
    fn admit_at_once(&self, state: &mut Folded, now: Now, cost: u32) -> Option<Level> {
        state.admit_at_once(self, now.at, cost)
    }

    fn note_refused(&self, state: &mut Folded, now: Now, cost: u32) {
        state.change(self, now.at, |share| share.refuse(self, now.at, cost));
    }

    fn calls(state: &mut Folded) -> bool {
        state.calls()
    }

    fn budget(&self) -> Option<u64> {
        share::Quota::budget(self)
    }

    fn owe(&self, state: &mut Folded, now: Now, amount: u32, debt_max: u32) {
        state.change(self, now.at, |share| share.owe(self, now.at, amount, debt_max));
    }

    fn give_back(&self, state: &mut Folded, now: Now, amount: u32) {
        state.change(self, now.at, |share| share.give_back(self, now.at, amount));
    }

    fn level(&self, state: &Folded, now: Now) -> Level {
        let level = state.unfold(self, now.at).level(self, now.at);
        // Of a window of which nothing was heard, the clock of this host tells when it ends.
        match self.window().filter(|_| level.reset == level.window) {
            Some(window) => Level { reset: window.until_edge(now).min(level.window), ..level },
            None => level,
        }
    }
}

impl Fading for Folded {
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64 {
        self.nanos_until_fresh(tag.scale(), now.at)
    }

    /// Whoever lets one go that others hear of loses what it holds.
    fn weight(&self, _: Tag) -> u16 {
        u16::from(self.is_in_touch())
    }
    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}
