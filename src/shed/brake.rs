//! The brake: while requests queue in front of the application, each priority is limited to its band of the slots, so
//! that more important requests find a free one. It acts within seconds, where the utilization controller takes
//! minutes, and only during a standing queue. Readings of the queue are arguments.
//!
//! Source of the test: the smallest queue over an interval is the standing queue, whatever bursts pass through it
//! (Nichols, Jacobson, “Controlling Queue Delay”, 2012). The gate is not from a source: permanent bands would refuse
//! requests for which the host has room, bands behind a standing queue do not.

use std::time::Duration;

use crate::clock::Timestamp;

/// The state of the brake: whether the bands apply. Initially off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brake {
    run: Option<HighRun>,
    /// The time of the last cause; `None` while the brake is off.
    cause: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct HighRun {
    kind: ReadingKind,
    since: Timestamp,
    last: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadingKind {
    Queue,
    Utilization,
}

impl Brake {
    /// Whether the brake was on after the last tick.
    pub fn is_on(&self) -> bool {
        self.cause.is_some()
    }

    /// Processes one pair of readings; called every 250 ms. Returns whether the brake is on from now.
    ///
    /// A cause is a queue of at least [`queue_min`] in each reading for a second, or for two with fewer than
    /// [`FEW_SLOTS`] slots. `queue` is the number of connections waiting to be accepted; if it cannot be read, a
    /// utilization of at least [`FULL_UTILIZATION`] for two seconds is a cause. Without both readings there is no cause. Readings
    /// more than [`GAP_MAX`] apart start a new run. The brake goes off [`OFF_DELAY`] after the last cause.
    pub fn tick(
        &mut self,
        at: Timestamp,
        queue: Option<u32>,
        utilization_now: Option<f64>,
        slots: u32,
    ) -> bool {
        let (kind, is_high, span) = match queue {
            Some(queue) => (ReadingKind::Queue, queue >= queue_min(slots), queue_span(slots)),
            None => {
                (ReadingKind::Utilization, utilization_now.is_some_and(|u| u >= FULL_UTILIZATION), LONG_SPAN)
            }
        };
        let run = self.run.filter(|run| run.kind == kind && at.since(run.last) <= GAP_MAX);
        self.run = is_high.then(|| HighRun { kind, since: run.map_or(at, |run| run.since), last: at });
        if self.run.is_some_and(|run| at.since(run.since) >= span) {
            // Off => On, On => On
            self.cause = Some(at);
        } else {
            // On => (On | Off)
            self.cause = self.cause.filter(|cause| at.since(*cause) < OFF_DELAY);
        }
        self.is_on()
    }
}

/// The smallest standing queue: one request per slot, or per two slots where slots are few, and at least two.
pub fn queue_min(slots: u32) -> u32 {
    // With few slots a queue of one per slot is rare even under overload.
    let queue = if slots < FEW_SLOTS { slots.div_ceil(2) } else { slots };
    queue.max(2)
}

/// The time for which a queue must stand. With few slots a random queue lasts longer.
fn queue_span(slots: u32) -> Duration {
    if slots < FEW_SLOTS { LONG_SPAN } else { SPAN }
}

/// The number of slots that a priority may use while the brake is on: its requests are refused when as many are busy.
///
/// Rounded up: with four slots a band of 90 % is all of them. Rounded down it would be three, and a small host that is
/// busy by chance would refuse requests for which it has room. A band of more than 1000 thousandths is all slots.
///
/// ```
/// # use tidegate::shed::band_slots;
/// assert_eq!(band_slots(100, 700), 70);
/// assert_eq!(band_slots(16, 700), 12); // 11.2
/// assert_eq!(band_slots(1, 700), 1);
/// ```
pub fn band_slots(slots: u32, band_permille: u16) -> u32 {
    let thousandths = u64::from(slots) * u64::from(band_permille.min(1_000));
    u32::try_from(thousandths.div_ceil(1_000)).unwrap_or(slots)
}

/// A pool with fewer slots than this is judged over a longer time, by a shorter queue.
pub const FEW_SLOTS: u32 = 8;

/// The utilization that counts as full where no queue can be read: all slots are busy except between two requests.
pub const FULL_UTILIZATION: f64 = 0.98;

/// The time for which the brake stays on without cause.
pub const OFF_DELAY: Duration = Duration::from_secs(2);

/// The longest gap within a run: of eight ticks in two seconds, three in a row may be missing.
pub const GAP_MAX: Duration = Duration::from_secs(1);

/// The time for which a queue must stand.
const SPAN: Duration = Duration::from_secs(1);

/// The time for which a queue must stand with few slots, or for which all slots must be busy.
const LONG_SPAN: Duration = Duration::from_secs(2);
