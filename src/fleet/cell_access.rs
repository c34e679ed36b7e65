//! Operators' access to single cells: read and refill.

use super::cell::{AMOUNT_MAX, BURST_MAX, CellQuota, CellRate, DEBT_MAX, DEMAND_MAX, HOSTS_MAX};
use super::command::{Bucket, CELLS_MAX, CommandFault, EncodedCommand, distinct, kind};
use super::reply::{Received, ReplyFault, ScriptReply};
use super::scripts;
use super::wire::{EXACT_MAX, ReplyReader};

/// Reads some cells of one bucket, without changing them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peek {
    /// The bucket of the cells.
    pub bucket: Bucket,
    /// At most [`CELLS_MAX`], distinct.
    pub keys: Vec<[u8; 16]>,
    /// Whether the cells are windows.
    pub windows: bool,
}

/// Fills one cell as far as the tokens held by hosts allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The bucket of the cell.
    pub bucket: Bucket,
    /// The digest of the key.
    pub key: [u8; 16],
    /// Whether the cell is a window.
    pub window: bool,
}

/// The reply to [`Peek`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekReply {
    /// The clock of Redis, µs.
    pub now_us: u64,
    /// The cells in the order of the command; `None`: absent, which is equivalent to full.
    pub cells: Vec<Option<CellView>>,
}

/// One cell as an operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellView {
    /// The quota in force; the rate has no meaning for a window.
    pub terms: CellQuota,
    /// The remaining level, µtok.
    pub level: i64,
    /// The tokens held by hosts, µtok.
    pub held: u64,
    /// The demand on those hosts, mtok/s.
    pub demand: u64,
    /// The number of those hosts.
    pub hosts: u32,
}

impl Peek {
    pub(super) fn encode(&self) -> Result<EncodedCommand, CommandFault> {
        distinct(self.keys.iter().copied(), CELLS_MAX)?;
        let keys = self.keys.iter().map(|key| self.bucket.cell(kind(self.windows), *key)).collect();
        Ok(EncodedCommand { script: &scripts::PEEK, keys, args: Vec::new() })
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Received, ReplyFault> {
        let mut from = ReplyReader::of(bytes, 8 + self.keys.len() * SEEN_BYTES)?;
        let now_us = from.amount(EXACT_MAX);
        let cells = self.keys.iter().map(|_| CellView::read(&mut from)).collect();
        Ok(Received { reply: ScriptReply::Peek(PeekReply { now_us, cells }), clamped: from.clamped })
    }
}

impl Reset {
    pub(super) fn encode(self) -> EncodedCommand {
        EncodedCommand {
            script: &scripts::RESET,
            keys: vec![self.bucket.cell(kind(self.window), self.key)],
            args: Vec::new(),
        }
    }
}

impl CellView {
    fn read(from: &mut ReplyReader<'_>) -> Option<CellView> {
        let found = from.byte();
        let version = from.amount(EXACT_MAX);
        let [num, den] = [(); 2].map(|()| u64::from(from.small(u32::MAX)));
        let burst = from.amount(BURST_MAX);
        let level = from.signed(-DEBT_MAX, BURST_MAX.cast_signed());
        let held = from.amount(2 * AMOUNT_MAX);
        let demand = from.amount(2 * DEMAND_MAX);
        let hosts = from.small(2 * HOSTS_MAX);
        let rate = CellRate::new(num, den);
        from.clamped += u32::from(found > 1 || (found == 1 && rate.is_none()));
        let terms = CellQuota { version, rate: rate.filter(|_| found == 1)?, burst };
        Some(CellView { terms, level, held, demand, hosts })
    }
}

const SEEN_BYTES: usize = 53;
