//! The sync task: a thread that syncs budgets with other hosts through Redis. Decisions do not wait for it.

mod servers;
mod sync_loop;

use super::counters::FleetCounters;
use super::identity::Identity;
use super::link::{LinkOptions, RedisLink, Script};
use super::overrides::sync_overrides;
use super::scripts;
use super::secrets::{OverridesKey, SecretDigest};
use crate::clock::{Clock, Timestamp};
use crate::engine::{Engine, FleetChange, FleetStatus, SharedRemoteChecker};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use sync_loop::SyncLoop;
use tokio::sync::{mpsc, oneshot};

pub struct SyncPlan {
    /// The state that the rules in force share with the task.
    pub status: Arc<FleetStatus>,
    /// The servers, by checked options.
    pub link: LinkOptions,
    pub identity: Identity,
    pub marks: Vec<Vec<u8>>,
    pub secret: SecretDigest,
    pub overrides_key: OverridesKey,
    /// The versions of rules' numbers that the process before has stored.
    pub versions: Option<Vec<u8>>,
    /// Stores identity and versions, if they are stored at all.
    pub keep: Option<StoreMembership>,
}

/// Stores the bytes of an identity and of the versions of rules' numbers. May block on the disk.
pub type StoreMembership = Arc<dyn Fn(&[u8], &[u8]) -> io::Result<()> + Send + Sync>;

/// The handle of the sync task. End it by [`FleetHandle::finish`]; if dropped instead, its borrowed tokens expire.
#[derive(Debug)]
pub struct FleetHandle {
    stop: oneshot::Sender<()>,
    ended: Receiver<()>,
    contact: Receiver<()>,
    pub counters: Arc<FleetCounters>,
    pub overrides: OverridesHandle,
    pub remote_checker: SharedRemoteChecker,
}

#[derive(Clone, Debug)]
pub struct OverridesHandle {
    to_task: mpsc::Sender<OverrideChange>,
    clock: Arc<Clock>,
}

/// An operator's change, when it was sent, and the channel for its outcome.
pub(super) type OverrideChange = (FleetChange, Timestamp, SyncSender<Result<bool, String>>);

impl FleetHandle {
    /// Makes the handle and the work of its thread. Redis need not be reachable yet.
    pub fn new(
        engine: Arc<Engine>,
        clock: Arc<Clock>,
        plan: SyncPlan,
    ) -> (FleetHandle, impl FnMut() + Send + 'static) {
        let (stop, mut stopped) = oneshot::channel();
        let (ends, ended) = sync_channel(1);
        let counters = Arc::new(FleetCounters::default());
        let (to_task, mut changes) = mpsc::channel(CHANGES_MAX);
        let (checks, waiting) = mpsc::channel(CHECKS_MAX);
        let overrides = OverridesHandle { to_task, clock: Arc::clone(&clock) };
        let (options, key) = (plan.link.clone(), plan.overrides_key.clone());
        let parts = (Arc::clone(&engine), Arc::clone(&clock), Arc::clone(&counters));
        let (contacts, contact) = sync_channel(1);
        let mut sync_loop = SyncLoop::new(engine, clock, plan, (Arc::clone(&counters), waiting), contacts);
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            #[allow(clippy::expect_used, reason = "for want of descriptors the thread is run again")]
            let runtime = runtime.expect("descriptors for a runtime");
            runtime.block_on(async {
                let link = RedisLink::start(options.clone(), scripts::all().map(Script::clone).into());
                let link = Arc::new(link);
                tokio::select! {
                    biased;
                    () = sync_loop.run(Arc::clone(&link), &mut stopped) => {}
                    () = sync_overrides(parts.clone(), key.clone(), link, &mut changes) => {}
                }
            });
            // A DNS lookup or a disk write may block a thread indefinitely.
            runtime.shutdown_background();
            let _ = ends.try_send(());
        };
        (FleetHandle { stop, ended, contact, counters, overrides, remote_checker: Arc::new(checks) }, work)
    }

    /// Waits until it is known whether Redis answers, [`CONTACT_MAX`] at most. A request that is judged before follows
    /// `on_redis_down`, as if this host knew of no other request.
    pub fn await_contact(&self) {
        let _ = self.contact.recv_timeout(CONTACT_MAX);
    }

    /// Stops the task after it returns borrowed tokens, within [`LEAVE_MAX`]. Requests must have stopped.
    pub fn finish(self) {
        let _ = self.stop.send(());
        // Continue without a reply as well.
        let _ = self.ended.recv_timeout(LEAVE_MAX * 2);
    }
}

impl OverridesHandle {
    /// Changes the overrides, within a few seconds. Returns whether anything changed.
    ///
    /// # Errors
    /// The reason for a failure, or that the outcome is unknown.
    pub fn change(&self, change: FleetChange) -> Result<bool, String> {
        let (answer, answered) = sync_channel(1);
        let busy = || "too many changes for all hosts at once: try again".to_owned();
        self.to_task.try_send((change, self.clock.now().at, answer)).map_err(|_| busy())?;
        let silent = |_| "the thread that talks with the other hosts does not answer: see the log".to_owned();
        answered.recv_timeout(SAY_MAX).map_err(silent)?
    }
}

/// The longest wait for Redis at a start. Requests wait meanwhile, and pass after the deadlines of their clients.
const CONTACT_MAX: Duration = Duration::from_millis(250);

/// The queue of requests that wait for remote checks: more than come in ten milliseconds.
const CHECKS_MAX: usize = 1_024;

/// The queue of changes: operators are few.
const CHANGES_MAX: usize = 16;

/// Longer than the task tries to apply a change.
const SAY_MAX: Duration = Duration::from_secs(4);

/// The longest shutdown: tokens not returned by then expire within four seconds.
pub const LEAVE_MAX: Duration = Duration::from_millis(300);
