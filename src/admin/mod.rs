//! OPERATORS: what the daemon says of itself over HTTP, and the verbs that tell it something. Nothing is decided here,
//! and no decision waits for it: a thread of its own, which may be late.

mod answer;
mod connection;
mod control;
mod doors;
mod fleet;
mod front;
mod history;
mod http_connections;
mod ledger;
mod metrics;
mod pages;
mod recording;
mod router;
mod rules_page;
mod status;
mod switches;
mod told;
mod verbs;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;

pub use control::{Control, DomainInForce, Reloaded, RulesRecord, ServedSocket, ServerCounts, StateRecord};
pub use doors::{Door, Doors};
pub use fleet::{BudgetCounts, FleetNode, FleetRecord, FleetSecrets, OverridesRecord};
pub use front::SAFETY;
pub use history::History;
pub use http_connections::{HttpConnection, HttpConnections, head_patience};
pub use ledger::Ledger;
pub use pages::paths as page_paths;
pub use status::log_status;
pub use switches::switches;
pub use told::{list, number, word};
pub use verbs::{By, Refusal};

use crate::clock::Clock;
use crate::engine::Engine;
use crate::record::Recorder;

/// What every page and every verb looks at.
#[derive(Clone)]
pub struct Desk {
    /// Who is admitted.
    pub engine: Arc<Engine>,
    /// The daemon's clock.
    pub clock: Arc<Clock>,
    /// The rest of the daemon, as far as operators may look into it or tell it something.
    pub control: Arc<dyn Control>,
    /// What was changed over the rules.
    pub ledger: Arc<Ledger>,
    /// What the last ten minutes were like.
    pub history: Arc<History>,
    /// Where what is judged is put aside while somebody records.
    pub recorder: Arc<Recorder>,
}

impl Desk {
    /// One that has seen nothing yet.
    pub fn new(
        engine: &Arc<Engine>,
        clock: &Arc<Clock>,
        control: Arc<dyn Control>,
        ledger: Arc<Ledger>,
        recorder: &Arc<Recorder>,
    ) -> Desk {
        let (engine, clock, recorder) = (Arc::clone(engine), Arc::clone(clock), Arc::clone(recorder));
        Desk { engine, clock, control, ledger, history: Arc::default(), recorder }
    }
}

/// The thread that answers operators, until it is dropped.
#[derive(Debug)]
pub struct Office {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Office {
    /// Starts the thread; every door that can be opened is open then. One that cannot is told of in the log and tried
    /// again.
    ///
    /// # Errors
    /// The thread, or its runtime, cannot be started.
    pub fn start(desk: Desk, doors: Doors) -> io::Result<Office> {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("admin-verb")
            .max_blocking_threads(VERBS_AT_ONCE)
            .build()?;
        let (tell_tried, tried) = std::sync::mpsc::sync_channel(1);
        let tell_tried = move || {
            let _ = tell_tried.send(());
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn(move || {
            let desk = Arc::new(desk);
            runtime.block_on(async {
                let noted = Arc::clone(&desk);
                tokio::spawn(async move { History::keep(&noted).await });
                doors::serve(desk, doors, tell_tried, &stopped).await;
            });
            // A verb that still waits for something is not waited for.
            runtime.shutdown_background();
        })?;
        // A thread that panicked will not tell.
        let _ = tried.recv();
        Ok(Office { stop, thread: Some(thread) })
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        self.stop.cancel();
        // A panic there has been told already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Verbs wait: for rules to be read, for a file to be on the disk. Operators are few.
const VERBS_AT_ONCE: usize = 4;
