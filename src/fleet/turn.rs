//! One turn of all hosts to another secret, as one host sees it: the moment of all, and that of its own. Who is answered after
//! the one and has asked before the other hears nothing: by the name he asked by there is nothing any more.

use crate::clock::Timestamp;

/// Nobody turns, to begin with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// When all turn, or have turned, by the clock of Redis.
    from_us: Option<u64>,
    /// When this host has.
    turned: Option<Timestamp>,
}

impl Turn {
    /// All turn then, by the clock of Redis, and this host has not.
    pub(super) fn turns(&mut self, from_us: Option<u64>) {
        if self.from_us != from_us {
            *self = Turn { from_us, turned: None };
        }
    }

    /// This host has turned.
    pub(super) fn turned(&mut self, now: Timestamp) {
        self.turned = Some(now);
    }

    /// When all turn, or have turned.
    pub(super) fn at_us(&self) -> Option<u64> {
        self.from_us
    }

    /// When this host has turned.
    pub(super) fn turned_at(&self) -> Option<Timestamp> {
        self.turned
    }

    /// Whether what was answered then, by the clock of Redis, is not to be heard. `is_former` is told when this host turned, and
    /// says whether it was asked before.
    pub(super) fn is_unheard(&self, answered_us: u64, is_former: impl FnOnce(Timestamp) -> bool) -> bool {
        self.from_us.is_some_and(|from_us| answered_us >= from_us) && self.turned.is_none_or(is_former)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ORIGIN.after(Duration::from_secs(seconds))
    }

    /// Whether an answer of that moment is not heard by who asked at this one.
    fn is_unheard(turn: &Turn, answered_us: u64, asked: u64) -> bool {
        turn.is_unheard(answered_us, |turned| at(asked) < turned)
    }

    #[test]
    fn who_asked_before_it_and_is_answered_after_it_hears_nothing() {
        let mut turn = Turn::default();
        assert!(!is_unheard(&turn, 1_000, 1), "nobody turns");
        turn.turns(Some(1_000));
        assert!(!is_unheard(&turn, 999, 1), "answered before");
        assert!(is_unheard(&turn, 1_000, 1), "all have turned but this host");
        turn.turned(at(5));
        turn.turns(Some(1_000));
        assert!(is_unheard(&turn, 1_000, 4), "asked before, and the same turn is told again");
        assert!(!is_unheard(&turn, 1_000, 5), "asked since");
        assert_eq!((turn.at_us(), turn.turned_at()), (Some(1_000), Some(at(5))));
        turn.turns(Some(9_000));
        assert!(!is_unheard(&turn, 8_999, 4), "the next turn is yet to come");
        assert!(is_unheard(&turn, 9_000, 6), "and this host has not made it");
        turn.turns(None);
        assert!(!is_unheard(&turn, 9_000, 6), "nobody turns any more");
    }
}
