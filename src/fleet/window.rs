//! One key's window in Redis, seen from a host: how it turns, what is said of it besides what is said of a bucket, and what is
//! answered.

use super::wire::{EXACT_MAX, Reader, Writer};

/// How the windows of a key turn, as Redis counts: in sub-buckets of one length, of which the newest count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellWindow {
    /// Sub-buckets that count: 1 of a fixed window, k + 1 of one that slides over k of them; at most [`SLOTS_MAX`].
    pub slots: u32,
    /// What turns them.
    pub turns: Turns,
}

/// What turns windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// They are all of one length, in microseconds, counted from a moment of Unix time.
    Every {
        /// How long a sub-bucket is; at least 1.
        step: u64,
        /// Where one of them began.
        origin: u64,
    },
    /// Those of a calendar: the one that this host takes for the present one, and the one after it, in microseconds of Unix
    /// time. Which of them holds, if any, says the clock of Redis.
    Calendar {
        /// Where the first begins.
        start: u64,
        /// Where the second takes its place.
        turn: u64,
        /// Where that ends.
        finish: u64,
    },
}

/// What was paid for a window and was of no use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// µtok.
    pub amount: u64,
    /// The earliest moment at which some of it was paid, by the clock of Redis, µs. `None`: not known, and nothing comes back.
    pub paid_us: Option<u64>,
}

/// What a host asks of a window besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAsk {
    /// How it turns.
    pub window: CellWindow,
    /// What comes back that was counted as spent.
    pub returned: Returned,
}

/// What a host is told of a window besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSaid {
    /// In how many microseconds there is more by itself; 0 where nothing is spent of what slides.
    pub more_us: u64,
    /// How it stands.
    pub stands: Stands,
}

/// How a window stands to one who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// There is something, or others hold it.
    Open,
    /// All of it is spent: nobody gets any before there is more by itself.
    SpentOut,
    /// What the host took for the present window is another one.
    OtherWindow,
}

impl CellWindow {
    pub(super) fn write(&self, to: &mut Writer) {
        let (step, origin, ends) = match self.turns {
            Turns::Every { step, origin } => (step, origin, None),
            Turns::Calendar { start, turn, finish } => (0, start, Some((turn, finish))),
        };
        to.amount(step, STEP_MAX);
        to.amount(origin, EXACT_MAX);
        to.perhaps(ends.map(|(turn, _)| turn));
        to.perhaps(ends.map(|(_, finish)| finish));
    }

    /// What tells it from others.
    pub(super) fn text(&self) -> String {
        match self.turns {
            Turns::Every { step, origin } => format!("{}x{step}+{origin}", self.slots),
            Turns::Calendar { .. } => "calendar".to_owned(),
        }
    }

    /// For how long a host that was told of it surely finds it there, or its window is over: µs.
    pub(super) fn lasts_us(&self, said: &WindowSaid) -> u64 {
        match (self.slots, self.turns) {
            // The newest sub-bucket is one of all these.
            (2.., Turns::Every { step, .. }) => step.saturating_mul(u64::from(self.slots) - 1),
            _ => said.more_us,
        }
    }
}

impl WindowAsk {
    pub(super) fn write(&self, to: &mut Writer) {
        self.window.write(to);
        to.amount(self.returned.amount, super::cell::AMOUNT_MAX);
        to.perhaps(self.returned.paid_us);
    }
}

impl WindowSaid {
    pub(super) fn read(from: &mut Reader<'_>) -> WindowSaid {
        let more_us = from.amount(EXACT_MAX);
        let stands = match from.byte() {
            0 => Stands::Open,
            1 => Stands::SpentOut,
            other => {
                from.clamped += u32::from(other > 2);
                Stands::OtherWindow
            }
        };
        WindowSaid { more_us, stands }
    }
}

/// A minute-hand of sixty sub-buckets, and the one that is leaving.
pub const SLOTS_MAX: u32 = 61;
/// No window is longer than 366 days.
pub const STEP_MAX: u64 = 366 * 86_400 * 1_000_000;
pub(super) const SAID_BYTES: usize = 9;
