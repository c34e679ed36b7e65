//! Audits tokens one by one: each granted token is spent, returned, expired, held or in transit; each debt is
//! paid, open or lost with its host.

use foldhash::HashMap;
use tidegate::fleet::cell::TOKEN;
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::reply::ScriptReply;

/// Tokens that a host holds, and tokens that it owes.
pub(crate) type Has = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Last observed state, by host.
    has: HashMap<u32, Has>,
    /// Counts of the store.
    pub(crate) granted: u64,
    pub(crate) back: u64,
    pub(crate) paid: u64,
    /// Counts of the hosts.
    pub(crate) received: u64,
    pub(crate) given_back: u64,
    pub(crate) from_hand: u64,
    pub(crate) lapsed: u64,
    pub(crate) owed: u64,
    pub(crate) settled: u64,
    pub(crate) crashed: Has,
}

impl Audit {
    /// Records expired tokens before a host acts; nothing else may have changed.
    pub(crate) fn before(&mut self, host: u32, has: Has) {
        let (held, owed) = self.has.insert(host, has).unwrap_or_default();
        assert!(has.0 <= held, "host {host} has {} tokens and had {held}", has.0);
        assert_eq!(has.1, owed, "host {host} owes something else without having done anything");
        self.lapsed += held - has.0;
    }

    pub(crate) fn judged(&mut self, host: u32, admitted: u64, has: Has) {
        let (held, owed) = self.has.insert(host, has).unwrap();
        let from_hand = held.checked_sub(has.0).expect("a request brings no tokens");
        assert!(from_hand <= admitted, "host {host}: {from_hand} tokens were spent on {admitted} requests");
        self.from_hand += from_hand;
        self.owed += has.1.checked_sub(owed).expect("a request pays no debt");
    }

    pub(crate) fn sent(&mut self, host: u32, commands: &[ScriptCommand], has: Has) {
        let mut given_back = 0;
        for command in commands {
            let ScriptCommand::Sync(batch) = command else { continue };
            given_back += batch.asks.iter().map(|ask| ask.back / TOKEN).sum::<u64>();
        }
        let (held, owed) = self.has.insert(host, has).unwrap();
        assert_eq!(held - given_back, has.0, "host {host} gave back {given_back} of {held}");
        self.given_back += given_back;
        self.owed += has.1.checked_sub(owed).expect("a command that was sent pays no debt yet");
    }

    pub(crate) fn record_reply(&mut self, host: u32, has: Has) {
        let (held, owed) = self.has.insert(host, has).unwrap();
        self.received += has.0.saturating_sub(held);
        self.lapsed += held.saturating_sub(has.0);
        self.settled += owed.saturating_sub(has.1);
        self.owed += has.1.saturating_sub(owed);
    }

    pub(crate) fn crash(&mut self, host: u32) {
        let (held, owed) = self.has.remove(&host).unwrap_or_default();
        self.crashed = (self.crashed.0 + held, self.crashed.1 + owed);
    }

    pub(crate) fn done(&mut self, command: &ScriptCommand, reply: &ScriptReply) {
        let (ScriptCommand::Sync(batch), ScriptReply::Sync(answer)) = (command, reply) else { return };
        for (ask, sent) in batch.asks.iter().zip(&answer.results) {
            self.granted += sent.grant / TOKEN;
            self.back += ask.back / TOKEN;
            self.paid += ask.owed / TOKEN;
        }
    }

    /// Returns the tokens that all hosts hold and owe now.
    pub(crate) fn in_hand(&self) -> Has {
        self.has.values().fold((0, 0), |(held, owed), has| (held + has.0, owed + has.1))
    }

    /// Checks, with nothing in transit, that no token was created or counted twice.
    pub(crate) fn check(&self, admitted: u64) {
        let (held, owed) = self.in_hand();
        let (crashed, crashed_owed) = self.crashed;
        assert!(self.received <= self.granted, "more was received than granted: {self:?}");
        assert!(self.back <= self.given_back, "more came back than was given: {self:?}");
        assert_eq!(
            self.received,
            self.from_hand + self.given_back + self.lapsed + crashed + held,
            "tokens in hands: {self:?}"
        );
        assert_eq!(self.owed, self.settled + crashed_owed + owed, "debts: {self:?}");
        assert!(self.settled <= self.paid, "no debt is forgotten: {self:?}");
        assert!(self.from_hand <= admitted, "{self:?}");
    }
}
