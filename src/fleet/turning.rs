//! Which of its secrets a host goes by, and when it turns to another: as all hosts have agreed by way of Redis. Time is an
//! argument.
//!
//! ```text
//!   nothing heard ──an answer──▶ goes by one ──its moment comes──▶ goes by the next, and brings along what it knew
//!        ▲                            │
//!        └──── no answer for 2.5 s ───┘
//! ```
//!
//! Who has two secrets goes by an answer for 2.5 s after he asked; then he shares nothing until there is another. As a turn is
//! told three seconds before, nobody shares by the old secret once the others have turned: he knew, or he is cut off. Who has
//! but one has nothing to turn to, and needs no answer.

use super::redis_clock::RedisClock;
use super::secrets::{Agreed, Held, Mark, SECRETS_MAX};
use crate::clock::{Now, Timestamp};
use crate::engine::Budget;
use arrayvec::ArrayVec;
use std::collections::HashMap;
use std::time::Duration;

/// How a host stands with the secrets of all.
#[derive(Clone, Debug)]
pub struct Turning {
    /// Those that it has, in the order of its settings.
    marks: ArrayVec<Mark, SECRETS_MAX>,
    agreed: Option<Agreed>,
    /// When that was asked for.
    heard: Timestamp,
    /// When it was said, by the clock of Redis.
    heard_us: u64,
    /// When it was asked that nobody has answered yet.
    asked: Option<Timestamp>,
    clock: RedisClock,
    choice: Choice,
    /// Whether it was ever told what to go by.
    is_told: bool,
}

/// What a host goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Which of its secrets makes the keys.
    pub uses: usize,
    /// Which did before, where that is to be brought along, and until when: by the clock of Redis.
    pub former: Option<(usize, u64)>,
    /// It does not have the one that is in use: what it shares, it shares with those alone who have this one.
    pub lacks: bool,
    /// The moment of the turn that was told last is over: what was asked before by another secret is of the one of before.
    pub has_turned: bool,
}

/// How it stands, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretsView {
    /// The one that makes the keys here; `None`: nobody has said yet.
    pub uses: Option<Mark>,
    /// Those of the settings.
    pub has: ArrayVec<Mark, SECRETS_MAX>,
    /// What is in use among all, where that is none of these.
    pub lacks: Option<Mark>,
    /// What all turn to, and in how many seconds.
    pub turns_to: Option<(Mark, u64)>,
    /// How many hosts do not name first what this one does, while that is not in use, and some of them.
    pub lacking: (u32, Vec<String>),
    /// That of its secrets which nobody needs any more; and for how many seconds removing it forgets what some keys have used.
    pub spare: Option<(Mark, u64)>,
}

impl Turning {
    /// Of a host that has these secrets, and was told nothing. Two that are alike count as one.
    #[must_use]
    pub fn new(secrets: impl IntoIterator<Item = Mark>) -> Turning {
        let mut marks = ArrayVec::<Mark, SECRETS_MAX>::new();
        for mark in secrets {
            if !marks.is_full() && !marks.contains(&mark) {
                marks.push(mark);
            }
        }
        Turning {
            is_told: marks.len() < 2,
            marks,
            agreed: None,
            heard: Timestamp::ORIGIN,
            heard_us: 0,
            asked: None,
            clock: RedisClock::default(),
            choice: Choice::default(),
        }
    }

    /// What is said of them, now.
    pub fn says(&mut self, now: Timestamp) -> Held {
        self.asked.get_or_insert(now);
        let uses = self.marks.get(self.choice.uses).copied().filter(|_| self.is_told);
        Held { uses, has: self.marks.clone() }
    }

    /// The answer, which came at this moment, said when the clock of Redis showed that.
    pub fn heard(&mut self, agreed: &Agreed, now_us: u64, now: Timestamp) {
        if now_us < self.heard_us && self.heard_us - now_us < OVERTAKEN_US {
            // It was said before what was heard last.
            return;
        }
        self.heard_us = now_us;
        self.heard = self.asked.take().unwrap_or(self.heard);
        self.clock.heard(now_us, now);
        self.agreed = Some(agreed.clone());
    }

    /// Whether it knows what to go by, and nobody else goes by something else.
    #[must_use]
    pub fn is_settled(&self, now: Now) -> bool {
        self.marks.len() < 2 || now.at.since(self.heard) < AGREED_FOR && self.in_use(now).is_some()
    }

    /// The moment of a turn that has come or is yet to come: what is answered after it to who asked by the old secret is not
    /// to be heard.
    #[must_use]
    pub fn turns_us(&self) -> Option<u64> {
        let agreed = self.agreed.as_ref().filter(|_| self.marks.len() > 1)?;
        agreed.before.map(|_| agreed.from_us)
    }

    /// What to go by from now on, where that is something else than before, or it is told for the first time. `lasts`: for how
    /// long an old cell has something to say.
    pub fn turns(&mut self, lasts: Duration, now: Now) -> Option<Choice> {
        let uses = self.in_use(now)?;
        let agreed = self.agreed.as_ref()?;
        let at = |mark: &Mark| self.marks.iter().position(|known| known == mark);
        let here = at(&uses);
        let number = here.unwrap_or(0);
        let until_us = agreed.from_us.saturating_add(micros(lasts.min(LASTS_MAX)));
        let former = agreed.before.filter(|_| here.is_some() && self.clock.unix_us(now) < until_us);
        // Until the moment has come that is the same one.
        let former = former.and_then(|mark| at(&mark)).filter(|former| *former != number);
        let former = former.map(|former| (former, until_us));
        let choice = Choice { uses: number, former, lacks: here.is_none(), has_turned: agreed.uses == uses };
        let is_told = std::mem::replace(&mut self.is_told, true);
        let is_change = !is_told
            || (choice.uses, choice.lacks) != (self.choice.uses, self.choice.lacks)
            || choice.former.map(|(former, _)| former) != self.choice.former.map(|(former, _)| former);
        self.choice = choice;
        is_change.then_some(choice)
    }

    /// How it stands.
    #[must_use]
    pub fn view(&self, now: Now) -> SecretsView {
        let uses = self.marks.get(self.choice.uses).copied().filter(|_| self.is_told);
        let mut view = SecretsView { uses, has: self.marks.clone(), ..SecretsView::default() };
        let Some(agreed) = &self.agreed else { return view };
        let now_us = self.clock.unix_us(now);
        let in_use = self.in_use(now);
        view.lacks = in_use.filter(|mark| !self.marks.contains(mark));
        let seconds = |until_us: u64| until_us.saturating_sub(now_us).div_ceil(1_000_000);
        if agreed.before.is_some() && now_us < agreed.from_us {
            view.turns_to = Some((agreed.uses, seconds(agreed.from_us)));
        } else if in_use.is_some() && self.marks.first() != in_use.as_ref() {
            view.lacking = (agreed.lacking, agreed.who.clone());
        } else {
            let spare = self.marks.get(1).filter(|mark| agreed.before == Some(**mark));
            let until = self.choice.former.map_or(0, |(_, until_us)| seconds(until_us));
            view.spare = spare.map(|mark| (*mark, until));
        }
        view
    }

    /// What all go by at this moment; `None`: nobody knows.
    fn in_use(&self, now: Now) -> Option<Mark> {
        let agreed = self.agreed.as_ref()?;
        if self.clock.unix_us(now) < agreed.from_us { agreed.before } else { Some(agreed.uses) }
    }
}

/// For how long a cell that nobody asks about has something to say, at most: until it is full, or its windows are over; as long
/// again for what was admitted on credit, or slides; and as long as Redis keeps a full one.
#[must_use]
pub fn lasts(budgets: &HashMap<u64, Budget>) -> Duration {
    let fills = budgets.values().map(|budget| {
        let micro = u64::from(budget.quota.bucket().burst()).saturating_mul(1_000_000);
        Duration::from_secs(micro / budget.quota.micro_units_per_second().max(1))
    });
    fills.max().unwrap_or_default().saturating_mul(2).saturating_add(KEPT_FULL)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Half a second less than a turn is told before: so long may an answer take.
const AGREED_FOR: Duration = Duration::from_millis(2_500);

/// What is older by more than any answer takes was said by a clock that was set back.
const OVERTAKEN_US: u64 = 10_000_000;

/// Redis keeps a full cell for so long.
const KEPT_FULL: Duration = Duration::from_secs(10);

/// For how long what was known is brought along at most: as long as Redis remembers that there was a turn.
const LASTS_MAX: Duration = Duration::from_secs(31 * 86_400);

#[cfg(test)]
mod tests {
    use super::{Choice, LASTS_MAX, Turning};
    use crate::clock::{Now, Timestamp};
    use crate::fleet::secrets::{Agreed, Mark};
    use std::time::Duration;

    const START_US: u64 = 1_700_000_000_000_000;
    const OLD: u8 = 1;
    const NEW: u8 = 2;
    const OTHER: u8 = 3;

    fn mark(secret: u8) -> Mark {
        Mark::of_digest([secret; 8])
    }

    fn at(ms: u64) -> Now {
        Now { at: Timestamp::default().after(Duration::from_millis(100_000 + ms)), utc: 0 }
    }

    fn hears(turning: &mut Turning, ms: u64, (before, uses, from_ms): (Option<u8>, u8, u64)) {
        turning.says(at(ms).at);
        let from_us = START_US + from_ms * 1_000;
        let agreed =
            Agreed { before: before.map(mark), uses: mark(uses), from_us, lacking: 0, who: Vec::new() };
        turning.heard(&agreed, START_US + ms * 1_000, at(ms).at);
    }

    fn chooses(turning: &mut Turning, ms: u64) -> Option<(usize, Option<usize>, bool)> {
        let choice = turning.turns(Duration::from_secs(60), at(ms));
        choice.map(|Choice { uses, former, lacks, .. }| (uses, former.map(|(former, _)| former), lacks))
    }

    #[test]
    fn a_host_with_two_secrets_turns_at_the_moment_and_brings_along_what_was_for_a_while() {
        let mut turning = Turning::new([NEW, OLD].map(mark));
        assert!(!turning.is_settled(at(0)) && chooses(&mut turning, 0).is_none(), "nobody has told it");
        assert_eq!(turning.says(at(0).at).uses, None);
        hears(&mut turning, 0, (None, OLD, 0));
        assert_eq!(
            chooses(&mut turning, 0),
            Some((1, None, false)),
            "the old one, although it is the second"
        );
        assert_eq!(turning.turns_us(), None);
        hears(&mut turning, 1_000, (Some(OLD), NEW, 4_000));
        assert_eq!(turning.turns_us(), Some(START_US + 4_000_000), "so that others hear of it");
        for (ms, expected) in [
            (3_000, None),
            (3_999, None),
            (4_000, Some((0, Some(1), false))),
            (4_001, None),
            (63_999, None),
            (64_000, Some((0, None, false))),
        ] {
            assert_eq!(chooses(&mut turning, ms), expected, "at {ms}");
        }
        assert!(LASTS_MAX > Duration::from_secs(60));
    }

    #[test]
    fn who_begins_between_the_telling_and_the_moment_has_not_turned_before_the_moment() {
        for (told_ms, expected) in [(0, vec![(0, false), (4_000, true)]), (5_000, vec![(5_000, true)])] {
            let mut turning = Turning::new([NEW, OLD].map(mark));
            hears(&mut turning, told_ms, (Some(OLD), NEW, 4_000));
            let mut turned = Vec::new();
            for ms in (told_ms..8_000).step_by(1_000) {
                let choice = turning.turns(Duration::from_secs(60), at(ms));
                turned.extend(choice.map(|choice| (ms, choice.has_turned)));
            }
            assert_eq!(turned, expected, "told at {told_ms}");
        }
    }

    #[test]
    fn who_has_two_goes_by_an_answer_for_less_time_than_a_turn_is_told_before() {
        let mut turning = Turning::new([NEW, OLD].map(mark));
        hears(&mut turning, 0, (None, OLD, 0));
        for (ms, is_settled) in [(0, true), (2_499, true), (2_500, false), (60_000, false)] {
            assert_eq!(turning.is_settled(at(ms)), is_settled, "at {ms}");
        }
        // What was asked long ago and answered now was perhaps said long ago.
        turning.says(at(3_000).at);
        hears(&mut turning, 5_000, (None, OLD, 0));
        assert!(turning.is_settled(at(5_499)) && !turning.is_settled(at(5_500)));
        assert!(Turning::new([mark(OLD)]).is_settled(at(0)), "who has but one has nothing to turn to");
    }

    #[test]
    fn what_was_said_before_is_not_heard_after_it() {
        let mut turning = Turning::new([NEW, OLD].map(mark));
        hears(&mut turning, 5_000, (Some(OLD), NEW, 4_000));
        assert_eq!(chooses(&mut turning, 5_000), Some((0, Some(1), false)));
        let late = Agreed { before: None, uses: mark(OLD), from_us: 0, lacking: 0, who: Vec::new() };
        turning.heard(&late, START_US + 900_000, at(5_001).at);
        assert_eq!(chooses(&mut turning, 5_001), None);
        turning.heard(&late, START_US - 3_600_000_000, at(5_002).at);
        assert_eq!(chooses(&mut turning, 5_002), Some((1, None, false)), "the clock of Redis was set back");
    }

    #[test]
    fn until_all_is_settled_nobody_goes_by_anything_and_who_lacks_it_goes_by_its_own() {
        let mut turning = Turning::new([NEW, OLD].map(mark));
        hears(&mut turning, 0, (None, NEW, 2_000));
        assert!(!turning.is_settled(at(1_999)) && chooses(&mut turning, 1_999).is_none());
        assert!(turning.is_settled(at(2_000)) && chooses(&mut turning, 2_000) == Some((0, None, false)));
        let mut early = Turning::new([mark(NEW)]);
        hears(&mut early, 0, (None, OLD, 0));
        assert_eq!(chooses(&mut early, 0), Some((0, None, true)));
        assert_eq!(early.view(at(0)).lacks, Some(mark(OLD)));
        hears(&mut early, 1_000, (Some(OLD), NEW, 4_000));
        assert_eq!(chooses(&mut early, 4_000), Some((0, None, false)), "the others have come to it");
        assert_eq!(early.turns_us(), None, "who has but one has nothing to turn to");
        // One that lacks what is in use, and had what was before: of that nothing goes along.
        let mut other = Turning::new([OTHER, OLD].map(mark));
        hears(&mut other, 0, (Some(OLD), NEW, 0));
        assert_eq!(chooses(&mut other, 0), Some((0, None, true)));
    }
}
