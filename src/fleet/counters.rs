//! The published state of the sync task, readable without waiting.

use super::command::Host;
use super::link::{FailureCounts, NodeStatus};
use super::remote_checks::RemoteCheckCounts;
use super::secrets::SecretDigest;
use super::sync::SyncCounts;
use super::tally::BudgetCounters;
use crate::clock::Timestamp;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Debug)]
pub struct FleetCounters {
    view: ArcSwap<FleetView>,
    pub(super) overrides: Mutex<OverridesView>,
    /// The time of the last reply, in nanoseconds of the timeline; zero before the first.
    heard: AtomicU64,
}

/// The state of the fleet, at most 0.25 s old.
#[derive(Clone, Debug, Default)]
pub struct FleetView {
    pub host: Host,
    /// Whether any budget is shared; without one the host calls no Redis.
    pub is_needed: bool,
    pub secret: SecretDigest,
    /// Hosts with another fleet secret that were alive at the last heartbeat.
    pub unlike: u32,
    /// Hosts whose fleet rules have other numbers, likewise.
    pub other_rules: u32,
    pub is_linked: bool,
    /// The host count for shares: `counted`, and at least the number of the settings.
    pub hosts: u32,
    /// Hosts that were alive, this one included: the maximum of the last 30 s.
    pub counted: u32,
    /// Hosts that were alive at the last heartbeat.
    pub alive: u32,
    pub round_trip: Duration,
    pub counts: SyncCounts,
    pub remote_checks: RemoteCheckCounts,
    /// Whether remote checks are stopped although Redis answers: it answers too late.
    pub is_too_slow: bool,
    /// Replies that did not match their command.
    pub undecodable: u64,
    pub clamped: u64,
    pub overrides: OverridesView,
    pub outages: u64,
    pub errors: Vec<(&'static str, u64)>,
    pub keys: usize,
    pub cells_per_second: u64,
    pub nodes: Vec<NodeStatus>,
    /// By the number of a rule.
    pub rules: HashMap<u64, BudgetCounters>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct OverridesView {
    /// The version of the document in force; 0 without one.
    pub version: u64,
    /// Ignored values: not authenticated, older than the document in force, no document at all; and ignored entries.
    pub rejected: [u64; 4],
    /// Whether Redis recently had a value that no host of this fleet wrote.
    pub is_forged: bool,
    /// The part of the room for blocks that is in use.
    pub blocks_ratio: f64,
}

impl Default for FleetCounters {
    fn default() -> FleetCounters {
        let view = FleetView { hosts: 1, counted: 1, ..FleetView::new() };
        FleetCounters {
            view: ArcSwap::from_pointee(view),
            overrides: Mutex::default(),
            heard: AtomicU64::new(0),
        }
    }
}

impl FleetView {
    /// Returns the view before the first connection: every class of failures is present, at zero.
    pub fn new() -> FleetView {
        FleetView { errors: FailureCounts::default().read(), ..FleetView::default() }
    }

    /// Returns the number of hosts that may be cut off from Redis while the others share: this one, which knows of no
    /// other then, or those that Redis misses.
    pub fn cut_off(&self) -> u32 {
        // Before the first heartbeat no host is counted.
        let is_counted = self.alive > 0;
        match self.is_linked {
            _ if !self.is_needed => 0,
            true if is_counted => self.hosts.saturating_sub(self.alive),
            true => 0,
            false => u32::from(self.hosts > 1 || !is_counted),
        }
    }

    pub fn batches(&self) -> [(&'static str, u64); 3] {
        let SyncCounts { batches, unanswered, .. } = self.counts;
        [("answered", batches), ("unanswered", unanswered), ("undecodable", self.undecodable)]
    }

    /// Returns the ignored values and entries of the fleet overrides, by reason.
    pub fn rejected_overrides(&self) -> [(&'static str, u64); 4] {
        let [forged, stale, unreadable, unknown] = self.overrides.rejected;
        [("forged", forged), ("stale", stale), ("unreadable", unreadable), ("unknown", unknown)]
    }

    pub fn remote_checks(&self) -> [(&'static str, u64); 3] {
        let RemoteCheckCounts { answered, missed, declined, .. } = self.remote_checks;
        [("answered", answered), ("late", missed), ("declined", declined)]
    }
}

impl FleetCounters {
    pub fn read(&self) -> Arc<FleetView> {
        self.view.load_full()
    }

    /// The age of the last reply; `None` before the first.
    pub fn staleness(&self, now: Timestamp) -> Option<Duration> {
        let heard = self.heard.load(Ordering::Relaxed);
        (heard > 0).then(|| now.since(Timestamp::from_nanos(heard)))
    }

    pub(super) fn record_reply(&self, now: Timestamp) {
        self.heard.store(now.as_nanos().max(1), Ordering::Relaxed);
    }

    pub(super) fn tell(&self, view: FleetView) {
        self.view.store(Arc::new(view));
    }
}
