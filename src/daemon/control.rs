//! The part of the daemon that operators see and change in addition to the engine: rules, switches, threads.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use super::helpers::Helpers;
use super::last_good::AfterCrashLoop;
use super::log_queue::LogQueue;
use super::operator_control::SwitchesStore;
use super::watch::ReloadSignal;
use crate::admin::{DaemonControl, ProcessRecord, ReloadResult, RulesRecord};
use crate::engine::FleetChange;
use crate::fleet::task::OverridesHandle;
use crate::host::read_resident_bytes;

pub(super) struct Daemon {
    pub(super) record: Arc<Mutex<RulesRecord>>,
    pub(super) reload_signal: ReloadSignal,
    /// Persists switches and blocks.
    pub(super) switches: Arc<SwitchesStore>,
    /// Changes the fleet overrides; `None`: the settings name no Redis.
    pub(super) fleet: Option<OverridesHandle>,
    pub(super) log: Arc<LogQueue>,
    pub(super) helpers: Helpers,
    pub(super) after_crash_loop: AfterCrashLoop,
    /// Returns the reasons, besides the rules, why no requests should be sent here yet.
    pub(super) unready: Box<dyn Fn() -> Vec<String> + Send + Sync>,
}

impl DaemonControl for Daemon {
    fn rules(&self) -> RulesRecord {
        self.record.lock().clone()
    }

    fn process(&self) -> ProcessRecord {
        ProcessRecord {
            resident_bytes: read_resident_bytes(Path::new("/")).unwrap_or_default(),
            log_lines_dropped: self.log.dropped(),
            threads: self.helpers.record(),
            is_after_crash_loop: self.after_crash_loop.load(Ordering::Relaxed),
        }
    }

    fn reload(&self) -> Result<ReloadResult, String> {
        let answer = self.reload_signal.request_result();
        answer.recv_timeout(RELOAD_PATIENCE).map_err(|_| {
            "the rules are still being read: the log and `tidegate status` will show the result".to_owned()
        })
    }

    fn keep(&self) -> Result<(), String> {
        self.switches.keep()
    }

    fn disable_file(&self) -> Option<String> {
        self.switches.disable_file().map(|path| path.display().to_string())
    }

    fn change_fleet_overrides(&self, change: FleetChange) -> Result<bool, String> {
        let alone = "this host shares nothing with others: name a Redis and a fleet secret in `redis` of the settings, or see `tidegate status` if they are there";
        self.fleet.as_ref().ok_or(alone)?.change(change)
    }

    fn unready(&self) -> Vec<String> {
        let after_crash_loop = self.after_crash_loop.load(Ordering::Relaxed).then(|| {
            "the daemon was in a crash loop: it uses the last rules that ran for a minute, and its state is set aside; help: \
             fix the rules, then run `tidegate reload`"
                .to_owned()
        });
        (self.unready)().into_iter().chain(self.helpers.missing()).chain(after_crash_loop).collect()
    }
}

/// A reading waits until the files stop changing; directories may be large and disks slow.
const RELOAD_PATIENCE: Duration = Duration::from_secs(30);
