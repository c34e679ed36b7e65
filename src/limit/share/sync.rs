//! What is reported of a key to Redis, and what comes of its answer.

use super::state::{Calls, HOLD, Seen};
use super::{More, Quota, Share};
use crate::clock::Timestamp;

/// What a host has of one key, as it is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Tokens in hand.
    pub held: u32,
    /// Admitted and not charged yet.
    pub owed: u32,
    /// Asked for since the last report, refused or not.
    pub asked: u32,
    /// Since when that is, if this is the first report.
    pub since: Timestamp,
    /// The most that one request lacked since then; zero: none was refused.
    pub lacked: u32,
    /// Paid for and of no use: it goes back with the report.
    pub returns: u32,
    /// When the first of that was paid by the clock of Redis, in microseconds, where it is of a window and known.
    pub paid_us: Option<u64>,
    /// Tokens that were in hand and lapsed, and were not told of yet: they are nobody's until they are earned again.
    pub lapsed: u32,
}

/// What Redis has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Of what was owed, so much is charged now.
    pub paid: u32,
    /// Tokens that were granted.
    pub granted: u32,
    /// What Redis has left, in millionths of a unit; below zero where it is owed.
    pub level: i64,
    /// What all hosts ask for, in thousandths of a unit a second.
    pub demand: u64,
    /// When the oldest report was first sent that stands for what is in hand: all of it lapses so long after.
    pub sent: Timestamp,
    /// Redis is to be asked again once less than this is in hand.
    pub low: u32,
    /// When there is more, of a window.
    pub more: Option<More>,
}

impl Share {
    /// Reports what there is of the key, which is kept in touch about from now on. `give_back`: so many tokens, if they are
    /// there and not [kept](Share::judged), leave the hand with the report; what [returns](Reported::returns) goes back besides.
    pub fn report(&mut self, quota: &Quota, now: Timestamp, give_back: u32) -> (Reported, u32) {
        if let Some(standing) = quota.standing() {
            self.catch_up(quota, standing, now);
            self.begin_touch(quota, standing.hosts(), now);
        }
        let lapsed = self.lapsed(now);
        self.tokens = self.in_hand(now);
        let back = self.unkept(now).min(give_back);
        self.tokens -= back;
        self.calls = Calls::Told;
        let reported = Reported { lapsed, ..self.look(now) };
        self.asked = 0;
        self.lacked = 0;
        self.returns = 0;
        (reported, back.saturating_add(reported.returns))
    }

    /// Says what there is without changing anything.
    #[must_use]
    pub fn look(&self, now: Timestamp) -> Reported {
        Reported {
            held: self.in_hand(now),
            owed: self.owed,
            asked: self.asked,
            since: self.asked_since,
            lacked: self.lacked,
            returns: self.returns,
            paid_us: None,
            lapsed: self.lapsed(now),
        }
    }

    /// Takes what Redis has answered. Returns how many tokens have lapsed, of what was in hand and of what was granted, and
    /// were not told of yet.
    pub fn settle(&mut self, quota: &Quota, settled: &Settled, now: Timestamp) -> u32 {
        let seen = Seen { level: settled.level, demand: settled.demand, at: now };
        self.hear(quota, now, settled.paid, seen);
        self.hear_more(quota, now, settled.more);
        let lapses = settled.sent.after(HOLD);
        let there = self.tokens.saturating_add(settled.granted);
        if lapses >= self.lapses {
            // What was in hand was reported with the same words, so it is held as long.
            self.tokens = self.in_hand(now).saturating_add(settled.granted);
            self.lapses = lapses;
        } else if now < lapses {
            self.take_in_hand(settled.granted, lapses, now);
        }
        self.tokens = self.in_hand(now);
        self.believed = self.tokens;
        self.low = settled.low;
        self.calls = Calls::No;
        if self.asked > 0 && self.tokens < self.low || self.owed > 0 || self.returns > 0 {
            self.call();
        }
        there.saturating_sub(self.tokens)
    }

    /// Nothing more is said of the key, and nobody is told of it any more. Returns whether that may be: nothing is in hand
    /// and nothing is owed.
    pub fn let_go(&mut self, now: Timestamp) -> bool {
        let may = self.owed == 0 && self.returns == 0 && self.in_hand(now) == 0;
        if may {
            self.in_touch = false;
            self.tokens = 0;
            self.asked = 0;
        }
        // Who owes something may call again.
        self.calls = Calls::No;
        may
    }
}
