//! Reports of a key to Redis, and the effect of its replies.

use super::state::{HOLD, RedisLevel, SyncRequest};
use super::{NextIncrease, ShareQuota, ShareState};
use crate::clock::Timestamp;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareReport {
    pub borrowed: u32,
    /// Units admitted and not charged yet.
    pub debt: u32,
    /// Units requested since the last report, allowed or refused.
    pub requested: u32,
    /// The start of that time, for the first report.
    pub since: Timestamp,
    /// The largest number of tokens that one request lacked since then; zero if none was refused.
    pub missing_max: u32,
    /// Tokens granted and not needed: refunded with the report.
    pub refund: u32,
    /// The time of the first charge among them by the clock of Redis, in microseconds, if it is of a window and known.
    pub paid_us: Option<u64>,
    /// Borrowed tokens that expired since the last report: no host has them until they are earned again.
    pub expired: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareReply {
    /// Units of the debt that are charged now.
    pub paid: u32,
    pub granted: u32,
    /// The remaining level in Redis, in millionths of a unit; negative for a debt.
    pub level: i64,
    /// The demand of all hosts, in thousandths of a unit per second.
    pub demand: u64,
    /// The time at which the oldest report that covers the borrowed tokens was first sent: all expire one hold after
    /// it.
    pub sent_at: Timestamp,
    /// A sync is due when fewer tokens than this are left.
    pub low_mark: u32,
    /// The next increase, for a window.
    pub next_increase: Option<NextIncrease>,
}

impl ShareState {
    /// Reports the key, which is tracked from now on. Up to `give_back` tokens, if they are there and not
    /// [reserved](ShareState::release_reservation), are returned with the report, beside [`ShareReport::refund`]. Returns the report and
    /// the number of all returned tokens.
    pub fn report(&mut self, quota: &ShareQuota, now: Timestamp, give_back: u32) -> (ShareReport, u32) {
        if let Some(fleet_status) = quota.fleet_status() {
            self.note_outages(quota, fleet_status, now);
            self.start_tracking(quota, fleet_status.hosts(), now);
        }
        let expired = self.expired(now);
        self.tokens = self.borrowed(now);
        let back = self.unreserved(now).min(give_back);
        self.tokens -= back;
        self.sync_request = SyncRequest::Signalled;
        let reported = ShareReport { expired, ..self.peek_report(now) };
        self.requested = 0;
        self.lacked = 0;
        self.refund = 0;
        (reported, back.saturating_add(reported.refund))
    }

    /// Returns the report without any change.
    pub fn peek_report(&self, now: Timestamp) -> ShareReport {
        ShareReport {
            borrowed: self.borrowed(now),
            debt: self.owed,
            requested: self.requested,
            since: self.requested_since,
            missing_max: self.lacked,
            refund: self.refund,
            paid_us: None,
            expired: self.expired(now),
        }
    }

    /// Applies a reply of Redis. Returns the number of tokens, borrowed or just granted, that have expired and are not
    /// reported as expired yet.
    pub fn apply_reply(&mut self, quota: &ShareQuota, settled: &ShareReply, now: Timestamp) -> u32 {
        let seen = RedisLevel { level: settled.level, demand: settled.demand, received_at: now };
        self.apply_level(quota, now, settled.paid, seen);
        self.apply_more(quota, now, settled.next_increase);
        let expires_at = settled.sent_at.after(HOLD);
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
        self.low = settled.low_mark;
        self.sync_request = SyncRequest::Idle;
        if self.requested > 0 && self.tokens < self.low || self.owed > 0 || self.refund > 0 {
            self.request_sync();
        }
        there.saturating_sub(self.tokens)
    }

    /// Stops tracking the key. Returns whether that is possible: there are no borrowed tokens and no debt.
    pub fn stop_tracking(&mut self, now: Timestamp) -> bool {
        let may = self.owed == 0 && self.refund == 0 && self.borrowed(now) == 0;
        if may {
            self.tracked = false;
            self.tokens = 0;
            self.requested = 0;
        }
        // A key with a debt may request a sync again.
        self.sync_request = SyncRequest::Idle;
        may
    }
}
