//! Fleet-wide concurrency: the permits that a host has of a key, wants, and gets.
//!
//! After 1.9 s without a reply a host grants nothing: two generations later others may have its permits.

mod page;

pub(super) use page::{NextPermitKey, PermitKeySync, PlacesPace};

use super::call::{CELLS_MAX, CallFault, EncodedCommand, SequencePosition, distinct};
use super::cell::{BURST_MAX, CellReport, DEMAND_MAX, HOSTS_MAX, TOKEN};
use super::scripts;
use super::wire::{EXACT_MAX, ReplyReader, ScriptWriter};

/// One command about the permits of some keys of one cell bucket. Its lane carries no other commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitCommand {
    /// The lane and sequence number of the command.
    pub place: SequencePosition,
    /// At most [`CELLS_MAX`], of distinct keys.
    pub asks: Vec<PermitRequest>,
}

/// The part of a command for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitRequest {
    /// The digest of the key.
    pub key: [u8; 16],
    /// The version of its rule.
    pub version: u64,
    /// The permits of the whole fleet.
    pub max: u32,
    /// The last report that Redis is known to have; its hold in millionths of a permit.
    pub last: Option<CellReport>,
    /// The permits that this host has, in use or not.
    pub hold: u32,
    /// The further permits that it wants.
    pub want: u32,
    /// The part of `want` for pending requests: granted while any permit is free, from any host's share.
    pub need: u32,
    /// The permits that it would use if nothing were refused, in thousandths.
    pub demand: u64,
    /// Random rounding of fractional shares: 0…999 999.
    pub dice: u32,
    /// Microseconds since the last reply about this key; `None` if there was none in the last 10 s.
    pub knew_us: Option<u64>,
}

/// The part of a reply for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPermitReply {
    /// Free permits; below zero if hosts have more than the maximum.
    pub free: i64,
    /// The demand of all hosts, in thousandths.
    pub demand: u64,
    /// Further permits for this host.
    pub grant: u32,
    /// Hosts that have reported this key in this generation and the last.
    pub hosts: u32,
    /// The cell expired early: no permits are granted before every host has reported its own.
    pub lost: bool,
    /// The version of the maximum in force.
    pub version: u64,
    /// The generation of the reply.
    pub generation: u64,
}

impl PermitCommand {
    pub(super) fn encode(&self) -> Result<EncodedCommand, CallFault> {
        distinct(self.asks.iter().map(|ask| ask.key), CELLS_MAX)?;
        let mut asks = ScriptWriter::with_capacity(self.asks.len() * ASK_BYTES);
        self.asks.iter().for_each(|ask| ask.write(&mut asks));
        Ok(EncodedCommand {
            script: &scripts::PLACES,
            keys: self.place.keys('c', self.asks.iter().map(|ask| ask.key)),
            args: vec![self.place.head(), asks.bytes],
        })
    }
}

impl PermitRequest {
    fn write(&self, to: &mut ScriptWriter) {
        to.amount(self.version, EXACT_MAX);
        to.amount(u64::from(self.max) * TOKEN, BURST_MAX);
        to.amount(self.last.map_or(0, |last| last.hold), BURST_MAX);
        to.amount(self.last.map_or(0, |last| last.demand), DEMAND_MAX);
        to.perhaps(self.last.map(|last| last.generation));
        to.amount(u64::from(self.hold) * TOKEN, BURST_MAX);
        to.amount(u64::from(self.want) * TOKEN, BURST_MAX);
        to.amount(u64::from(self.need) * TOKEN, BURST_MAX);
        to.amount(self.demand, DEMAND_MAX);
        to.small(self.dice.min(999_999));
        to.perhaps(self.knew_us);
    }
}

impl KeyPermitReply {
    pub(super) fn read(from: &mut ReplyReader<'_>, ask: &PermitRequest, generation: u64) -> KeyPermitReply {
        let whole = TOKEN.cast_signed();
        let free = from.signed(-EXACT_MAX.cast_signed(), BURST_MAX.cast_signed()).div_euclid(whole);
        let demand = from.amount(2 * DEMAND_MAX);
        let grant = from.amount(u64::from(ask.want) * TOKEN) / TOKEN;
        let hosts = from.small(HOSTS_MAX);
        let lost = from.byte();
        let version = from.amount(EXACT_MAX);
        let told = from.amount(generation.saturating_add(1));
        from.clamped += u32::from(lost > 1) + u32::from(told < generation);
        // Cannot fail: at most `want`.
        let grant = u32::try_from(grant).unwrap_or(ask.want);
        let generation = told.max(generation);
        KeyPermitReply { free, demand, grant, hosts, lost: lost != 0, version, generation }
    }
}

const ASK_BYTES: usize = 84;
pub(super) const SAID_BYTES: usize = 45;
