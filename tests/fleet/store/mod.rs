//! Models the shared store in virtual time: the rules of the scripts in `src/fleet/scripts`, in Rust.
//!
//! `tests/redis/fleet_store.rs` compares the two, command by command and bit by bit.
#![allow(dead_code, reason = "no test uses all of it")]

mod bytes;
mod cell;
mod heartbeat;
mod permits;
mod share;
mod version;
mod window;

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use tidegate::fleet::cell::{CellReply, CellRequest};
use tidegate::fleet::command::{CommandHead, KeyPayment, Payment, ScriptCommand, SyncBatch};
use tidegate::fleet::permits::PermitCommand;
use tidegate::fleet::reply::{CommandReply, CostCover, PaymentResult, ScriptReply};
use tidegate::fleet::window::{WindowReply, WindowStatus};

pub use cell::Cell;
use permits::PermitSet;
pub use share::{Reports, Sums};
pub use window::WindowCell;

/// State of one Redis.
#[derive(Clone, Debug, Default)]
pub struct Store {
    births: HashMap<u8, Kept<u64>>,
    cells: HashMap<(u8, [u8; 16]), Kept<Cell>>,
    permits: HashMap<(u8, [u8; 16]), Kept<PermitSet>>,
    windows: HashMap<(u8, [u8; 16]), Kept<WindowCell>>,
    heartbeats: heartbeat::Heartbeats,
    versions: HashMap<u64, Kept<version::Versions>>,
}

/// A value with an expiry.
#[derive(Clone, Debug)]
struct Kept<T> {
    value: T,
    until_ms: u64,
}

impl<T> Kept<T> {
    fn new(value: T, now_us: u64, ms: u64) -> Kept<T> {
        Kept { value, until_ms: now_us / 1000 + ms }
    }

    fn at(&self, now_us: u64) -> Option<&T> {
        (now_us / 1000 <= self.until_ms).then_some(&self.value)
    }
}

impl Store {
    /// Executes one command at this time; returns its reply.
    pub fn execute(&mut self, command: &ScriptCommand, now_us: u64) -> ScriptReply {
        match command {
            ScriptCommand::Sync(batch) => self.sync(batch, now_us),
            ScriptCommand::Exact(payment) => self.exact(payment, now_us),
            ScriptCommand::Permits(command) => self.permits(command, now_us),
            ScriptCommand::Heartbeat(heartbeat) => {
                ScriptReply::Heartbeat(self.heartbeats.heartbeat(heartbeat, now_us))
            }
            ScriptCommand::Version(command) => {
                let kept = self.versions.get(&command.rule).and_then(|kept| kept.at(now_us)).cloned();
                let mut versions = kept.unwrap_or_default();
                let number = versions.number(command);
                self.versions.insert(command.rule, Kept::new(versions, now_us, YEAR_AND_MORE_MS));
                ScriptReply::Version(number)
            }
        }
    }

    fn sync(&mut self, batch: &SyncBatch, now_us: u64) -> ScriptReply {
        let head = &batch.head;
        let (born_us, other) = self.birth(head, now_us);
        let results = batch.asks.iter().map(|ask| {
            let id = (head.bucket.0, ask.key);
            if ask.window.is_some() {
                return self.sync_window(id, ask, other, now_us);
            }
            let value = self.cells.get(&id).and_then(|kept| kept.at(now_us));
            let (mut cell, lost) = Cell::for_request(value, &ask.cell_quota, ask.known_age_us, other, now_us);
            let sent = cell.serve(ask, lost, other);
            self.cells.insert(id, Kept::new(cell, now_us, cell.kept_ms()));
            sent
        });
        let results = results.collect();
        ScriptReply::Sync(CommandReply { born_us, now_us, results })
    }

    fn sync_window(&mut self, id: (u8, [u8; 16]), ask: &CellRequest, other: bool, now_us: u64) -> CellReply {
        let value = self.windows.get(&id).and_then(|kept| kept.at(now_us));
        let window = ask.window.unwrap().window;
        let (cell, lost, is_its) =
            WindowCell::for_request(value, &ask.cell_quota, &window, ask.known_age_us, now_us);
        let Some(mut cell) = cell else { return WindowCell::none(lost, ask.cell_quota.version, now_us) };
        let sent = cell.serve(ask, (lost, is_its), other, now_us);
        let kept = cell.kept_ms();
        self.windows.insert(id, Kept::new(cell, now_us, kept));
        sent
    }

    fn exact(&mut self, payment: &Payment, now_us: u64) -> ScriptReply {
        let head = &payment.head;
        let (born_us, other) = self.birth(head, now_us);
        let (mut all, mut read) = (Vec::new(), BTreeSet::new());
        for check in &payment.checks {
            // A key that several checks name is read, and moved to `now`, once.
            let mut find = |cost: &KeyPayment| {
                let is_read = !read.insert((cost.key, cost.window.is_some()));
                self.find_payer(head, cost, (other, is_read), now_us)
            };
            let found: Vec<_> = check.costs.iter().map(&mut find).collect();
            let all_pay = found.iter().all(|(_, wait)| *wait == CostCover::No);
            for ((payer, wait), cost) in found.into_iter().zip(&check.costs) {
                let id = (head.bucket.0, cost.key);
                all.push(self.pay(id, payer, (cost, wait, all_pay), now_us));
            }
        }
        ScriptReply::Exact(CommandReply { born_us, now_us, results: all })
    }

    /// Returns the cell of a cost, and how long the cost has to wait.
    fn find_payer(
        &self,
        head: &CommandHead,
        cost: &KeyPayment,
        (other, is_read): (bool, bool),
        now_us: u64,
    ) -> (Payer, CostCover) {
        let id = (head.bucket.0, cost.key);
        let Some(window) = &cost.window else {
            let value = self.cells.get(&id).and_then(|kept| kept.at(now_us));
            let request = || Cell::for_request(value, &cost.cell_quota, cost.known_age_us, other, now_us).0;
            let cell = value.copied().filter(|_| is_read).unwrap_or_else(request);
            let paid = cell.look(cost.cost, now_us);
            return (Payer::Bucket(cell, paid), paid.wait);
        };
        let value = self.windows.get(&id).and_then(|kept| kept.at(now_us));
        let (cell, _, is_its) =
            WindowCell::for_request(value, &cost.cell_quota, window, cost.known_age_us, now_us);
        // A host with another window retries immediately.
        let wait = match &cell {
            Some(cell) if is_its => cell.wait(cost.cost, now_us),
            _ => CostCover::Until(1),
        };
        (Payer::Window(cell, is_its), wait)
    }

    fn pay(
        &mut self,
        id: (u8, [u8; 16]),
        payer: Payer,
        (cost, wait, all_pay): (&KeyPayment, CostCover, bool),
        now_us: u64,
    ) -> PaymentResult {
        match payer {
            Payer::Bucket(mut cell, mut paid) => {
                if all_pay {
                    cell.level -= cost.cost.cast_signed();
                    paid.level = cell.level;
                }
                self.cells.insert(id, Kept::new(cell, now_us, cell.kept_ms()));
                paid
            }
            Payer::Window(Some(mut cell), is_its) => {
                let paid = cell.pay(cost, wait, all_pay, is_its, now_us);
                let kept = cell.kept_ms();
                self.windows.insert(id, Kept::new(cell, now_us, kept));
                paid
            }
            Payer::Window(None, _) => PaymentResult {
                level: 0,
                wait,
                window: Some(WindowReply { more_us: 0, stands: WindowStatus::OtherWindow }),
            },
        }
    }

    fn permits(&mut self, command: &PermitCommand, now_us: u64) -> ScriptReply {
        let head = &command.head;
        let (born_us, other) = self.birth(head, now_us);
        let is_lost = other && head.born_us > 0;
        let results = command.requests.iter().map(|request| {
            let id = (head.bucket.0, request.key);
            let kept = self.permits.remove(&id).filter(|kept| kept.at(now_us).is_some());
            let mut set = kept.map(|kept| kept.value).unwrap_or_default();
            let result = set.serve(command.host, request, is_lost, now_us);
            self.permits.insert(id, Kept::new(set, now_us, permits::KEPT_MS));
            result
        });
        let results = results.collect();
        ScriptReply::Permits(CommandReply { born_us, now_us, results })
    }

    /// Returns the creation time of the bucket, and whether the host knows another one.
    fn birth(&mut self, head: &CommandHead, now_us: u64) -> (u64, bool) {
        let kept = self.births.get(&head.bucket.0).and_then(|kept| kept.at(now_us)).copied();
        let born_us = kept.unwrap_or(now_us);
        self.births.insert(head.bucket.0, Kept::new(born_us, now_us, MONTH_MS));
        (born_us, born_us != head.born_us)
    }

    /// Returns the level of the only key at this time, if there is one.
    pub fn level(&self, now_us: u64) -> Option<i64> {
        let cell = self.cells.values().next().and_then(|kept| kept.at(now_us));
        if let Some(mut cell) = cell.copied() {
            cell.forward(now_us);
            return Some(cell.level);
        }
        let mut window = self.windows.values().next()?.at(now_us)?.clone();
        window.forward(now_us);
        Some(window.level())
    }

    pub fn evict(&mut self, bucket: u8, key: [u8; 16]) -> bool {
        let is_window = self.windows.remove(&(bucket, key)).is_some();
        is_window
            | self.cells.remove(&(bucket, key)).is_some()
            | self.permits.remove(&(bucket, key)).is_some()
    }

    pub fn flush(&mut self) {
        *self = Store::default();
    }

    pub fn expire(&mut self, now_us: u64) {
        self.births.retain(|_, kept| kept.at(now_us).is_some());
        self.permits.retain(|_, kept| kept.at(now_us).is_some());
        self.cells.retain(|_, kept| kept.at(now_us).is_some());
        self.windows.retain(|_, kept| kept.at(now_us).is_some());
        self.versions.retain(|_, kept| kept.at(now_us).is_some());
        self.heartbeats.expire(now_us);
    }

    /// Returns each pool as Redis holds it.
    pub fn pools(&self) -> impl Iterator<Item = (String, Hash)> {
        self.heartbeats.pools()
    }

    /// Returns all pools and versions of rules as Redis holds them.
    pub fn hashes(&self) -> BTreeMap<String, Hash> {
        let versions = self.versions.iter().map(|(rule, kept)| {
            let name = format!("tg:{{tm}}:v:{}", bytes::hex(&u128::from(*rule).to_le_bytes()));
            (name, (kept.value.fields(), kept.until_ms))
        });
        self.pools().chain(versions).collect()
    }

    /// Returns all string keys as Redis holds them: bytes and expiry in milliseconds.
    pub fn strings(&self) -> BTreeMap<String, (Vec<u8>, u64)> {
        let mut strings = BTreeMap::new();
        for (bucket, kept) in &self.births {
            strings.insert(
                format!("tg:{{t{bucket:02x}}}:b"),
                (kept.value.to_le_bytes().to_vec(), kept.until_ms),
            );
        }
        for ((bucket, key), kept) in &self.cells {
            let name = format!("tg:{{t{bucket:02x}}}:q:{}", bytes::hex(key));
            strings.insert(name, (bytes::of_cell(&kept.value), kept.until_ms));
        }
        for ((bucket, key), kept) in &self.windows {
            let name = format!("tg:{{t{bucket:02x}}}:w:{}", bytes::hex(key));
            strings.insert(name, (kept.value.bytes(), kept.until_ms));
        }
        strings
    }

    /// Returns the permit sets and the live hosts as Redis holds them: members, scores and expiry in milliseconds.
    pub fn sets(&self) -> BTreeMap<String, (BTreeMap<Vec<u8>, f64>, u64)> {
        let sets = self.permits.iter().map(|((bucket, key), kept)| {
            let name = format!("tg:{{t{bucket:02x}}}:m:{}", bytes::hex(key));
            (name, (kept.value.members(), kept.until_ms))
        });
        let sets = sets.chain([(HOSTS.to_owned(), self.heartbeats.hosts())]);
        sets.filter(|(_, (members, _))| !members.is_empty()).collect()
    }
}

/// The fields of a hash, and its expiry in milliseconds.
pub type Hash = (BTreeMap<String, Vec<u8>>, u64);

pub const HOSTS: &str = "tg:{tm}:hosts";

enum Payer {
    Bucket(Cell, PaymentResult),
    /// The cell if it exists, and whether it is the requested window.
    Window(Option<WindowCell>, bool),
}

const MONTH_MS: u64 = 2_592_000_000;
const YEAR_AND_MORE_MS: u64 = 34_560_000_000;
