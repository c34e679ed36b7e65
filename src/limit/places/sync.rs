//! Reports of the permits of a key to Redis, and the effect of its replies.

use super::Permits;
use crate::clock::Timestamp;
use crate::limit::share::{HOLD, SyncRequest};
use std::time::Duration;

/// The report of one key of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermitReport {
    /// Permits that have not expired.
    pub permits: u32,
    /// Leases in progress, with a permit or without.
    pub leases: u32,
    /// The largest number of leases in progress since the last report.
    pub peak: u32,
    /// Requests since the last report, allowed or refused.
    pub requested: u32,
    /// Requests allowed since the last report.
    pub allowed: u32,
    /// Refused requests that could not wait for a remote check.
    pub refused_without_wait: u32,
    /// Permits reserved for requests that have waited for them.
    pub reserved: u32,
}

impl PermitReport {
    /// The permits that no other host may have: every lease in progress counts as holding one.
    #[must_use]
    pub fn permits_used(&self) -> u32 {
        self.permits.max(self.leases)
    }

    /// The leases in progress or about to start.
    #[must_use]
    pub fn leases_and_reserved(&self) -> u32 {
        self.leases.saturating_add(self.reserved)
    }
}

/// The reply of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitReply {
    /// Permits reported as held.
    pub hold: u32,
    /// Permits granted in addition.
    pub granted: u32,
    /// Free permits; negative where hosts hold more than there are.
    pub free: i64,
    /// The time at which the report was first sent: permits expire one hold after it.
    pub sent_at: Timestamp,
    /// A sync is due when fewer permits than this are idle.
    pub low_mark: u32,
    /// The time for which this host must not ask again, because there was no permit for a waiting request; zero if
    /// there was.
    pub refused_for: Duration,
    /// Idle permits are returned at once from now on.
    pub return_idle: bool,
}

impl Permits {
    /// Reports the key, which is tracked from now on. At most `keep` permits remain: no lease starts on the others from
    /// now on.
    pub fn report(&mut self, keep: u32, in_use: u32, now: Timestamp) -> PermitReport {
        self.sync_request = SyncRequest::Signalled;
        self.granted = self.unexpired(now).min(keep);
        if !std::mem::replace(&mut self.tracked, true) {
            self.expires_at = self.expires_at.max(now);
        }
        let reported = self.peek_report(in_use, now);
        (self.asked, self.begun, self.unasked, self.peak) = (0, 0, 0, in_use);
        reported
    }

    /// Returns the report without any change.
    #[must_use]
    pub fn peek_report(&self, in_use: u32, now: Timestamp) -> PermitReport {
        let Permits { asked, begun, unasked, claimed, .. } = *self;
        PermitReport {
            permits: self.unexpired(now),
            leases: in_use,
            peak: self.peak.max(in_use),
            requested: asked,
            allowed: begun,
            refused_without_wait: unasked,
            reserved: claimed,
        }
    }

    /// Returns the report for the sync that this key requested; where permits are few, later idle ones request another
    /// sync.
    #[must_use]
    pub fn report_for_sync(&mut self, in_use: u32, now: Timestamp) -> PermitReport {
        if self.below_permits_per_host {
            self.sync_request = SyncRequest::Idle;
        }
        self.peek_report(in_use, now)
    }

    /// Applies a reply of Redis while `in_use` leases are in progress.
    pub fn apply_reply(&mut self, settled: &PermitReply, in_use: u32, now: Timestamp) {
        let expires_at = settled.sent_at.after(HOLD);
        if expires_at >= self.expires_at {
            // Where the permits reported by all hosts fit, the local leases without a permit fit too. Where they do
            // not, other hosts have been granted the permits that expired here, and no lease may start on them.
            let kept = if settled.free >= 0 { settled.hold } else { self.unexpired(now) };
            self.granted = kept.saturating_add(settled.granted);
            self.expires_at = expires_at;
        }
        if now >= self.expires_at {
            self.granted = 0;
        }
        self.free = u32::try_from(settled.free.max(0)).unwrap_or(u32::MAX);
        (self.low, self.below_permits_per_host) = (settled.low_mark, settled.return_idle);
        self.refused_until = now.after(settled.refused_for);
        self.sync_request = SyncRequest::Idle;
        if self.asked > 0 && self.unexpired(now).saturating_sub(in_use) < self.low {
            self.request_sync();
        }
        // Leases may have ended while the reply was on its way.
        self.record_end(in_use, now);
    }

    /// Stops tracking the key until it requests a sync. Returns whether that is possible: there is no permit and no
    /// lease.
    pub fn stop_tracking(&mut self, in_use: u32, now: Timestamp) -> bool {
        let may = in_use == 0 && self.unexpired(now) == 0;
        if may {
            self.tracked = false;
            self.granted = 0;
            self.sync_request = SyncRequest::Idle;
        }
        may
    }
}
