//! Reads the clocks. No other module does: everything below the server takes a [`Now`] as an argument.
//!
//! Elapsed time never comes from the wall clock: [`Timestamp`] counts the boot-time clock, which neither steps nor stops
//! while the machine sleeps. The wall clock enters only as [`Now::utc_offset_nanos`], sampled once a second.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Nanoseconds since the engine's origin. In a replay the origin is the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const ORIGIN: Timestamp = Timestamp(0);

    pub const fn from_nanos(nanos: u64) -> Timestamp {
        Timestamp(nanos)
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to `self`; zero if `earlier` is the later one.
    pub const fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    /// Returns the nanoseconds from `earlier` to `self`; zero if `earlier` is the later one.
    pub const fn nanos_since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the timestamp `span` later, saturating at 584 years.
    pub fn after(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The current time, passed to every decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Boot-time clock since the engine's origin.
    pub at: Timestamp,
    /// Nanoseconds to add to `at` for Unix time; steps when the wall clock does.
    pub utc_offset_nanos: i64,
}

impl Now {
    /// Returns the time `nanos` nanoseconds after an origin that is the Unix epoch: for tests and replays.
    pub const fn at_nanos(nanos: u64) -> Now {
        Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: 0 }
    }

    /// Converts a time to nanoseconds of Unix time, by the wall clock as it is now.
    pub fn to_unix_nanos(self, at: Timestamp) -> i64 {
        i64::try_from(at.0).unwrap_or(i64::MAX).saturating_add(self.utc_offset_nanos)
    }

    /// Converts nanoseconds of Unix time; the origin for earlier times.
    pub fn from_unix_nanos(self, unix: i64) -> Timestamp {
        Timestamp(u64::try_from(unix.saturating_sub(self.utc_offset_nanos)).unwrap_or(0))
    }
}

/// A span in whole microseconds, as the protocol has it. Rounded up, so that waiting for it is always enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Micros(pub u64);

impl Micros {
    pub const ZERO: Micros = Micros(0);

    /// Converts nanoseconds, rounded up.
    pub const fn from_nanos(nanos: u64) -> Micros {
        Micros(nanos.div_ceil(NANOS_PER_MICRO))
    }

    /// Converts to nanoseconds, saturated at `u64::MAX`.
    pub const fn as_nanos(self) -> u64 {
        self.0.saturating_mul(NANOS_PER_MICRO)
    }
}

impl From<Duration> for Micros {
    fn from(span: Duration) -> Micros {
        Micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(micros: Micros) -> Duration {
        Duration::from_micros(micros.0)
    }
}

/// For people: at most three digits, rounded up: `850 us`, `12.4 ms`, `11.9 s`; from a minute on in whole seconds.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (per_unit, unit) = match self.0 {
            0 => return f.write_str("0 s"),
            1..=999 => return write!(f, "{} us", self.0),
            1_000..=999_000 => (1_000, "ms"),
            999_001..=59_900_000 => (1_000_000, "s"),
            _ => {
                let seconds = Duration::from_secs(self.0.div_ceil(1_000_000));
                return humantime::format_duration(seconds).fmt(f);
            }
        };
        let tenths = self.0.div_ceil(per_unit / 10);
        let (whole, part) = (tenths / 10, tenths % 10);
        if whole >= 100 || part == 0 {
            return write!(f, "{} {unit}", self.0.div_ceil(per_unit));
        }
        write!(f, "{whole}.{part} {unit}")
    }
}

/// The machine's clocks, mapped to the engine's timeline.
#[derive(Debug)]
pub struct Clock {
    /// The boot-time clock at the start of this process.
    start_boot_nanos: u64,
    /// The same moment on the timeline, with the wall clock as it was then.
    start: Now,
    /// The last sample for [`Now::utc_offset_nanos`].
    utc: AtomicI64,
}

impl Clock {
    /// Starts a timeline: the origin is now.
    pub fn start() -> Clock {
        Clock::resume(Timestamp::ORIGIN, read_boot_nanos())
    }

    /// Continues a timeline, which was at `start` when the boot-time clock was at `start_boot_nanos`.
    pub fn resume(start: Timestamp, start_boot_nanos: u64) -> Clock {
        let start = Now { at: start, utc_offset_nanos: 0 };
        let mut clock = Clock { start_boot_nanos, start, utc: AtomicI64::new(i64::MIN) };
        clock.sample_utc();
        clock.start.utc_offset_nanos = *clock.utc.get_mut();
        clock
    }

    /// Returns the time at which this clock was made, later than the origin if it continues a timeline. Its Unix time
    /// does not change when the wall clock is set later.
    pub fn started_at(&self) -> Now {
        self.start
    }

    /// Reads the boot-time clock. The wall clock is the last sample.
    pub fn now(&self) -> Now {
        Now { at: self.timestamp(), utc_offset_nanos: self.utc.load(Ordering::Relaxed) }
    }

    /// Returns the value of the boot-time clock at a moment of this timeline.
    pub fn boot_nanos_at(&self, at: Timestamp) -> u64 {
        self.start_boot_nanos.saturating_add(at.0.saturating_sub(self.start.at.0))
    }

    /// Samples the wall clock. Returns how far it was set back since the last sample, if at least [`STEP_NANOS`].
    ///
    /// Called once a second, which saves every decision a system call. NTP slews both clocks alike, so their difference
    /// changes only by steps and by the time between two readings. Smaller changes are ignored: they would move the
    /// bounds of windows.
    pub fn sample_utc(&self) -> Option<Duration> {
        let mut best = (u64::MAX, 0);
        for _ in 0..SAMPLES_MAX {
            let (before, unix_nanos, after) = (self.timestamp(), self::unix_nanos(), self.timestamp());
            let between = after.0.saturating_sub(before.0);
            if between < best.0 {
                best = (between, unix_nanos.saturating_sub(i64::try_from(before.0).unwrap_or(i64::MAX)));
            }
            if between < STEP_NANOS / 100 {
                break;
            }
        }
        let (between, sampled) = best;
        let known = self.utc.load(Ordering::Relaxed);
        // A thread that was preempted between the readings has no usable sample.
        if sampled.abs_diff(known) < STEP_NANOS || known != i64::MIN && between >= STEP_NANOS {
            return None;
        }
        self.utc.store(sampled, Ordering::Relaxed);
        (sampled < known).then(|| Duration::from_nanos(sampled.abs_diff(known)))
    }

    fn timestamp(&self) -> Timestamp {
        // Saturating: if the boot-time clock ran backwards, time would stop instead of a panic.
        let passed = read_boot_nanos().saturating_sub(self.start_boot_nanos);
        Timestamp(self.start.at.0.saturating_add(passed))
    }
}

/// Reads the boot-time clock in nanoseconds, for tools that measure a span.
pub fn read_boot_nanos() -> u64 {
    read_nanos(ClockId::Boottime)
}

/// Reads the monotonic clock in microseconds, which the protocol of service managers uses. Not for other uses: it stops
/// while the machine sleeps.
pub fn read_monotonic_micros() -> u64 {
    read_nanos(ClockId::Monotonic) / 1_000
}

/// Reads the CPU time that all threads of this process have used since its start, in nanoseconds.
pub fn read_cpu_nanos() -> u64 {
    read_nanos(ClockId::ProcessCPUTime)
}

fn read_nanos(clock: ClockId) -> u64 {
    #[allow(clippy::disallowed_methods, reason = "this is the one place")]
    let time = clock_gettime(clock);
    // Both parts are non-negative: these clocks count up from zero, at boot or at the start of the process.
    time.tv_sec.unsigned_abs().saturating_mul(NANOS_PER_SECOND).saturating_add(time.tv_nsec.unsigned_abs())
}

/// Reads the wall clock in nanoseconds since 1970. It steps: never for elapsed time.
pub fn unix_nanos() -> i64 {
    #[allow(clippy::disallowed_methods, reason = "this is the one place")]
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}

/// The smallest change that counts as a step of the wall clock: less may pass between two readings.
const STEP_NANOS: u64 = 5_000_000;

/// Attempts to sample both clocks without preemption in between; on a busy host the closest attempt is used.
const SAMPLES_MAX: usize = 4;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

pub const NANOS_PER_MICRO: u64 = 1_000;
