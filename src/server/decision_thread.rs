//! One thread that decides: a runtime of its own, its share of the connections, one decider.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::connections::Permit;
use super::fair_queue::FairQueue;
use super::{Shared, connection, pulse};
use crate::engine::{Decider, Engine};
use crate::sys;

/// A handle to one.
#[derive(Debug)]
pub(super) struct DecisionThread {
    /// As many can wait here as may be connected.
    deal: UnboundedSender<Dealt>,
    ended: oneshot::Receiver<()>,
}

/// A connection on its way to its thread.
type Dealt = (Arc<UnixStream>, Permit);

impl DecisionThread {
    pub(super) fn start(
        number: usize,
        engine: &Arc<Engine>,
        shared: &Arc<Shared>,
        short_slices: bool,
    ) -> std::io::Result<DecisionThread> {
        let fair_queue = Arc::new(FairQueue::new(Arc::clone(&shared.clock)));
        let sleeping = Arc::clone(&fair_queue);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(move || sleeping.sleep())
            .build()?;
        let decider = Arc::new(Mutex::new(engine.decider()));
        let shared = Arc::clone(shared);
        let (deal, dealt) = unbounded_channel();
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new().name(pulse::thread_name(number)).spawn(move || {
            if short_slices && let Err(error) = sys::ask_for_short_slice() {
                debug!(%error, "the scheduler grants no short slice: decisions wait longer on a busy host");
            }
            let (beat, clock) = (Arc::clone(&shared.pulse), Arc::clone(&shared.clock));
            // Both end with the runtime, and wait for no connection's admission.
            runtime.spawn(pulse::keep_beating(number, beat, clock, Arc::clone(&decider)));
            runtime.spawn(Arc::clone(&fair_queue).begin_rounds());
            runtime.block_on(serve_connections(dealt, &fair_queue, &shared, &decider));
            // Nobody waits any more when the drain took too long.
            let _ = end.send(());
        })?;
        Ok(DecisionThread { deal, ended })
    }

    /// Hands a connection over.
    pub(super) fn take(&self, socket: Arc<UnixStream>, permit: Permit) {
        if self.deal.send((socket, permit)).is_err() {
            // The connection is closed by dropping it: its client goes on without us and reports it.
            warn!("a decision thread has ended; a connection is refused");
        }
    }

    /// Waits until its connections have ended.
    pub(super) async fn join(self) {
        drop(self.deal);
        // A thread that panicked has ended, too.
        let _ = self.ended.await;
    }
}

async fn serve_connections(
    mut dealt: UnboundedReceiver<Dealt>,
    fair_queue: &Arc<FairQueue>,
    shared: &Arc<Shared>,
    decider: &Arc<Mutex<Decider>>,
) {
    let connections = TaskTracker::new();
    while let Some((socket, permit)) = dealt.recv().await {
        let seat = fair_queue.join(permit.user());
        connections.spawn(connection::serve(socket, permit, seat, Arc::clone(shared), Arc::clone(decider)));
    }
    connections.close();
    connections.wait().await;
}
