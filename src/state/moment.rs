//! A moment by all clocks of the machine, and the time between two moments, also across a reboot.

use std::hash::Hasher;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::clock::{read_boot_nanos, unix_nanos};

/// A moment on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The identity of the boot-time clock: of one boot, in one time namespace. `None` if unknown; it then equals no
    /// other.
    pub clock: Option<u128>,
    /// The boot-time clock, in nanoseconds.
    pub boot_nanos: u64,
    /// The wall clock, in nanoseconds since 1970.
    pub unix_nanos: i64,
}

impl Moment {
    /// Reads all clocks. `boot_id` is the file that identifies the boot, [`BOOT_ID_FILE`] except in tests.
    #[must_use]
    pub fn here(boot_id: &Path) -> Moment {
        Moment::when(boot_id, read_boot_nanos())
    }

    /// Makes a moment from a reading of the boot-time clock that was just taken.
    #[must_use]
    pub fn when(boot_id: &Path, boot_nanos: u64) -> Moment {
        Moment { clock: identify_clock(boot_id), boot_nanos, unix_nanos: unix_nanos() }
    }

    /// Returns the time since an earlier moment; `None` if no clock can measure it.
    ///
    /// Within one boot the boot-time clock is exact, even if the wall clock was set in between. Across a reboot or time
    /// namespaces the wall clock is used, unless it went back.
    #[must_use]
    pub fn since(&self, earlier: &Moment) -> Option<Duration> {
        let by_wall = i128::from(self.unix_nanos) - i128::from(earlier.unix_nanos);
        let is_same = self.clock.is_some() && self.clock == earlier.clock;
        let by_boot = self.boot_nanos.checked_sub(earlier.boot_nanos).filter(|_| is_same);
        by_boot.or_else(|| u64::try_from(by_wall).ok()).map(Duration::from_nanos)
    }
}

/// Hashes the boot ID and the offsets of the time namespace, which shift the boot-time clock.
fn identify_clock(boot_id: &Path) -> Option<u128> {
    let boot = std::fs::read(boot_id).ok().filter(|id| !id.is_empty())?;
    // Kernels without time namespaces lack this file and have one clock.
    let offsets = std::fs::read(OFFSETS_FILE).unwrap_or_default();
    let mut hasher = SipHasher13::new();
    hasher.write_u64(boot.len() as u64);
    hasher.write(&boot);
    hasher.write(&offsets);
    Some(hasher.finish128().as_u128())
}

/// The file that identifies the boot.
pub const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The file with the clock offsets of the time namespace.
const OFFSETS_FILE: &str = "/proc/self/timens_offsets";
