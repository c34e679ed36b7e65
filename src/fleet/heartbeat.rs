//! Heartbeats: a host reports that it is alive, and the load of its pools.

use super::cell::HOSTS_MAX;
use super::command::{Host, are_distinct};
use super::link::RedisCommand;
use super::scripts;
use super::secrets::SecretDigest;
use super::wire::{EXACT_MAX, ReplyReader, ScriptWriter};
use crate::engine::PoolLoad;
use crate::terms::hex;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub host: Host,
    pub epoch: u64,
    /// The number of this heartbeat in the epoch. Its pool reports replace those of earlier heartbeats.
    pub seq: u64,
    /// The host's pools, at most [`POOLS_MAX`], each once.
    pub pools: Vec<PoolReport>,
    pub secret: SecretDigest,
    /// The digest of the numbers of all fleet rules in force.
    pub rules: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    pub pool: String,
    /// The load; all zeros if the pool was removed.
    pub load: PoolLoad,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatReply {
    pub hosts: u32,
    /// The pools in the order of the heartbeat.
    pub pools: Vec<FleetPoolLoad>,
    /// Live hosts with the same secret, and with the same rules.
    pub same_secret: u32,
    pub same_rules: u32,
    /// Another daemon uses the name of this host.
    pub is_name_taken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetPoolLoad {
    pub load: PoolLoad,
    /// Redis lost earlier reports, and some hosts may not have reported again yet.
    pub may_lack: bool,
}

impl Heartbeat {
    pub(super) fn encode(&self) -> RedisCommand<'static> {
        let names = self.pools.iter().map(|report| &report.pool);
        debug_assert!(are_distinct(names, 0..=POOLS_MAX), "{self:?}");
        let of_secret = format!("tg:{{tm}}:hosts:{}", self.secret.name()).into_bytes();
        let of_rules = format!("tg:{{tm}}:rules:{:016x}", self.rules).into_bytes();
        let mut keys = vec![b"tg:{tm}:hosts".to_vec(), of_secret, of_rules, b"tg:{tm}:epochs".to_vec()];
        let mut reports = ScriptWriter::default();
        for PoolReport { pool, load } in &self.pools {
            keys.push(format!("tg:{{tm}}:p:{pool}").into_bytes());
            for count in [load.slots, load.critical, load.noncritical] {
                reports.amount(count, COUNT_MAX);
            }
        }
        let mut number = ScriptWriter::default();
        number.amount(self.epoch, EXACT_MAX);
        number.amount(self.seq, EXACT_MAX);
        let args = vec![hex(&self.host).into_bytes(), number.bytes, reports.bytes];
        RedisCommand { script: &scripts::HEARTBEAT, keys, args }
    }

    pub(super) fn read(&self, from: &mut ReplyReader<'_>) -> HeartbeatReply {
        let [hosts, same_secret, same_rules] = [(); 3].map(|()| from.small(HOSTS_MAX));
        let is_name_taken = from.byte() != 0;
        let pools = self.pools.iter().map(|_| {
            let [slots, critical, noncritical] = [(); 3].map(|()| from.amount(COUNT_MAX));
            FleetPoolLoad { load: PoolLoad { slots, critical, noncritical }, may_lack: from.byte() != 0 }
        });
        HeartbeatReply { hosts, same_secret, same_rules, is_name_taken, pools: pools.collect() }
    }
}

pub const POOLS_MAX: usize = 64;
/// An upper bound of any count on one host or all hosts.
const COUNT_MAX: u64 = 1_000_000_000_000;
