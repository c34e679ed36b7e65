//! Whatever is lost, late or out of order: what a host has and may still be given is never more than Redis counts as held.

use super::{Ask, COUNTS, DOUBLE_FOR, Report, Reports, Said, Timestamp};
use crate::fleet::cell::{CellRate, GENERATION_US, Terms};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

/// As [`crate::limit::share`] has it.
const HOLD: Duration = Duration::from_millis(1_900);

fn ask(last: Option<Report>, hold: u64, want: u64) -> Ask {
    let terms = Terms { version: 1, rate: CellRate::new(1_000, 1).unwrap(), burst: 1_000 };
    let (demand, dice) = (1, 0);
    Ask {
        key: [0; 16],
        terms,
        last,
        hold,
        back: 0,
        owed: 0,
        want,
        demand,
        waited_us: 0,
        dice,
        knew_us: None,
        window: None,
    }
}

/// What Redis counts as held, of all reports: as `share.lua` has it.
#[derive(Debug, Default)]
struct Counted {
    generation: u64,
    now: u64,
    before: u64,
}

impl Counted {
    fn forward(&mut self, now: Timestamp) {
        let generation = now.as_nanos() / (GENERATION_US * 1_000);
        let passed = generation - self.generation;
        if passed > 0 {
            (self.before, self.now) = (if passed == 1 { self.now } else { 0 }, 0);
        }
        self.generation = generation;
    }

    fn hear(&mut self, ask: &Ask, now: Timestamp) -> Said {
        self.forward(now);
        match ask.last {
            Some(last) if last.generation == self.generation => {
                self.now = self.now.checked_sub(last.hold).expect("it was counted");
            }
            Some(last) if last.generation + 1 == self.generation => {
                self.before = self.before.checked_sub(last.hold).expect("it was counted");
            }
            _ => {}
        }
        self.now += ask.hold + ask.want;
        let (grant, generation) = (ask.want, self.generation);
        Said { level: 0, demand: 0, grant, hosts: 1, lost: false, version: 1, generation, window: None }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask { want: u64 },
    Hear { which: usize },
    Answer { which: usize },
    Lose { which: usize },
    Use { tokens: u64 },
    Wait { ms: u64 },
    Double(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..20_u64).prop_map(|want| Step::Ask { want }),
        6 => (0..3_usize).prop_map(|which| Step::Hear { which }),
        6 => (0..3_usize).prop_map(|which| Step::Answer { which }),
        1 => (0..3_usize).prop_map(|which| Step::Lose { which }),
        4 => (0..30_u64).prop_map(|tokens| Step::Use { tokens }),
        6 => (1..400_u64).prop_map(|ms| Step::Wait { ms }),
        1 => any::<bool>().prop_map(Step::Double),
    ];
    vec(step, 1..120)
}

/// One question, until it is answered.
#[derive(Debug)]
struct Question {
    ask: Ask,
    sent: Timestamp,
    said: Option<Said>,
}

/// A host, a Redis, and what is on the way between them.
#[derive(Debug)]
struct World {
    now: Timestamp,
    reports: Reports,
    counted: Counted,
    held: u64,
    lapses: Timestamp,
    on_way: Vec<Question>,
}

impl World {
    fn new() -> World {
        let now = Timestamp::from_nanos(1_000_000_000_000);
        World {
            now,
            reports: Reports::default(),
            counted: Counted::default(),
            held: 0,
            lapses: now,
            on_way: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        if self.now >= self.lapses {
            self.held = 0;
        }
        match step {
            Step::Ask { want } if !self.reports.is_busy() => {
                // No two are asked at one moment.
                self.now = self.now.after(Duration::from_millis(1));
                let turn = self.reports.turn(self.now);
                let ask = ask(turn.last, turn.hold(self.held), want);
                self.reports.ask(&turn, &ask, self.now);
                self.on_way.push(Question { ask, sent: self.now, said: None });
            }
            Step::Hear { which } => {
                if let Some(question) = self.on_way.get_mut(which).filter(|question| question.said.is_none())
                {
                    question.said = Some(self.counted.hear(&question.ask, self.now));
                }
            }
            Step::Answer { which } if self.on_way.get(which).is_some_and(|asked| asked.said.is_some()) => {
                let Question { ask, sent, said } = self.on_way.remove(which);
                let said = said.unwrap();
                let since = self.reports.hear(sent, &ask, &said).expect("it waits for it");
                let lapses = since.after(HOLD);
                let before = self.held;
                self.held = if self.now < lapses { before + said.grant } else { 0 };
                self.lapses = if lapses >= self.lapses || before > 0 { lapses } else { self.lapses };
            }
            Step::Lose { which } if which < self.on_way.len() => {
                let Question { sent, .. } = self.on_way.remove(which);
                self.reports.lose(sent);
            }
            Step::Use { tokens } => self.held = self.held.saturating_sub(tokens),
            Step::Wait { ms } => self.now = self.now.after(Duration::from_millis(ms)),
            Step::Double(has_reason) => self.reports.set_double(has_reason, has_reason, self.now),
            _ => {}
        }
    }

    /// What it has, and may still be given, that it will not let lapse before it can be used.
    fn may_use(&self) -> u64 {
        let held = if self.now < self.lapses { self.held } else { 0 };
        let granted = self.on_way.iter().filter(|asked| self.now < asked.sent.after(HOLD));
        held + granted.filter_map(|asked| asked.said.map(|said| said.grant)).sum::<u64>()
    }
}

proptest! {
    #[test]
    fn what_is_held_is_reported_in_one_row_or_the_other(steps in steps()) {
        let mut world = World::new();
        world.reports.set_double(true, true, world.now);
        for (number, step) in steps.iter().enumerate() {
            world.step(*step);
            world.counted.forward(world.now);
            let counted = world.counted.now + world.counted.before;
            prop_assert!(world.may_use() <= counted, "{counted} counted after {number} steps: {world:?}");
        }
    }
}

fn asks(reports: &mut Reports, now: Timestamp, held: u64, want: u64) -> (Ask, Timestamp) {
    let turn = reports.turn(now);
    let ask = Ask { owed: turn.owed(7), ..ask(turn.last, turn.hold(held), want) };
    reports.ask(&turn, &ask, now);
    (ask, now)
}

fn said(grant: u64) -> Said {
    Said { level: 0, demand: 0, grant, hosts: 1, lost: false, version: 1, generation: 1, window: None }
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_nanos((100_000 + ms) * 1_000_000)
}

#[test]
fn two_questions_are_on_their_way_and_neither_says_what_the_other_does() {
    let mut reports = Reports::default();
    let first = asks(&mut reports, at(0), 0, 40);
    assert!(reports.is_busy(), "one row has one question on its way");
    assert_eq!(reports.hear(first.1, &first.0, &said(40)), Some(at(0)));
    reports.set_double(true, true, at(500));
    let second = asks(&mut reports, at(500), 40, 30);
    assert_eq!((second.0.last, second.0.hold), (None, 0), "the first row holds all of it");
    assert!(!reports.is_busy());
    let turn = reports.turn(at(750));
    assert_eq!((turn.coming, turn.hold(25), turn.demand(10)), (30, 25, 5));
    assert_eq!((turn.owed(7), reports.owed_on_way()), (0, 7), "what is owed is charged once");
    let third = asks(&mut reports, at(750), 25, 20);
    assert_eq!(third.0.last.map(|last| last.hold), Some(40));
    assert!(reports.is_busy());
    // The one that was asked later is answered first.
    assert_eq!(reports.hear(third.1, &third.0, &said(20)), Some(at(750)));
    assert_eq!(reports.hear(second.1, &second.0, &said(30)), Some(at(500)));
    assert_eq!(reports.held(), 25 + 20 + 30);
    assert_eq!(reports.hear(second.1, &second.0, &said(30)), None, "once");
}

#[test]
fn a_row_that_lapses_soon_is_taken_over_and_two_end_a_while_after_their_reason() {
    let mut reports = Reports::default();
    reports.set_double(true, true, at(0));
    for ms in [0, 1] {
        let (ask, sent) = asks(&mut reports, at(ms), 10, 5);
        reports.hear(sent, &ask, &said(5));
    }
    let late = at(0).after(COUNTS);
    assert_eq!(reports.turn(at(1_300)).hold(18), 18 - 5, "the other row holds five");
    assert_eq!(reports.turn(late.after(Duration::from_millis(1))).hold(18), 18);
    reports.set_double(false, true, at(100));
    assert!(reports.is_double());
    reports.set_double(false, true, at(0).after(DOUBLE_FOR));
    assert!(!reports.is_double());
    assert_eq!(reports.turn(at(100)).hold(18), 18, "one row says all");
    let (all, sent) = asks(&mut reports, at(3_500), 0, 0);
    let since = reports.hear(sent, &Ask { demand: 0, ..all }, &said(0));
    assert_eq!(
        (since, reports.held(), reports.is_believed()),
        (Some(sent), 0, false),
        "and nobody asks the other"
    );
    reports.set_double(true, true, at(4_000));
    reports.set_double(false, false, at(4_001));
    assert!(!reports.is_double(), "Redis is near");
}
