//! CPU utilization of the whole machine, sampled once for all pools. Time stolen by a hypervisor counts as used.

use std::fmt;

use sysinfo::{CpuRefreshKind, System};

use super::signal_error::SignalError;
use super::usage_window::UsageWindow;
use crate::clock::{Now, Timestamp};

/// The CPUs of the machine, all together.
pub(super) struct Cpu {
    system: Option<System>,
    /// Busy time since the first sample, in nanoseconds, averaged over the CPUs.
    busy_nanos: u64,
    last: Option<Timestamp>,
    window: UsageWindow,
}

impl Cpu {
    pub(super) fn new() -> Cpu {
        Cpu { system: System::new().ok(), busy_nanos: 0, last: None, window: UsageWindow::new() }
    }

    /// Returns the busy share of the time in thousandths; `None` until there are two samples.
    pub(super) fn read(&mut self, now: Now) -> Result<Option<u32>, SignalError> {
        let system = self.system.as_mut().ok_or(SignalError::NoCpuTime)?;
        system.refresh_cpu_specifics(CpuRefreshKind::nothing().with_usage());
        let percent = system.global_cpu_usage();
        if system.cpus().is_empty() || !percent.is_finite() {
            return Err(SignalError::NoCpuTime);
        }
        // The first figure is the average since boot.
        if let Some(last) = self.last.replace(now.at) {
            let span = u64::try_from(now.at.since(last).as_nanos()).unwrap_or(u64::MAX);
            let busy = (span / 1_000).saturating_mul(u64::from(to_thousandths(percent)));
            self.busy_nanos = self.busy_nanos.saturating_add(busy);
        }
        Ok(self.window.push(now.at, self.busy_nanos).map(|share| share.thousandths_of(1, 1)))
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("busy_nanos", &self.busy_nanos).finish_non_exhaustive()
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1 000")]
fn to_thousandths(percent: f32) -> u32 {
    (percent.clamp(0.0, 100.0) * 10.0).round() as u32
}
