//! OPERATORS: status pages and verbs over HTTP. Nothing is decided here,
//! and no decision waits for it: a thread of its own, which may be late.

mod answer;
mod change_log;
mod control;
mod fleet;
mod health;
mod history;
mod http_connections;
mod listeners;
mod metrics;
mod pages;
mod recording;
mod router;
mod status;
mod status_page;
mod switches;
mod verbs;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use answer::SAFETY;
pub use change_log::ChangeLedger;
pub use control::{
    DaemonControl, DomainInForce, ProcessRecord, ReloadResult, RulesRecord, ServedSocket, ThreadRecord,
};
pub(crate) use fleet::{FleetPage, FleetRuleStatus, FleetSummary, RedisNodeStatus, ReserveStatus};
pub use history::History;
pub use http_connections::{HttpConnection, HttpConnections, head_patience};
pub use listeners::{AdminSocket, Listeners};
pub use pages::paths as page_paths;
pub use status::log_status;
pub(crate) use status::{DaemonStatus, NamedCounts, RuleStatus};
pub(crate) use switches::{ActiveSwitchesStatus, SwitchesStatus};
pub(crate) use verbs::{FleetKeyKind, FleetKeyStatus};

use crate::clock::Clock;
use crate::engine::Engine;
use crate::fleet::counters::FleetCounters;
use crate::record::Recorder;
use crate::server::ServerCounters;
use crate::state::SnapshotStats;

/// Shared state of all pages and verbs.
#[derive(Clone)]
pub struct AdminState {
    /// The engine.
    pub engine: Arc<Engine>,
    /// The daemon's clock.
    pub clock: Arc<Clock>,
    /// The socket that applications connect to.
    pub socket: ServedSocket,
    /// The counters of the server.
    pub server: Arc<ServerCounters>,
    /// The counters of the snapshots.
    pub snapshots: Arc<SnapshotStats>,
    /// The counters of the sync task; `None`: the settings name no Redis.
    pub fleet: Option<Arc<FleetCounters>>,
    /// The rest of the daemon, as far as operators may read or change it.
    pub control: Arc<dyn DaemonControl>,
    /// The latest changes by operators and by the guard.
    pub ledger: Arc<ChangeLedger>,
    /// History of the last ten minutes.
    pub history: Arc<History>,
    /// Buffers decisions while a recording runs.
    pub recorder: Arc<Recorder>,
}

/// The thread that answers operators, until this is dropped.
#[derive(Debug)]
pub struct AdminThread {
    stop: CancellationToken,
    opened: Receiver<()>,
    ended: Receiver<()>,
}

impl AdminThread {
    /// The handle of the thread, and its work. A listener that cannot be opened is logged and tried again.
    pub fn new(state: AdminState, mut listeners: Listeners) -> (AdminThread, impl FnMut() + Send + 'static) {
        let stop = CancellationToken::new();
        let (tell_opened, opened) = sync_channel(1);
        let (tell_ended, ended) = sync_channel(1);
        // Before the daemon serves: later counts are growth.
        state.history.note(history::HistorySample::take(&state));
        let (state, stopped) = (Arc::new(state), stop.clone());
        let work = move || {
            let opened = || {
                let _ = tell_opened.try_send(());
            };
            serve(&state, &mut listeners, &stopped, &opened);
            // Close before signalling the end: the process may exit right after the signal.
            listeners.admin.close();
            let _ = tell_ended.try_send(());
        };
        (AdminThread { stop, opened, ended }, work)
    }

    /// Waits until every listener that can be opened is open, within this time.
    pub fn await_open(&self, within: Duration) {
        let _ = self.opened.recv_timeout(within);
    }
}

impl Drop for AdminThread {
    fn drop(&mut self) {
        self.stop.cancel();
        // The listeners are closed then, and the path of the socket is left; an answer that takes longer is not waited for.
        let _ = self.ended.recv_timeout(END_MAX);
    }
}

/// Serves until it is stopped.
fn serve(state: &Arc<AdminState>, listeners: &mut Listeners, stopped: &CancellationToken, opened: &dyn Fn()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    #[allow(clippy::expect_used, reason = "for want of descriptors the thread is run again")]
    let runtime = runtime.expect("descriptors for a runtime");
    runtime.block_on(async {
        let noted = Arc::clone(state);
        tokio::spawn(async move { History::keep(&noted).await });
        listeners::serve(Arc::clone(state), listeners, opened, stopped).await;
    });
}

/// How long the end of the daemon waits for this thread, which removes the path of the admin socket: a busy machine may let it
/// run only after hundreds of milliseconds.
const END_MAX: Duration = Duration::from_millis(300);
