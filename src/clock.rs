//! The one place that reads a clock. Everything below the server is handed a [`Now`] instead.
//!
//! Elapsed time is never taken from the wall clock: [`Timestamp`] counts the boot-time clock, which neither steps
//! nor stops while the machine sleeps. The wall clock enters as [`Now::utc`] alone, sampled once a second.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the engine's origin. In a replay the origin is the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin itself.
    pub const ORIGIN: Timestamp = Timestamp(0);

    /// A timestamp of so many nanoseconds since the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Timestamp {
        Timestamp(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`, zero when `earlier` is the later one.
    #[must_use]
    pub const fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` moved later; the far end of time (584 years) is a wall.
    #[must_use]
    pub fn after(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// What time it is, as every judgement is told it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Boot-time clock since the engine's origin.
    pub at: Timestamp,
    /// Nanoseconds to add to `at` for Unix time; steps when the wall clock does.
    pub utc: i64,
}

impl Now {
    /// The time `nanos` nanoseconds after the origin, the origin being the Unix epoch: tests and replays.
    #[must_use]
    pub const fn at_nanos(nanos: u64) -> Now {
        Now { at: Timestamp::from_nanos(nanos), utc: 0 }
    }
}

/// A span as the socket says it: whole microseconds, rounded up, so that waiting it out is always enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// No time at all.
    pub const ZERO: Micros = Micros(0);
}

impl From<Micros> for Duration {
    fn from(micros: Micros) -> Duration {
        Duration::from_micros(micros.0)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(Duration::from(*self)).fmt(f)
    }
}

/// The machine's clocks, read relative to the moment this was made.
#[derive(Debug)]
pub struct Clock {
    /// What the boot-time clock showed then.
    began_nanos: u64,
    /// When that is on the timeline, and what the wall clock showed.
    began: Now,
    utc: AtomicI64,
}

impl Clock {
    /// Starts counting: the origin is this moment.
    #[must_use]
    pub fn start() -> Clock {
        Clock::resume(Timestamp::ORIGIN, boot_nanos())
    }

    /// Goes on with a timeline: it was `begins` when the boot-time clock showed this.
    #[must_use]
    pub fn resume(begins: Timestamp, began_nanos: u64) -> Clock {
        let began = Now { at: begins, utc: 0 };
        let mut clock = Clock { began_nanos, began, utc: AtomicI64::new(i64::MIN) };
        clock.sample_utc();
        clock.began.utc = *clock.utc.get_mut();
        clock
    }

    /// When this began to count, which is later than the origin where it goes on with a timeline. Its Unix time is as the
    /// wall clock showed it then: it stays the same, however that is set later.
    #[must_use]
    pub fn began(&self) -> Now {
        self.began
    }

    /// Reads the boot-time clock; the wall clock is as last sampled.
    #[must_use]
    pub fn now(&self) -> Now {
        Now { at: self.timestamp(), utc: self.utc.load(Ordering::Relaxed) }
    }

    /// What the boot-time clock shows at a moment of this timeline.
    #[must_use]
    pub fn boot_nanos_at(&self, at: Timestamp) -> u64 {
        self.began_nanos.saturating_add(at.0.saturating_sub(self.began.at.0))
    }

    /// Looks at the wall clock again. Called once a second: a system call less on every decision. Returns by how much it has
    /// stepped back since, where that is more than the clocks differ by themselves.
    ///
    /// Both clocks are corrected alike, so their difference changes by steps alone, and by what passes between two
    /// readings: a change below [`STEP_NANOS`] is none, or windows would turn by it.
    pub fn sample_utc(&self) -> Option<Duration> {
        let mut best = (u64::MAX, 0);
        for _ in 0..READINGS_MAX {
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
        // Whoever was not running between the readings knows no more than before.
        if sampled.abs_diff(known) < STEP_NANOS || known != i64::MIN && between >= STEP_NANOS {
            return None;
        }
        self.utc.store(sampled, Ordering::Relaxed);
        (sampled < known).then(|| Duration::from_nanos(sampled.abs_diff(known)))
    }

    fn timestamp(&self) -> Timestamp {
        // Saturating: were the boot-time clock ever to run backwards, time would stand still instead of panicking.
        let passed = boot_nanos().saturating_sub(self.began_nanos);
        Timestamp(self.began.at.0.saturating_add(passed))
    }
}

/// The boot-time clock in nanoseconds, for tools that measure a span.
#[must_use]
pub fn boot_nanos() -> u64 {
    nanos_of(ClockId::Boottime)
}

/// The monotonic clock in microseconds: the one that service managers go by. For nothing else, as it stands still while
/// the machine sleeps.
#[must_use]
pub fn monotonic_micros() -> u64 {
    nanos_of(ClockId::Monotonic) / 1_000
}

/// The CPU time that all threads of this process have used since its start, in nanoseconds.
#[must_use]
pub fn cpu_nanos() -> u64 {
    nanos_of(ClockId::ProcessCPUTime)
}

fn nanos_of(clock: ClockId) -> u64 {
    #[allow(clippy::disallowed_methods, reason = "this is the one place")]
    let time = clock_gettime(clock);
    // Both parts are non-negative: these clocks count up from zero, at boot or at the start of the process.
    time.tv_sec.unsigned_abs().saturating_mul(NANOS_PER_SECOND).saturating_add(time.tv_nsec.unsigned_abs())
}

/// The wall clock in nanoseconds since 1970. It steps: only for what is to be compared over a restart of the machine.
#[must_use]
pub fn unix_nanos() -> i64 {
    #[allow(clippy::disallowed_methods, reason = "this is the one place")]
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}

/// What the wall clock is set by, at least: less lies between two readings.
const STEP_NANOS: u64 = 5_000_000;

/// On a host so busy that each reading is interrupted, the last one has to do.
const READINGS_MAX: usize = 4;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
