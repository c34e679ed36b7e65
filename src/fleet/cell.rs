//! One key's bucket in Redis, seen from a host: what it asks of it and what it is told.
//!
//! Amounts are in µtok, millionths of a token; nothing here is a fraction, and nothing here does I/O.

use crate::rules::fleet_counts;

use super::window::{WindowAsk, WindowSaid};
use super::wire::{EXACT_MAX, Reader, Writer};

/// A refill of `num` µtok every `den` µs, in lowest terms: 1000/s is 1000/1, 10/h is 1/360.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CellRate {
    num: u32,
    den: u32,
}

impl CellRate {
    /// These numbers as they are; `None` where the scripts could not count them exactly ([`fleet_counts`]).
    #[must_use]
    pub fn new(num: u64, den: u64) -> Option<CellRate> {
        let counts = fleet_counts(num, den);
        let (num, den) = (u32::try_from(num).ok()?, u32::try_from(den).ok()?);
        counts.then_some(CellRate { num, den })
    }

    /// The µtok of one step.
    #[must_use]
    pub fn num(self) -> u64 {
        u64::from(self.num)
    }

    /// The µs of one step.
    #[must_use]
    pub fn den(self) -> u64 {
        u64::from(self.den)
    }
}

/// The numbers of a rule for one key, and their place in the row of its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The higher is the newer.
    pub version: u64,
    /// How fast it fills; of a window at the mean, about.
    pub rate: CellRate,
    /// When it is full, or what a window admits, µtok; at most [`BURST_MAX`].
    pub burst: u64,
}

impl Terms {
    /// `slots`: of a window, which has a rate of nothing.
    pub(super) fn write(&self, slots: Option<u32>, to: &mut Writer) {
        to.amount(self.version, EXACT_MAX);
        to.small(if slots.is_some() { 0 } else { self.rate.num });
        to.small(slots.unwrap_or(self.rate.den));
        to.amount(self.burst, BURST_MAX);
    }

    /// For how long a cell with this level is surely kept after a host was told of it: the age up to which a host may say
    /// that it [`knew`](Ask::knew_us) it.
    #[must_use]
    pub fn kept_us(&self, level: i64) -> u64 {
        let need = self.burst.saturating_add_signed(level.saturating_neg());
        need.div_ceil(self.rate.num()).saturating_mul(self.rate.den()).saturating_add(KEPT_FULL_US)
    }
}

/// What a host has said of a cell before, and with it what it got for that: the hold includes the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// What the host held once it had the reply, µtok.
    pub hold: u64,
    /// The demand that it told, mtok/s.
    pub demand: u64,
    /// The generation in which Redis heard it ([`Said::gen`]).
    pub generation: u64,
}

/// What a host asks of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The digest of the key.
    pub key: [u8; 16],
    /// The numbers of its rule as this host has them.
    pub terms: Terms,
    /// The last report that was surely heard. `None` after [`Kind::Unknown`](super::reply::Kind::Unknown), and when the nonce
    /// is another.
    pub last: Option<Report>,
    /// What it holds now, without what it gives back.
    pub hold: u64,
    /// What it gives back.
    pub back: u64,
    /// What it has let through without having it.
    pub owed: u64,
    /// What it would like to get.
    pub want: u64,
    /// What is asked of it, mtok/s.
    pub demand: u64,
    /// How long ago it asked last.
    pub waited_us: u64,
    /// By what a share that is not whole is rounded: 0…999 999, drawn at random.
    pub dice: u32,
    /// How long ago, counted from when it asked, it was told of this cell; `None`: never, or longer than the cell is
    /// surely kept ([`Terms::kept_us`]).
    pub knew_us: Option<u64>,
    /// What there is to be said of a window besides; `None`: it is a bucket.
    pub window: Option<WindowAsk>,
}

impl Ask {
    pub(super) fn write(&self, to: &mut Writer) {
        self.terms.write(self.window.map(|ask| ask.window.slots), to);
        to.amount(self.last.map_or(0, |last| last.hold), AMOUNT_MAX);
        to.amount(self.last.map_or(0, |last| last.demand), DEMAND_MAX);
        to.perhaps(self.last.map(|last| last.generation));
        for amount in [self.hold, self.back, self.owed, self.want] {
            to.amount(amount, AMOUNT_MAX);
        }
        to.amount(self.demand, DEMAND_MAX);
        to.amount(self.waited_us, AMOUNT_MAX);
        to.small(self.dice.min(DICE_MAX));
        to.perhaps(self.knew_us);
        if let Some(window) = &self.window {
            window.write(to);
        }
    }

    /// The most that may be granted: what is wanted, in whole tokens.
    fn grant_max(&self) -> u64 {
        self.want.min(AMOUNT_MAX).div_ceil(TOKEN).saturating_mul(TOKEN)
    }
}

/// What a host is told of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// What is left, µtok; below zero where hosts let more through than they had.
    pub level: i64,
    /// What is asked of all hosts together, mtok/s.
    pub demand: u64,
    /// What this host got: whole tokens, in µtok.
    pub grant: u64,
    /// How many hosts have spoken of this cell in this generation and the last.
    pub hosts: u32,
    /// It was gone before its time, and starts empty.
    pub lost: bool,
    /// The version whose numbers hold.
    pub version: u64,
    /// The generation in which this was said.
    pub generation: u64,
    /// What is said of a window besides.
    pub window: Option<WindowSaid>,
}

impl Said {
    /// `generation`: that of the reply's time. A cell may be one ahead, where the clock went back a little.
    pub(super) fn read(from: &mut Reader<'_>, ask: &Ask, generation: u64) -> Said {
        let level = from.signed(-DEBT_MAX, BURST_MAX.cast_signed());
        let demand = from.amount(2 * DEMAND_MAX);
        let grant = from.amount(ask.grant_max());
        let whole = grant - grant % TOKEN;
        from.clamped += u32::from(whole != grant);
        let hosts = from.small(HOSTS_MAX);
        let lost = from.byte();
        from.clamped += u32::from(lost > 1);
        let version = from.amount(EXACT_MAX);
        let told = from.amount(generation.saturating_add(1));
        from.clamped += u32::from(told < generation);
        Said {
            level,
            demand,
            grant: whole,
            hosts,
            lost: lost != 0,
            version,
            generation: told.max(generation),
            window: ask.window.map(|_| WindowSaid::read(from)),
        }
    }
}

/// µtok in a token.
pub const TOKEN: u64 = 1_000_000;
/// How long reports count apart, µs: this generation and the one before are added up.
pub const GENERATION_US: u64 = 2_000_000;
/// The largest burst, µtok: what 32 bits count, and the deepest debt beside it stays within what Lua counts exactly.
pub const BURST_MAX: u64 = u32::MAX as u64 * TOKEN;
/// Demand above it is told as this, mtok/s.
pub const DEMAND_MAX: u64 = 10_000_000_000_000;
/// Amounts above it are told as this, µtok: two of them add up exactly in Lua.
pub const AMOUNT_MAX: u64 = 1 << 52;
/// No level is further below zero, µtok.
pub(super) const DEBT_MAX: i64 = 4_500_000_000_000_000;
/// More hosts than there are anywhere.
pub(super) const HOSTS_MAX: u32 = 1_000_000_000;
const DICE_MAX: u32 = 999_999;
/// How long a full cell is kept after the last word about it. The scripts add a millisecond.
const KEPT_FULL_US: u64 = 10_000_000;
pub(super) const ASK_BYTES: usize = 108;
pub(super) const SAID_BYTES: usize = 45;
