//! A decision thread: a single-threaded runtime, its share of the connections, one decider.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::connections::ConnectionPermit;
use super::fair_queue::FairQueue;
use super::{ServerState, connection, pulse};
use crate::engine::{Decider, Engine};
use crate::sys;

#[derive(Debug)]
pub(super) struct DecisionThread {
    /// Bounded by the connection limits.
    assignments: UnboundedSender<Assignment>,
    ended: oneshot::Receiver<()>,
}

/// A connection on its way to its thread.
pub(super) type Assignment = (Arc<UnixStream>, ConnectionPermit);

impl DecisionThread {
    pub(super) fn start(
        number: usize,
        engine: &Arc<Engine>,
        shared: &Arc<ServerState>,
        short_slices: bool,
    ) -> std::io::Result<DecisionThread> {
        let fair_queue = Arc::new(FairQueue::new(Arc::clone(&shared.clock)));
        let sleeping = Arc::clone(&fair_queue);
        let (parking, unparking) =
            (Arc::clone(&shared.options.thread_health), Arc::clone(&shared.options.thread_health));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_park(move || {
                sleeping.sleep();
                parking.set_parked(number, true);
            })
            .on_thread_unpark(move || unparking.set_parked(number, false))
            .build()?;
        // If the thread cannot be started, the runtime is shut down here: dropped with the closure, inside of the
        // caller's runtime, it would panic.
        let slot = Arc::new(Mutex::new(Some(runtime)));
        let own_slot = Arc::clone(&slot);
        let decider = Arc::new(Mutex::new(engine.decider()));
        let shared = Arc::clone(shared);
        let (assignments, assigned) = unbounded_channel();
        let (end, ended) = oneshot::channel();
        let spawned = std::thread::Builder::new().name(pulse::thread_name(number)).spawn(move || {
            let Some(runtime) = slot.lock().take() else { return };
            if short_slices && let Err(error) = sys::request_short_slice() {
                debug!(%error, "the scheduler grants no short slice: decisions wait longer on a busy host");
            }
            let (pulse, clock) = (Arc::clone(&shared.options.thread_health), Arc::clone(&shared.clock));
            // Both end with the runtime, and are not subject to the fair queue.
            runtime.spawn(pulse::run_self_checks(number, pulse, clock, Arc::clone(&decider)));
            runtime.spawn(Arc::clone(&fair_queue).begin_rounds());
            runtime.block_on(serve_connections(assigned, &fair_queue, &shared, &decider));
            // The receiver is dropped if the drain timed out.
            let _ = end.send(());
        });
        if let Err(error) = spawned {
            own_slot.lock().take().into_iter().for_each(Runtime::shutdown_background);
            return Err(error);
        }
        Ok(DecisionThread { assignments, ended })
    }

    pub(super) fn assign(&self, socket: Arc<UnixStream>, permit: ConnectionPermit) {
        if self.assignments.send((socket, permit)).is_err() {
            // Dropping the connection closes it: its client decides on its own and reports that later.
            warn!("a decision thread has exited; a connection is refused");
        }
    }

    /// Returns a way to pass it connections until it joins.
    pub(super) fn assignments(&self) -> WeakUnboundedSender<Assignment> {
        self.assignments.downgrade()
    }

    /// Waits until all its connections are closed.
    pub(super) async fn join(self) {
        drop(self.assignments);
        // An error means that the thread panicked, which ends it too.
        let _ = self.ended.await;
    }
}

async fn serve_connections(
    mut assigned: UnboundedReceiver<Assignment>,
    fair_queue: &Arc<FairQueue>,
    shared: &Arc<ServerState>,
    decider: &Arc<Mutex<Decider>>,
) {
    let connections = TaskTracker::new();
    while let Some((socket, permit)) = assigned.recv().await {
        let seat = fair_queue.join(permit.user);
        connections.spawn(connection::serve(socket, permit, seat, Arc::clone(shared), Arc::clone(decider)));
    }
    connections.close();
    connections.wait().await;
}
