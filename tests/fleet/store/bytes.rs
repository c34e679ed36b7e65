//! What stands in Redis, to the byte.

use tidegate::fleet::beat::PoolLoad;
use tidegate::fleet::cell::TOKEN;
use tidegate::fleet::reply::{CommandReply, CostCover, ReplyKind, ScriptReply};
use tidegate::fleet::window::{WindowReply, WindowStatus};

use super::beat::{Pool, Said};
use super::{Cell, Guard, PlacesCell};

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn of_cell(cell: &Cell) -> Vec<u8> {
    let Cell { terms, level, rem, at, reports } = cell;
    let (now, before) = (reports.now, reports.before);
    let mut bytes = terms.version.to_le_bytes().to_vec();
    bytes.extend(small(terms.rate.num()));
    bytes.extend(small(terms.rate.den()));
    bytes.extend(terms.burst.to_le_bytes());
    bytes.extend(level.to_le_bytes());
    bytes.extend(small(*rem));
    for amount in [*at, now.held, before.held, now.demand, before.demand] {
        bytes.extend(amount.to_le_bytes());
    }
    bytes.extend(now.hosts.to_le_bytes());
    bytes.extend(before.hosts.to_le_bytes());
    bytes
}

pub(super) fn of_places(cell: &PlacesCell) -> Vec<u8> {
    let PlacesCell { version, most, at, reports, closed } = cell;
    let (now, before) = (reports.now, reports.before);
    let amounts = [*version, *most, *at, now.held, before.held, now.demand, before.demand];
    let mut bytes = amounts.map(u64::to_le_bytes).concat();
    bytes.extend(now.hosts.to_le_bytes());
    bytes.extend(before.hosts.to_le_bytes());
    bytes.extend(closed.to_le_bytes());
    bytes
}

pub(super) fn of_guard(guard: &Guard) -> Vec<u8> {
    let mut bytes = guard.epoch.to_le_bytes().to_vec();
    bytes.extend(guard.seq.to_le_bytes());
    bytes.extend(of_reply(&guard.reply));
    bytes
}

fn of_window(said: &WindowReply) -> Vec<u8> {
    let stands = match said.stands {
        WindowStatus::Open => 0,
        WindowStatus::SpentOut => 1,
        WindowStatus::OtherWindow => 2,
    };
    [&said.more_us.to_le_bytes()[..], &[stands]].concat()
}

/// A reply that was done; others are not kept.
fn of_reply(reply: &ScriptReply) -> Vec<u8> {
    match reply {
        ScriptReply::Sync(answer) => {
            let (mut bytes, ReplyKind::Done(said)) = (head(answer), &answer.kind) else {
                panic!("kept undone")
            };
            for said in said {
                bytes.extend(said.level.to_le_bytes());
                bytes.extend(said.demand.to_le_bytes());
                bytes.extend(said.grant.to_le_bytes());
                bytes.extend(said.hosts.to_le_bytes());
                bytes.push(u8::from(said.lost));
                bytes.extend(said.version.to_le_bytes());
                bytes.extend(said.generation.to_le_bytes());
                bytes.extend(said.window.iter().flat_map(of_window));
            }
            bytes
        }
        ScriptReply::Exact(answer) => {
            let (mut bytes, ReplyKind::Done(paid)) = (head(answer), &answer.kind) else {
                panic!("kept undone")
            };
            for paid in paid {
                let wait = match paid.wait {
                    CostCover::No => 0,
                    CostCover::Until(us) => us.cast_signed(),
                    CostCover::Never => -1,
                };
                bytes.extend(paid.level.to_le_bytes());
                bytes.extend(wait.to_le_bytes());
                bytes.push(u8::from(paid.lost));
                bytes.extend(paid.version.to_le_bytes());
                bytes.extend(paid.window.iter().flat_map(of_window));
            }
            bytes
        }
        ScriptReply::Places(answer) => {
            let (mut bytes, ReplyKind::Done(said)) = (head(answer), &answer.kind) else {
                panic!("kept undone")
            };
            for said in said {
                bytes.extend((said.free * TOKEN.cast_signed()).to_le_bytes());
                bytes.extend(said.demand.to_le_bytes());
                bytes.extend((u64::from(said.grant) * TOKEN).to_le_bytes());
                bytes.extend(said.hosts.to_le_bytes());
                bytes.push(u8::from(said.lost));
                bytes.extend(said.version.to_le_bytes());
                bytes.extend(said.generation.to_le_bytes());
            }
            bytes
        }
        other => panic!("kept {other:?}"),
    }
}

fn head<T>(answer: &CommandReply<T>) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(answer.nonce);
    bytes.extend(answer.now_us.to_le_bytes());
    bytes
}

pub(super) fn of_sums(pool: &Pool) -> Vec<u8> {
    let (PoolLoad { slots, critical, other }, hosts) = pool.sums;
    [pool.since, pool.counted, slots, critical, other, hosts].map(u64::to_le_bytes).concat()
}

pub(super) fn of_said(said: &Said) -> Vec<u8> {
    let PoolLoad { slots, critical, other } = said.load;
    [said.epoch, said.seq, said.at, slots, critical, other].map(u64::to_le_bytes).concat()
}

fn small(number: u64) -> [u8; 4] {
    u32::try_from(number).unwrap().to_le_bytes()
}
