//! A moment by every clock that there is, and how much time has passed between two of them, also over a reboot.

use std::hash::Hasher;
use std::path::Path;
use std::time::Duration;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::clock::{boot_nanos, unix_nanos};

/// A moment on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Which boot-time clock this is: that of one boot, in one time namespace. `None`: it cannot be told, so it is like no
    /// other.
    pub clock: Option<u128>,
    /// What it shows.
    pub boot_nanos: u64,
    /// What the wall clock shows, in nanoseconds since 1970.
    pub unix_nanos: i64,
}

impl Moment {
    /// Now and here. `boot_id` is the file that names the boot, mostly [`BOOT_ID_FILE`].
    #[must_use]
    pub fn here(boot_id: &Path) -> Moment {
        Moment::when(boot_id, boot_nanos())
    }

    /// The same for a reading of the boot-time clock that was just taken.
    #[must_use]
    pub fn when(boot_id: &Path, boot_nanos: u64) -> Moment {
        Moment { clock: which_clock(boot_id), boot_nanos, unix_nanos: unix_nanos() }
    }

    /// How much time has passed since an earlier moment; `None` where no clock says so.
    ///
    /// The same boot-time clock tells it exactly, whatever the wall clock was set to meanwhile: as it is for a daemon that
    /// has not ended. Over a reboot, and into another time namespace, the wall clock tells it, unless it has gone back.
    #[must_use]
    pub fn since(&self, earlier: &Moment) -> Option<Duration> {
        let by_wall = i128::from(self.unix_nanos) - i128::from(earlier.unix_nanos);
        let is_same = self.clock.is_some() && self.clock == earlier.clock;
        let by_boot = self.boot_nanos.checked_sub(earlier.boot_nanos).filter(|_| is_same);
        by_boot.or_else(|| u64::try_from(by_wall).ok()).map(Duration::from_nanos)
    }
}

/// The boot and the time namespace, in which the clock of one boot may show anything.
fn which_clock(boot_id: &Path) -> Option<u128> {
    let boot = std::fs::read(boot_id).ok().filter(|id| !id.is_empty())?;
    // Kernels that know no time namespaces have no such file, and one clock.
    let offsets = std::fs::read(OFFSETS_FILE).unwrap_or_default();
    let mut hasher = SipHasher13::new();
    hasher.write_u64(boot.len() as u64);
    hasher.write(&boot);
    hasher.write(&offsets);
    Some(hasher.finish128().as_u128())
}

/// What names this boot.
pub const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// By how much a time namespace moves its clocks.
const OFFSETS_FILE: &str = "/proc/self/timens_offsets";
