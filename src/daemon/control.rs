//! The daemon's state that operators see in addition to the engine: rules, state files, sync, threads.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::fleet_record::fleet_record;
use super::helpers::Helpers;
use super::log_queue::LogQueue;
use super::orders::SwitchesStore;
use super::proof::AfterCrashLoop;
use super::rules_in_force::RulesStatus;
use super::watch::ReloadSignal;
use crate::admin::{
    DaemonControl, DomainInForce, FleetRecord, ProcessRecord, ReloadResult, RulesRecord, ServedSocket,
    ServerCounts, StateRecord,
};
use crate::clock::Clock;
use crate::engine::FleetChange;
use crate::fleet::counters::FleetCounters;
use crate::fleet::task::OverridesHandle;
use crate::host::read_resident_bytes;
use crate::server::ServerCounters;
use crate::state;

pub(super) struct Daemon {
    pub(super) record: Arc<Mutex<RulesStatus>>,
    pub(super) bell: ReloadSignal,
    /// Persists switches and blocks.
    pub(super) orders: Arc<SwitchesStore>,
    pub(super) telemetry: Arc<ServerCounters>,
    /// Counters of writing the state files.
    pub(super) state: Arc<state::SnapshotStats>,
    /// The counters and the handle of the sync task; `None`: the settings name no Redis.
    pub(super) fleet: Option<(Arc<FleetCounters>, OverridesHandle)>,
    pub(super) clock: Arc<Clock>,
    pub(super) rules: String,
    pub(super) socket: ServedSocket,
    pub(super) log: Arc<LogQueue>,
    pub(super) helpers: Helpers,
    pub(super) after_crash_loop: AfterCrashLoop,
    /// Returns the reasons, besides the rules, why no requests should be sent here yet.
    pub(super) unready: Box<dyn Fn() -> Vec<String> + Send + Sync>,
}

impl DaemonControl for Daemon {
    fn rules(&self) -> RulesRecord {
        let record = self.record.lock();
        let in_force = record.domains.iter();
        RulesRecord {
            path: self.rules.clone(),
            last_success: record.last_success,
            last_failure: record.last_failure,
            is_good: record.is_good,
            domains: in_force
                .map(|(name, content)| DomainInForce { name: name.clone(), sha: content.to_string() })
                .collect(),
        }
    }

    fn socket(&self) -> ServedSocket {
        self.socket.clone()
    }

    fn server(&self) -> ServerCounts {
        ServerCounts {
            connections: self.telemetry.connections(),
            refused: self.telemetry.refused_connections().collect(),
            reclaimed: self.telemetry.connections_reclaimed(),
            errors: self.telemetry.errors().collect(),
            missed: self.telemetry.missed_decisions().collect(),
            not_parked: self.telemetry.not_pending().collect(),
            clock_steps_back: self.telemetry.clock_steps_back(),
            shared_domains: self.telemetry.shared_domains(),
        }
    }

    fn state(&self) -> StateRecord {
        let state::SnapshotStats { writes, failures, written_unix_seconds, bytes, .. } = &*self.state;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StateRecord {
            writes: read(writes),
            failures: read(failures),
            written_unix_seconds: read(written_unix_seconds),
            bytes: read(bytes),
            bad: self.state.bad().map(|(file, count)| (file.name(), count)),
        }
    }

    fn fleet(&self) -> FleetRecord {
        fleet_record(self.fleet.as_ref().map(|(counters, _)| &**counters), self.clock.now().at)
    }

    fn process(&self) -> ProcessRecord {
        ProcessRecord {
            log_lines_dropped: self.log.dropped(),
            threads: self.helpers.record(),
            is_after_crash_loop: self.after_crash_loop.load(Ordering::Relaxed),
        }
    }

    fn resident_bytes(&self) -> u64 {
        read_resident_bytes(Path::new("/")).unwrap_or_default()
    }

    fn reload(&self) -> Result<ReloadResult, String> {
        let answer = self.bell.ask_for_answer();
        answer.recv_timeout(RELOAD_PATIENCE).map_err(|_| {
            "the rules are still being read: the log and `tidegate status` will say what comes of it"
                .to_owned()
        })
    }

    fn keep(&self) -> Result<(), String> {
        self.orders.keep()
    }

    fn change_fleet_overrides(&self, change: FleetChange) -> Result<bool, String> {
        let alone = "this host shares nothing with others: name a Redis and a fleet secret in `redis` of the settings";
        self.fleet.as_ref().ok_or(alone)?.1.change(change)
    }

    fn unready(&self) -> Vec<String> {
        let after_crash_loop = self.after_crash_loop.load(Ordering::Relaxed).then(|| {
            "the daemon was in a crash loop: it goes by the last rules that it ran under for a minute, its state is set \
             aside; mend the rules and run `tidegate reload`"
                .to_owned()
        });
        (self.unready)().into_iter().chain(self.helpers.missing()).chain(after_crash_loop).collect()
    }
}

/// A reading waits until the files stop changing; directories may be large and disks slow.
const RELOAD_PATIENCE: Duration = Duration::from_secs(30);
