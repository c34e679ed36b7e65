//! CPU time used, of what the machine has; time that a hypervisor took away counts as used. It is looked at once for
//! all pools.

use std::fmt;

use sysinfo::{CpuRefreshKind, System};

use super::unreadable::Unreadable;
use super::window::Window;
use crate::clock::{Now, Timestamp};

/// The CPUs of the machine, all together.
pub(super) struct Cpu {
    system: Option<System>,
    /// How long they have been busy since the first look, in nanoseconds of one that does all their work.
    busy: u64,
    last: Option<Timestamp>,
    window: Window,
}

impl Cpu {
    pub(super) fn new() -> Cpu {
        Cpu { system: System::new().ok(), busy: 0, last: None, window: Window::new() }
    }

    /// Thousandths of the time. None: not yet.
    pub(super) fn read(&mut self, now: Now) -> Result<Option<u32>, Unreadable> {
        let system = self.system.as_mut().ok_or(Unreadable::NoCpuTime)?;
        system.refresh_cpu_specifics(CpuRefreshKind::nothing().with_usage());
        let percent = system.global_cpu_usage();
        if system.cpus().is_empty() || !percent.is_finite() {
            return Err(Unreadable::NoCpuTime);
        }
        // The first figure is that since the machine was started.
        if let Some(last) = self.last.replace(now.at) {
            let span = u64::try_from(now.at.since(last).as_nanos()).unwrap_or(u64::MAX);
            self.busy =
                self.busy.saturating_add((span / 1_000).saturating_mul(u64::from(thousandths(percent))));
        }
        Ok(self.window.push(now.at, self.busy).map(|share| share.thousandths_of(1, 1)))
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cpu").field("busy", &self.busy).finish_non_exhaustive()
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1 000")]
fn thousandths(percent: f32) -> u32 {
    (percent.clamp(0.0, 100.0) * 10.0).round() as u32
}
