//! Hosts say that they are alive, and what their pools have.

use super::call::{CallFault, Encoded, Host};
use super::cell::HOSTS_MAX;
use super::reply::{Received, Reply, ReplyFault};
use super::scripts;
use super::secrets::Mark;
use super::wire::{EXACT_MAX, Reader, Writer, hex};

/// A beat of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Who it is.
    pub host: Host,
    /// In which life, and the number of this beat in it: what it says of pools takes the place of what earlier ones said.
    pub epoch: u64,
    /// See above.
    pub seq: u64,
    /// Its pools, at most [`POOLS_MAX`], each once.
    pub pools: Vec<PoolReport>,
    /// What tells its fleet secret from others.
    pub secret: Mark,
}

/// What one pool has on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// Which pool.
    pub pool: String,
    /// What it has now; all zero: it is gone.
    pub load: PoolLoad,
}

/// How full a pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolLoad {
    /// Requests it can work on at once.
    pub slots: u64,
    /// How many critical ones it works on.
    pub critical: u64,
    /// How many others.
    pub other: u64,
}

/// What a beat brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beaten {
    /// The clock of Redis.
    pub now_us: u64,
    /// How many hosts are alive.
    pub hosts: u32,
    /// Which of them this one is, in an order that stays.
    pub rank: u32,
    /// The pools in the order of the beat.
    pub pools: Vec<PoolSaid>,
    /// How many of them have the same secret.
    pub alike: u32,
}

/// What one pool has on all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSaid {
    /// The sum.
    pub load: PoolLoad,
    /// Over how many hosts.
    pub hosts: u32,
    /// A later beat came before, by whoever goes by this name: this one counts for nothing.
    pub is_overtaken: bool,
    /// What hosts said before may be missing, as Redis has forgotten it, and not all have had the time to say it again.
    pub may_lack: bool,
}

impl Beat {
    pub(super) fn encode(&self) -> Result<Encoded, CallFault> {
        let mut names: Vec<_> = self.pools.iter().map(|report| &report.pool).collect();
        names.sort_unstable();
        names.dedup();
        if names.len() != self.pools.len() {
            return Err(CallFault::Twice);
        }
        if self.pools.len() > POOLS_MAX {
            return Err(CallFault::Count { found: self.pools.len(), max: POOLS_MAX });
        }
        let mut keys: Vec<_> = KEYS.iter().map(|key| key.to_vec()).collect();
        keys.push(format!("tg:{{tm}}:hosts:{}", self.secret.name()).into_bytes());
        let mut reports = Writer::default();
        for PoolReport { pool, load } in &self.pools {
            keys.push(format!("tg:{{tm}}:p:{pool}").into_bytes());
            load.write(&mut reports);
        }
        let mut number = Writer::default();
        number.amount(self.epoch, EXACT_MAX);
        number.amount(self.seq, EXACT_MAX);
        let args = vec![hex(self.host).into_bytes(), number.bytes, reports.bytes];
        Ok(Encoded { script: &scripts::BEAT, keys, args })
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Result<Received, ReplyFault> {
        let mut from = Reader::of(bytes, HEADER_BYTES + self.pools.len() * POOL_BYTES)?;
        let now_us = from.amount(EXACT_MAX);
        let hosts = from.small(HOSTS_MAX);
        let rank = from.small(HOSTS_MAX);
        let alike = from.small(HOSTS_MAX);
        let pools = self.pools.iter().map(|_| PoolSaid::read(&mut from)).collect();
        let reply = Reply::Beat(Beaten { now_us, hosts, rank, alike, pools });
        Ok(Received { reply, clamped: from.clamped })
    }
}

impl PoolLoad {
    fn write(&self, to: &mut Writer) {
        for count in [self.slots, self.critical, self.other] {
            to.amount(count, COUNT_MAX);
        }
    }
}

impl PoolSaid {
    fn read(from: &mut Reader<'_>) -> PoolSaid {
        let [slots, critical, other] = [(); 3].map(|()| from.amount(COUNT_MAX));
        let hosts = from.small(HOSTS_MAX);
        let [is_overtaken, may_lack] = [(); 2].map(|()| from.byte() != 0);
        PoolSaid { load: PoolLoad { slots, critical, other }, hosts, is_overtaken, may_lack }
    }
}

/// What a beat touches besides its pools.
const KEYS: [&[u8]; 2] = [b"tg:{tm}:hosts", b"tg:{tm}:ranks"];
/// Pools of one beat.
pub const POOLS_MAX: usize = 64;
/// More than any host, or all hosts, together have of anything.
const COUNT_MAX: u64 = 1_000_000_000_000;
const HEADER_BYTES: usize = 20;
const POOL_BYTES: usize = 30;
