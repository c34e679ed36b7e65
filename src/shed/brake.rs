//! The brake: while requests queue up before the application, each priority keeps to its band of the slots, so that the
//! more important find one free. It acts within seconds where the slow law takes minutes, and only while a queue stands;
//! it looks at no queue itself.
//!
//! Source of the test: the smallest queue over a stretch of time is the standing queue, whatever bursts pass through it
//! (Nichols, Jacobson, “Controlling Queue Delay”, 2012). The gate is ours: bands that always hold refuse work that a host
//! with room could do, bands behind a standing queue do not.

use std::time::Duration;

use crate::clock::Timestamp;

/// Whether the bands hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brake {
    run: Option<Run>,
    /// When there was last cause for it; none while it is off.
    cause: Option<Timestamp>,
}

/// Readings of one kind, all of them high, with no gap.
#[derive(Clone, Copy, Debug)]
struct Run {
    kind: Kind,
    since: Timestamp,
    last: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Queue,
    Utilization,
}

impl Brake {
    /// One that is off.
    #[must_use]
    pub fn new() -> Brake {
        Brake::default()
    }

    /// Whether it is on, as the last tick left it.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.cause.is_some()
    }

    /// Looks at one pair of readings, called every 250 ms. Returns whether it is on from now.
    ///
    /// There is cause when the queue has been at least [`queue_min`] for a second, or for two with fewer than
    /// [`FEW_SLOTS`]: in each reading over that time. `queue` is how many connections wait to be accepted; where that
    /// cannot be read, utilization at [`FULL`] or above for two seconds is cause. Neither reading is no cause. Readings
    /// more than [`GAP_MAX`] apart say nothing of the time between. It goes off [`OFF_AFTER`] after the last cause.
    pub fn tick(
        &mut self,
        at: Timestamp,
        queue: Option<u32>,
        utilization_now: Option<f64>,
        slots: u32,
    ) -> bool {
        let (kind, is_high, span) = match queue {
            Some(queue) => (Kind::Queue, queue >= queue_min(slots), queue_span(slots)),
            None => (Kind::Utilization, utilization_now.is_some_and(|u| u >= FULL), LONG_SPAN),
        };
        let run = self.run.filter(|run| run.kind == kind && at.since(run.last) <= GAP_MAX);
        self.run = is_high.then(|| Run { kind, since: run.map_or(at, |run| run.since), last: at });
        if self.run.is_some_and(|run| at.since(run.since) >= span) {
            // Off => On, On => On
            self.cause = Some(at);
        } else {
            // On => (On | Off)
            self.cause = self.cause.filter(|cause| at.since(*cause) < OFF_AFTER);
        }
        self.is_on()
    }
}

/// The queue that counts as standing: one for each slot, or for each two where slots are few, and never less than two.
#[must_use]
pub fn queue_min(slots: u32) -> u32 {
    // With few slots a queue of one for each is rare even when there is too much to do.
    let queue = if slots < FEW_SLOTS { slots / 2 } else { slots };
    queue.max(2)
}

/// How long it has to stand. With few slots chance alone makes a queue last longer.
fn queue_span(slots: u32) -> Duration {
    if slots < FEW_SLOTS { LONG_SPAN } else { SPAN }
}

/// How many slots a priority may use while the brake is on: its work is refused when so many are busy, or more.
///
/// Rounded up: with four slots a band of 90 % is all of them. Rounded down it would be three, and a small host that is
/// busy by chance would refuse what it has room for. A band of more than 1000 thousandths is all slots.
///
/// ```
/// # use tidegate::shed::band_slots;
/// assert_eq!(band_slots(100, 700), 70);
/// assert_eq!(band_slots(16, 700), 12); // 11.2
/// assert_eq!(band_slots(1, 700), 1);
/// ```
#[must_use]
pub fn band_slots(slots: u32, band_permille: u16) -> u32 {
    let thousandths = u64::from(slots) * u64::from(band_permille.min(1_000));
    u32::try_from(thousandths.div_ceil(1_000)).unwrap_or(slots)
}

/// A pool with fewer slots than this is judged over a longer time, by a shorter queue.
pub const FEW_SLOTS: u32 = 8;

/// The utilization that counts as full where no queue can be read: all slots busy but for moments between two requests.
pub const FULL: f64 = 0.98;

/// How long the brake stays on without cause.
pub const OFF_AFTER: Duration = Duration::from_secs(2);

/// Readings further apart than this are not a run: of eight ticks in two seconds, three may be missing in a row.
pub const GAP_MAX: Duration = Duration::from_secs(1);

/// How long a queue has to stand.
const SPAN: Duration = Duration::from_secs(1);

/// How long it has to stand with few slots, or how long all slots are to be busy.
const LONG_SPAN: Duration = Duration::from_secs(2);
