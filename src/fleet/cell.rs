//! One key's cell in Redis as a host sees it: requests and replies.
//!
//! Amounts are integers in µtok, millionths of a token. No I/O.

use super::window::{CellWindow, WindowReply, WindowRequest};
use super::wire::{EXACT_MAX, ReplyReader, ScriptWriter};
use crate::clock::{Micros, Timestamp};
use std::time::Duration;

pub use crate::rules::CellRate;

/// The quota of a rule for one key, and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellQuota {
    /// The version; the highest is in force.
    pub version: u64,
    /// The refill rate; without a meaning for a window.
    pub rate: CellRate,
    /// The burst, or the limit of a window, µtok; at most [`BURST_MAX`].
    pub burst: u64,
}

impl CellQuota {
    /// `slots`: those of a window, sent in place of the rate.
    pub(super) fn write(&self, slots: Option<u32>, to: &mut ScriptWriter) {
        to.amount(self.version, EXACT_MAX);
        to.small(if slots.is_some() { 0 } else { self.rate.num });
        to.small(slots.unwrap_or(self.rate.den));
        to.amount(self.burst, BURST_MAX);
    }

    /// The minimum time in µs that Redis keeps a cell of this level after a host read it.
    pub fn kept_us(&self, level: i64) -> u64 {
        let need = self.burst.saturating_add_signed(level.saturating_neg());
        need.div_ceil(self.rate.num()).saturating_mul(self.rate.den()).saturating_add(KEPT_FULL_US)
    }
}

/// When Redis last replied about a cell, and the minimum time that it keeps the cell after that.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastReply {
    pub(super) at: Timestamp,
    pub(super) kept: Duration,
}

impl LastReply {
    /// Makes it for a cell of this level, or for a window by its parts of the request and of the reply.
    pub(super) fn new(
        quota: &CellQuota,
        level: i64,
        window: Option<(CellWindow, WindowReply)>,
        at: Timestamp,
    ) -> LastReply {
        let kept_us = window.map_or_else(|| quota.kept_us(level), |(window, reply)| window.lasts_us(&reply));
        LastReply { at, kept: Duration::from_micros(kept_us) }
    }

    /// The age in µs, as in [`CellRequest::known_age_us`]; `None` if Redis may have expired the cell.
    pub(super) fn age_us(&self, now: Timestamp) -> Option<u64> {
        let age = now.since(self.at);
        (age < self.kept).then(|| Micros::from(age).0)
    }
}

/// A host's earlier report on a cell with its outcome: the hold includes the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellReport {
    /// The tokens that the host held after the reply, µtok.
    pub hold: u64,
    /// The reported demand, mtok/s.
    pub demand: u64,
    /// The generation in which Redis received it ([`CellReply::generation`]).
    pub generation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRequest {
    pub key: [u8; 16],
    /// The quota of its rule as this host has it.
    pub cell_quota: CellQuota,
    /// The last report that Redis surely has. `None` after a command without a reply.
    pub last: Option<CellReport>,
    /// The tokens held now without `back`, µtok.
    pub hold: u64,
    /// The tokens returned, µtok.
    pub back: u64,
    /// The tokens allowed beyond the hold, µtok.
    pub owed: u64,
    /// The tokens wanted, µtok.
    pub want: u64,
    /// The demand on this host, mtok/s.
    pub demand: u64,
    /// The time since the last request, µs.
    pub waited_us: u64,
    /// The random rounding threshold of a fractional share: 0…999 999.
    pub random: u32,
    /// The age at the request of the last report on this cell; `None`: never reported, or older than Redis
    /// surely keeps the cell.
    pub known_age_us: Option<u64>,
    /// The window part of the request; `None` for a bucket.
    pub window: Option<WindowRequest>,
}

impl CellRequest {
    pub(super) fn write(&self, to: &mut ScriptWriter) {
        self.cell_quota.write(self.window.map(|ask| ask.window.slots), to);
        to.amount(self.last.map_or(0, |last| last.hold), AMOUNT_MAX);
        to.amount(self.last.map_or(0, |last| last.demand), DEMAND_MAX);
        to.perhaps(self.last.map(|last| last.generation));
        for amount in [self.hold, self.back, self.owed, self.want] {
            to.amount(amount, AMOUNT_MAX);
        }
        to.amount(self.demand, DEMAND_MAX);
        to.amount(self.waited_us, AMOUNT_MAX);
        to.small(self.random.min(RANDOM_MAX));
        to.perhaps(self.known_age_us);
        if let Some(window) = &self.window {
            window.write(to);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellReply {
    /// The remaining level, µtok; negative if hosts allowed more than they held.
    pub level: i64,
    /// The demand on all hosts together, mtok/s.
    pub demand: u64,
    /// The tokens granted to this host: whole tokens, in µtok.
    pub grant: u64,
    /// Hosts that reported this cell in this generation and the last.
    pub hosts: u32,
    /// The cell was lost before its expiry and starts empty.
    pub lost: bool,
    /// The version of the quota in force.
    pub version: u64,
    pub generation: u64,
    pub window: Option<WindowReply>,
}

impl CellReply {
    /// `generation` is that of the reply's time. A cell may be one ahead after the clock went back.
    pub(super) fn read(from: &mut ReplyReader<'_>, ask: &CellRequest, generation: u64) -> CellReply {
        let level = from.signed(-DEBT_MAX, BURST_MAX.cast_signed());
        let demand = from.amount(2 * DEMAND_MAX);
        // The tokens wanted, rounded up to whole tokens.
        let grant = from.amount(ask.want.min(AMOUNT_MAX).div_ceil(TOKEN).saturating_mul(TOKEN));
        let whole = grant - grant % TOKEN;
        from.clamped += u32::from(whole != grant);
        let hosts = from.small(HOSTS_MAX);
        let lost = from.byte();
        from.clamped += u32::from(lost > 1);
        let version = from.amount(EXACT_MAX);
        let reported = from.amount(generation.saturating_add(1));
        from.clamped += u32::from(reported < generation);
        CellReply {
            level,
            demand,
            grant: whole,
            hosts,
            lost: lost != 0,
            version,
            generation: reported.max(generation),
            window: ask.window.map(|_| WindowReply::read(from)),
        }
    }
}

/// µtok in a token.
pub const TOKEN: u64 = 1_000_000;
/// The length of a generation of reports, µs: reports of the present and the previous one are summed.
pub const GENERATION_US: u64 = 2_000_000;
/// The largest burst, µtok: 32 bits of tokens. With the deepest debt it stays exact in Lua.
pub const BURST_MAX: u64 = u32::MAX as u64 * TOKEN;
/// The highest reported demand, mtok/s; larger values saturate.
pub const DEMAND_MAX: u64 = 10_000_000_000_000;
/// The largest reported amount, µtok; larger values saturate. Two of them add exactly in Lua.
pub const AMOUNT_MAX: u64 = 1 << 52;
/// The deepest debt of a cell, µtok.
pub(super) const DEBT_MAX: i64 = 4_500_000_000_000_000;
pub(super) const HOSTS_MAX: u32 = 1_000_000_000;
const RANDOM_MAX: u32 = 999_999;
/// How long a full cell is kept after its last access, µs. The scripts add 1 ms.
const KEPT_FULL_US: u64 = 10_000_000;
pub(super) const ASK_BYTES: usize = 108;
