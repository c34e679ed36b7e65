//! A key's window in Redis as a host sees it: how it turns, and its fields in commands and replies.

use super::wire::{EXACT_MAX, ReplyReader, ScriptWriter};
use crate::clock::{Micros, Now, Timestamp};
use crate::engine::NextIncrease;
use std::time::Duration;

/// How the windows of a key turn, as Redis counts: in sub-buckets of equal length, of which the newest count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellWindow {
    /// Sub-buckets that count: 1 for a fixed window, k + 1 for a sliding one of k; at most 61.
    pub slots: u32,
    /// The length of a sub-bucket in microseconds, at least 1; 0 for a calendar.
    pub step: u64,
    /// The start of any sub-bucket, or of the window that this host takes as present, in microseconds of Unix time.
    pub origin: u64,
    /// For a calendar: the ends of that window and of the one after it. The Redis clock decides which of them applies,
    /// if any.
    pub ends: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRequest {
    pub window: CellWindow,
    /// Tokens to refund that were counted as spent, µtok.
    pub refund: u64,
    /// The earliest time at which a part of them was spent, by the Redis clock, µs; `None`: unknown, not refunded.
    pub paid_us: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowReply {
    /// Microseconds until more tokens appear without a refund; 0 if a sliding window has nothing spent.
    pub more_us: u64,
    pub stands: WindowStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStatus {
    /// Tokens remain, or other hosts hold them.
    Open,
    /// All tokens are spent: no host gets any for the next `more_us`.
    SpentOut,
    /// The window that the host took as present is another one.
    OtherWindow,
}

impl CellWindow {
    pub(super) fn write(&self, to: &mut ScriptWriter) {
        to.amount(self.step, STEP_MAX);
        to.amount(self.origin, EXACT_MAX);
        to.perhaps(self.ends.map(|(turn, _)| turn));
        to.perhaps(self.ends.map(|(_, finish)| finish));
    }

    /// How long after a reply the cell is kept at least, or until its window ends, µs.
    pub(super) fn lasts_us(&self, reply: &WindowReply) -> u64 {
        match *self {
            // The newest sub-bucket is one of these.
            CellWindow { slots: slots @ 2.., step, ends: None, .. } => {
                step.saturating_mul(u64::from(slots) - 1)
            }
            _ => reply.more_us,
        }
    }
}

impl WindowRequest {
    pub(super) fn write(&self, to: &mut ScriptWriter) {
        self.window.write(to);
        to.amount(self.refund, super::cell::AMOUNT_MAX);
        to.perhaps(self.paid_us);
    }
}

impl WindowReply {
    pub(super) fn read(from: &mut ReplyReader<'_>) -> WindowReply {
        let more_us = from.amount(EXACT_MAX);
        let stands = match from.byte() {
            0 => WindowStatus::Open,
            1 => WindowStatus::SpentOut,
            other => {
                from.clamped += u32::from(other > 2);
                WindowStatus::OtherWindow
            }
        };
        WindowReply { more_us, stands }
    }

    /// Returns when the window has more tokens, counted from `from`.
    pub(super) fn next_increase(&self, from: Timestamp) -> Option<NextIncrease> {
        let at = from.after(Duration::from_micros(self.more_us));
        (self.more_us > 0).then(|| NextIncrease { at, is_exhausted: self.stands == WindowStatus::SpentOut })
    }
}

/// An estimate of the Redis clock, for calendar windows, whose edges hosts compute: its last reading, and the local
/// time of that reply.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RedisClock(Option<(Timestamp, u64)>);

impl RedisClock {
    /// Records a reading, in microseconds of Unix time, from a reply that arrives now.
    pub(super) fn record_reply(&mut self, now_us: u64, now: Timestamp) {
        self.0 = Some((now, now_us));
    }

    /// The Redis time, late by the latency of a reply; before the first reply, the time of the local clock.
    pub(super) fn unix_us(&self, now: Now) -> u64 {
        match self.0 {
            Some((at, us)) => us.saturating_add(Micros::from(now.at.since(at)).0),
            None => now.at.as_nanos().saturating_add_signed(now.utc_offset_nanos) / 1_000,
        }
    }
}

/// The longest window: 366 days.
pub const STEP_MAX: u64 = 366 * 86_400 * 1_000_000;
