//! Encodes values as Redis holds them, to the byte.

use tidegate::engine::PoolLoad;

use super::Cell;
use super::heartbeat::{Pool, Said};

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn of_cell(cell: &Cell) -> Vec<u8> {
    let Cell { cell_quota, level, rem, at, reports } = cell;
    let (now, before) = (reports.now, reports.before);
    let mut bytes = cell_quota.version.to_le_bytes().to_vec();
    bytes.extend(small(cell_quota.rate.num()));
    bytes.extend(small(cell_quota.rate.den()));
    bytes.extend(cell_quota.burst.to_le_bytes());
    bytes.extend(level.to_le_bytes());
    bytes.extend(small(*rem));
    for amount in [*at, now.held, before.held, now.demand, before.demand] {
        bytes.extend(amount.to_le_bytes());
    }
    bytes.extend(now.hosts.to_le_bytes());
    bytes.extend(before.hosts.to_le_bytes());
    bytes
}

pub(super) fn of_sums(pool: &Pool) -> Vec<u8> {
    let (PoolLoad { slots, critical, noncritical }, hosts) = pool.sums;
    [pool.since, pool.counted, slots, critical, noncritical, hosts].map(u64::to_le_bytes).concat()
}

pub(super) fn of_said(sent: &Said) -> Vec<u8> {
    let PoolLoad { slots, critical, noncritical } = sent.load;
    [sent.epoch, sent.seq, sent.at, slots, critical, noncritical].map(u64::to_le_bytes).concat()
}

fn small(number: u64) -> [u8; 4] {
    u32::try_from(number).unwrap().to_le_bytes()
}
