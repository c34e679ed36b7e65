//! Reports of a key to Redis, and the effect of its replies.

use super::state::{HOLD, RedisLevel, SyncRequest};
use super::{More, Share, ShareQuota};
use crate::clock::Timestamp;

/// The report of one key of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareReport {
    /// Borrowed tokens.
    pub held: u32,
    /// Units admitted and not charged yet.
    pub owed: u32,
    /// Units requested since the last report, allowed or refused.
    pub asked: u32,
    /// The start of that time, for the first report.
    pub since: Timestamp,
    /// The largest number of tokens that one request lacked since then; zero if none was refused.
    pub lacked: u32,
    /// Tokens granted and not needed: refunded with the report.
    pub returns: u32,
    /// The time of the first charge among them by the clock of Redis, in microseconds, if it is of a window and known.
    pub paid_us: Option<u64>,
    /// Borrowed tokens that expired since the last report: no host has them until they are earned again.
    pub lapsed: u32,
}

/// The reply of Redis to a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareReply {
    /// Units of the debt that are charged now.
    pub paid: u32,
    /// Tokens granted.
    pub granted: u32,
    /// The remaining level in Redis, in millionths of a unit; negative for a debt.
    pub level: i64,
    /// The demand of all hosts, in thousandths of a unit per second.
    pub demand: u64,
    /// The time at which the oldest report that covers the borrowed tokens was first sent: all expire one hold after
    /// it.
    pub sent: Timestamp,
    /// A sync is due when fewer tokens than this are left.
    pub low: u32,
    /// The next increase, for a window.
    pub more: Option<More>,
}

impl Share {
    /// Reports the key, which is tracked from now on. Up to `give_back` tokens, if they are there and not
    /// [reserved](Share::judged), are returned with the report, beside [`ShareReport::returns`]. Returns the report and
    /// the number of all returned tokens.
    pub fn report(&mut self, quota: &ShareQuota, now: Timestamp, give_back: u32) -> (ShareReport, u32) {
        if let Some(standing) = quota.standing() {
            self.catch_up(quota, standing, now);
            self.start_tracking(quota, standing.hosts(), now);
        }
        let lapsed = self.expired(now);
        self.tokens = self.borrowed(now);
        let back = self.unreserved(now).min(give_back);
        self.tokens -= back;
        self.sync_request = SyncRequest::Signalled;
        let reported = ShareReport { lapsed, ..self.look(now) };
        self.asked = 0;
        self.lacked = 0;
        self.refund = 0;
        (reported, back.saturating_add(reported.returns))
    }

    /// Returns the report without any change.
    #[must_use]
    pub fn look(&self, now: Timestamp) -> ShareReport {
        ShareReport {
            held: self.borrowed(now),
            owed: self.owed,
            asked: self.asked,
            since: self.asked_since,
            lacked: self.lacked,
            returns: self.refund,
            paid_us: None,
            lapsed: self.expired(now),
        }
    }

    /// Applies a reply of Redis. Returns the number of tokens, borrowed or just granted, that have expired and are not
    /// reported as expired yet.
    pub fn settle(&mut self, quota: &ShareQuota, settled: &ShareReply, now: Timestamp) -> u32 {
        let seen = RedisLevel { level: settled.level, demand: settled.demand, at: now };
        self.apply_level(quota, now, settled.paid, seen);
        self.apply_more(quota, now, settled.more);
        let expires_at = settled.sent.after(HOLD);
        let there = self.tokens.saturating_add(settled.granted);
        if expires_at >= self.expires_at {
            // The same report covered the borrowed tokens, so Redis holds them as long.
            self.tokens = self.borrowed(now).saturating_add(settled.granted);
            self.expires_at = expires_at;
        } else if now < expires_at {
            self.add_borrowed(settled.granted, expires_at, now);
        }
        self.tokens = self.borrowed(now);
        self.held_in_redis = self.tokens;
        self.low = settled.low;
        self.sync_request = SyncRequest::Idle;
        if self.asked > 0 && self.tokens < self.low || self.owed > 0 || self.refund > 0 {
            self.request_sync();
        }
        there.saturating_sub(self.tokens)
    }

    /// Stops tracking the key. Returns whether that is possible: there are no borrowed tokens and no debt.
    pub fn let_go(&mut self, now: Timestamp) -> bool {
        let may = self.owed == 0 && self.refund == 0 && self.borrowed(now) == 0;
        if may {
            self.tracked = false;
            self.tokens = 0;
            self.asked = 0;
        }
        // A key with a debt may request a sync again.
        self.sync_request = SyncRequest::Idle;
        may
    }
}
