//! Cells that go by other names once another secret makes them: read under the one and written under the other, to the byte.
//! Both may be said any number of times.
//!
//! Why nothing is lost and nothing is there twice: whatever is said of a cell by its old name after the moment of the turn is
//! not heard by who said it (the reply says when it was done), so a cell is read as it was at that moment, or with less. Who
//! asks by the new name has carried the cell there first, so the first of all hosts does; the later ones change nothing. What
//! hosts hold is in the cell, as they reported it by the old name. So it is one cell with two names, one after the other, and
//! what holds for a cell holds over the turn.

use super::call::{Bucket, CELLS_MAX, CallFault, Encoded, distinct, kind};
use super::reply::{Received, Reply, ReplyFault};
use super::scripts;
use super::wire::{EXACT_MAX, Reader, Writer};

/// One cell, of tokens or of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CellName {
    /// The digest of the key.
    pub key: [u8; 16],
    /// Whether it is a window.
    pub window: bool,
}

/// Asks what cells of one bucket were at a moment, after which nobody speaks of them any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lift {
    /// Where they lie.
    pub bucket: Bucket,
    /// By the clock of Redis.
    pub from_us: u64,
    /// At most [`CELLS_MAX`], each once.
    pub cells: Vec<CellName>,
}

/// Gives cells of one bucket what others were at a moment, unless somebody has done so, or it is yet to come by the clock there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plant {
    /// Where they lie.
    pub bucket: Bucket,
    /// By the clock of Redis.
    pub from_us: u64,
    /// At most [`CELLS_MAX`], each once, with its bytes.
    pub cells: Vec<(CellName, Vec<u8>)>,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifted {
    /// The clock of Redis.
    pub now_us: u64,
    /// The bytes of each cell, none where there is none; `None`: the moment is yet to come.
    pub cells: Option<Vec<Vec<u8>>>,
}

impl Lift {
    pub(super) fn encode(&self) -> Result<Encoded, CallFault> {
        let keys = keys(self.bucket, self.cells.iter().copied())?;
        let mut from = Writer::default();
        from.amount(self.from_us, EXACT_MAX);
        Ok(Encoded { script: &scripts::LIFT, keys, args: vec![from.bytes] })
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Received, ReplyFault> {
        let fault = |expected| ReplyFault::Length { expected, found: bytes.len() };
        let (head, mut rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(fault(HEADER_BYTES))?;
        let mut from = Reader::of(head, HEADER_BYTES)?;
        let now_us = from.amount(EXACT_MAX);
        let mut cells = None;
        if now_us >= self.from_us {
            let mut all = Vec::with_capacity(self.cells.len());
            for _ in &self.cells {
                let (length, behind) = rest.split_first_chunk::<4>().ok_or(fault(bytes.len() + 4))?;
                let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
                let (cell, behind) = behind
                    .split_at_checked(length)
                    .filter(|_| length <= CELL_BYTES_MAX)
                    .ok_or(fault(bytes.len().saturating_add(length)))?;
                all.push(cell.to_vec());
                rest = behind;
            }
            cells = Some(all);
        }
        match rest {
            [] => Ok(Received { reply: Reply::Lift(Lifted { now_us, cells }), clamped: from.clamped }),
            more => Err(fault(bytes.len() - more.len())),
        }
    }
}

impl Plant {
    pub(super) fn encode(&self) -> Result<Encoded, CallFault> {
        let keys = keys(self.bucket, self.cells.iter().map(|(name, _)| *name))?;
        let mut from = Writer::default();
        from.amount(self.from_us, EXACT_MAX);
        let cells = self.cells.iter().map(|(_, bytes)| bytes.clone());
        Ok(Encoded { script: &scripts::PLANT, keys, args: [from.bytes].into_iter().chain(cells).collect() })
    }
}

fn keys(
    bucket: Bucket,
    cells: impl ExactSizeIterator<Item = CellName> + Clone,
) -> Result<Vec<Vec<u8>>, CallFault> {
    distinct(cells.clone().map(|cell| cell.key), CELLS_MAX)?;
    Ok(cells.map(|cell| bucket.cell(kind(cell.window), cell.key)).collect())
}

/// More than the largest cell has, which is a window of 61 parts.
const CELL_BYTES_MAX: usize = 1_024;

const HEADER_BYTES: usize = 8;
