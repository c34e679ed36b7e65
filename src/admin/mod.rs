//! OPERATORS: status pages and verbs over HTTP. Nothing is decided here,
//! and no decision waits for it: a thread of its own, which may be late.

// Public for tests alone.
#![doc(hidden)]

pub(crate) mod answer;
mod fleet;
mod health;
mod history;
mod http_connections;
mod listeners;
mod metrics;
mod recording;
mod router;
mod status;
mod status_page;
mod switches;
mod verbs;
mod warnings;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub(crate) use fleet::{
    FleetPage, FleetRuleStatus, FleetSummary, RedisNodeStatus, ReserveStatus, admitted_max,
};
pub use history::History;
pub use http_connections::{HttpConnection, HttpConnections, head_patience};
pub use listeners::{AdminSocket, LOG_TARGET, Listeners};
pub use router::paths as page_paths;
pub(crate) use status::{DaemonStatus, NamedCounts, RuleStatus};
pub use status::{DomainInForce, RulesRecord, log_status};
pub use switches::ChangeLedger;
pub(crate) use switches::{ActiveSwitchesStatus, SwitchesStatus};
pub(crate) use verbs::{FOR_S_MAX, FleetKeyKind, FleetKeyStatus, UnusedAttribute, WhyCheck, WhyStatus};

use crate::adapters::AdapterCounters;
use crate::clock::Clock;
use crate::engine::{Engine, FleetChange};
use crate::fleet::counters::FleetCounters;
use crate::record::Recorder;
use crate::server::{ServerCounters, SocketFile};
use crate::state::SnapshotStats;

/// Shared state of all pages and verbs.
#[derive(Clone)]
pub struct AdminState {
    pub engine: Arc<Engine>,
    pub clock: Arc<Clock>,
    /// The socket that applications connect to, so that a command can tell this daemon from another.
    pub socket: Arc<SocketFile>,
    pub server: Arc<ServerCounters>,
    pub snapshots: Arc<SnapshotStats>,
    /// The counters of the sync task; `None`: the settings name no Redis, or the daemon cannot use it.
    pub fleet: Option<Arc<FleetCounters>>,
    /// Why the daemon cannot use the Redis of its settings.
    pub fleet_failure: Option<Arc<str>>,
    /// The rest of the daemon, as far as operators may read or change it.
    pub control: Arc<dyn DaemonControl>,
    pub ledger: Arc<ChangeLedger>,
    pub history: Arc<History>,
    /// Buffers decisions while a recording runs.
    pub recorder: Arc<Recorder>,
    /// The counters of the adapters: HTTP, RESP, Envoy.
    pub adapters: [Arc<AdapterCounters>; 3],
    /// Why no metrics are served over TCP, although the settings say so.
    pub metrics_failure: Arc<Mutex<Option<String>>>,
}

/// Returns the work of the thread that answers operators, until `stop`. It tells `opened` once every listener that can be
/// opened is open; another one is logged and tried again.
pub fn work(
    state: AdminState,
    mut listeners: Listeners,
    opened: SyncSender<()>,
    stop: CancellationToken,
) -> impl FnMut() + Send + 'static {
    // Before the daemon serves: later counts are growth.
    state.history.note(history::HistorySample::take(&state));
    let state = Arc::new(state);
    move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        #[allow(clippy::expect_used, reason = "for want of descriptors the thread is run again")]
        let runtime = runtime.expect("descriptors for a runtime");
        runtime.block_on(async {
            let noted = Arc::clone(&state);
            tokio::spawn(async move { History::keep(&noted).await });
            listeners::serve(Arc::clone(&state), &mut listeners, &opened, &stop).await;
        });
        drop(runtime);
        listeners.admin.close();
    }
}

/// The parts of the daemon that only its start code knows. Called on the thread that answers
/// operators, so readers must not block; verbs may.
pub trait DaemonControl: Send + Sync {
    /// Returns the rules in force and the result of the last load.
    fn rules(&self) -> RulesRecord;

    fn process(&self) -> ProcessRecord;

    /// Reloads the rules and waits for the result.
    ///
    /// # Errors
    /// A message, if there is no result in time.
    fn reload(&self) -> Result<ReloadResult, String>;

    /// Saves switches and blocks for the next start; they are on disk when this returns.
    ///
    /// # Errors
    /// Why it is not: it holds all the same, until then.
    fn keep(&self) -> Result<(), String>;

    /// Returns the path of the file that disables everything, if there is one.
    fn disable_file(&self) -> Option<String>;

    /// Changes the fleet overrides, and waits until the change is in Redis. Whether it changes anything.
    ///
    /// # Errors
    /// Why they are not changed, or that this is not known.
    fn change_fleet_overrides(&self, change: FleetChange) -> Result<bool, String>;

    /// Returns the reasons, besides the rules, why this host is not ready, each with a fix; empty if it is ready.
    fn unready(&self) -> Vec<String>;
}

/// Memory, the log, the helper threads, and whether the daemon has left a crash loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessRecord {
    /// The memory of the whole process that is resident, in bytes; 0: it cannot be read.
    pub resident_bytes: u64,
    /// Lines of the log that were dropped, because standard error did not take them.
    pub log_lines_dropped: u64,
    pub threads: Vec<ThreadRecord>,
    /// Whether the rules are those of before a crash loop, and the state that it left is set aside.
    pub is_after_crash_loop: bool,
}

/// A helper thread: one that decisions do not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadRecord {
    pub name: &'static str,
    pub is_running: bool,
    /// How often it was run again after a panic.
    pub restarts: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadResult {
    /// Changes, one line each.
    pub changes: Vec<String>,
    /// Why something had to be left out; empty: all that was written is in force.
    pub problems: Vec<String>,
}
