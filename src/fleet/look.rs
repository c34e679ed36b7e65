//! What operators ask of single cells: to see them, and to fill one again.

use super::call::{Bucket, CELLS_MAX, CallFault, Encoded, distinct, kind};
use super::cell::{AMOUNT_MAX, BURST_MAX, CellRate, DEBT_MAX, DEMAND_MAX, HOSTS_MAX, Terms};
use super::reply::{Received, Reply, ReplyFault};
use super::scripts;
use super::wire::{EXACT_MAX, Reader};

/// Asks what some cells of one bucket are now. Nothing changes by that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peek {
    /// Where they lie.
    pub bucket: Bucket,
    /// At most [`CELLS_MAX`], each once.
    pub keys: Vec<[u8; 16]>,
    /// Whether they are windows.
    pub windows: bool,
}

/// Makes one cell as full as it can be with what hosts hold of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Where it lies.
    pub bucket: Bucket,
    /// The digest of the key.
    pub key: [u8; 16],
    /// Whether it is a window.
    pub window: bool,
}

/// What some cells are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// The clock of Redis.
    pub now_us: u64,
    /// In the order of the call; `None`: there is none, which is as good as a full one.
    pub cells: Vec<Option<Seen>>,
}

/// One cell as an operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The numbers that hold; of a window the rate says nothing.
    pub terms: Terms,
    /// What is left, µtok.
    pub level: i64,
    /// What hosts hold, µtok.
    pub held: u64,
    /// What is asked of them, mtok/s.
    pub demand: u64,
    /// How many they are.
    pub hosts: u32,
}

impl Peek {
    pub(super) fn encode(&self) -> Result<Encoded, CallFault> {
        distinct(self.keys.iter().copied(), CELLS_MAX)?;
        let keys = self.keys.iter().map(|key| self.bucket.cell(kind(self.windows), *key)).collect();
        Ok(Encoded { script: &scripts::PEEK, keys, args: Vec::new() })
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Received, ReplyFault> {
        let mut from = Reader::of(bytes, 8 + self.keys.len() * SEEN_BYTES)?;
        let now_us = from.amount(EXACT_MAX);
        let cells = self.keys.iter().map(|_| Seen::read(&mut from)).collect();
        Ok(Received { reply: Reply::Peek(Peeked { now_us, cells }), clamped: from.clamped })
    }
}

impl Reset {
    pub(super) fn encode(self) -> Encoded {
        Encoded {
            script: &scripts::RESET,
            keys: vec![self.bucket.cell(kind(self.window), self.key)],
            args: Vec::new(),
        }
    }
}

impl Seen {
    fn read(from: &mut Reader<'_>) -> Option<Seen> {
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
        let terms = Terms { version, rate: rate.filter(|_| found == 1)?, burst };
        Some(Seen { terms, level, held, demand, hosts })
    }
}

const SEEN_BYTES: usize = 53;
