//! What is to be told of the talk with other hosts: read by whoever likes, without waiting.

use super::asking::Asked;
use super::call::Host;
use super::link::{Class, NodeStatus};
use super::overrides::OverridesView;
use super::secrets::Mark;
use super::sync::Happened;
use super::tally::Tally;
use crate::clock::Timestamp;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is told, by who talks to who reads.
#[derive(Debug)]
pub struct Counters {
    view: ArcSwap<View>,
    /// Nanoseconds of the timeline; zero: never.
    heard: AtomicU64,
}

/// How it stands with the fleet, a quarter of a second ago at most.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// By what this host is known.
    pub host: Host,
    /// Whether there is any budget to share: without one nobody is spoken to.
    pub is_needed: bool,
    /// What tells the fleet secret of this host from others.
    pub secret: Mark,
    /// Hosts with another fleet secret that were alive at the last beat.
    pub unlike: u32,
    /// Whether Redis is heard.
    pub is_linked: bool,
    /// Hosts that budgets are shared with, this one included: the most of the last half minute.
    pub hosts: u32,
    /// Hosts that were alive at the last beat.
    pub alive: u32,
    /// There and back, smoothed.
    pub round_trip: Duration,
    /// What happened since the start.
    pub happened: Happened,
    /// Calls that requests waited for.
    pub asked: Asked,
    /// Calls sent, of any kind.
    pub calls: u64,
    /// Replies that were none to their call.
    pub undecodable: u64,
    /// Numbers that were absurd, and cut to what can be.
    pub clamped: u64,
    /// How it stands with the fleet overrides.
    pub overrides: OverridesView,
    /// How often Redis was not heard any more.
    pub outages: u64,
    /// Failures of calls and connections, by class.
    pub errors: Vec<(&'static str, u64)>,
    /// Keys that are kept in touch about.
    pub keys: usize,
    /// Cells asked about and answered in the last second.
    pub cells_per_second: u64,
    /// The servers.
    pub nodes: Vec<NodeStatus>,
    /// The version of the numbers of each budget, where it is known.
    pub versions: Vec<(u64, u64)>,
    /// What came of each budget.
    pub tallies: Vec<(u64, Tally)>,
}

impl Default for Counters {
    fn default() -> Counters {
        let errors = Class::NAMES.map(|name| (name, 0)).to_vec();
        let view = View { errors, hosts: 1, ..View::default() };
        Counters { view: ArcSwap::from_pointee(view), heard: AtomicU64::new(0) }
    }
}

impl Counters {
    /// How it stands.
    #[must_use]
    pub fn read(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The age of what was last heard; `None`: nothing was yet.
    #[must_use]
    pub fn staleness(&self, now: Timestamp) -> Option<Duration> {
        let heard = self.heard.load(Ordering::Relaxed);
        (heard > 0).then(|| now.since(Timestamp::from_nanos(heard)))
    }

    pub(super) fn heard(&self, now: Timestamp) {
        self.heard.store(now.as_nanos().max(1), Ordering::Relaxed);
    }

    pub(super) fn tell(&self, view: View) {
        self.view.store(Arc::new(view));
    }
}
