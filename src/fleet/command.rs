//! Redis commands as plain data, and their encoding.
//!
//! Every key that a script touches is listed here; no script makes up a key. All keys of a command share one
//! hash tag, so that they lie in one slot of a cluster.

use super::cell::{AMOUNT_MAX, ASK_BYTES, CellQuota, CellRequest};
use super::heartbeat::Heartbeat;
use super::link::RedisCommand;
use super::permits::PermitCommand;
use super::scripts;
use super::version::VersionCommand;
use super::window::CellWindow;
use super::wire::{EXACT_MAX, ScriptWriter, push_hex};
use crate::clock::Timestamp;
use crate::engine::Shortfall;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The name of a host.
pub type Host = [u8; 16];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptCommand {
    /// Reports, refunds and borrows tokens.
    Sync(SyncBatch),
    /// Pays at once for remote checks.
    Exact(Payment),
    /// Reports permits and asks for more.
    Permits(PermitCommand),
    Heartbeat(Heartbeat),
    /// Asks for the version of a rule's quota.
    Version(VersionCommand),
}

impl ScriptCommand {
    /// Encodes the command; equal commands give equal bytes.
    pub fn encode(&self) -> RedisCommand<'static> {
        match self {
            ScriptCommand::Sync(batch) => batch.encode(),
            ScriptCommand::Exact(payment) => payment.encode(),
            ScriptCommand::Permits(permits) => permits.encode(),
            ScriptCommand::Heartbeat(heartbeat) => heartbeat.encode(),
            ScriptCommand::Version(version) => version.encode(),
        }
    }

    /// The number of token cells it asks about ahead of need.
    pub fn cells(&self) -> usize {
        if let ScriptCommand::Sync(batch) = self { batch.asks.len() } else { 0 }
    }

    /// The hash tag of all its keys, which decides the server.
    pub fn tag(&self) -> String {
        match self {
            ScriptCommand::Sync(batch) => batch.head.bucket.tag(),
            ScriptCommand::Exact(payment) => payment.head.bucket.tag(),
            ScriptCommand::Permits(permits) => permits.head.bucket.tag(),
            ScriptCommand::Heartbeat(_) | ScriptCommand::Version(_) => OF_ALL.to_owned(),
        }
    }
}

/// The hash tag of the keys that concern all hosts.
pub(super) const OF_ALL: &str = "tm";

/// A group of cells that lie in one slot, so that one script can access them, by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket(pub u8);

impl Bucket {
    /// All buckets, however many of them there are.
    pub(super) fn all() -> impl Iterator<Item = Bucket> {
        (0..=u8::MAX).map(Bucket)
    }

    pub fn tag(self) -> String {
        format!("t{:02x}", self.0)
    }

    /// The name of a cell: kind `q` for a token bucket, `w` for a window, `m` for permits.
    pub(super) fn cell(self, kind: char, key: [u8; 16]) -> Vec<u8> {
        let mut name = self.name_of(2 + 2 * key.len());
        name.extend([u8::try_from(kind).unwrap_or(b'?'), b':']);
        push_hex(&mut name, &key);
        name
    }

    /// The common prefix of its names, with capacity for `more` further bytes.
    fn name_of(self, more: usize) -> Vec<u8> {
        let mut name = Vec::with_capacity(b"tg:{t00}:".len() + more);
        name.extend_from_slice(b"tg:{t");
        push_hex(&mut name, &[self.0]);
        name.extend_from_slice(b"}:");
        name
    }
}

/// The common part of commands about the cells of one bucket. A command is sent once: after a failure its effect is
/// unknown, and the next one about the same keys reports anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandHead {
    pub bucket: Bucket,
    /// When Redis created the bucket, by its clock, as of the last reply; 0: unknown.
    pub born_us: u64,
    /// When this host sent the command. Not part of its bytes.
    pub sent_at: Timestamp,
}

impl CommandHead {
    pub(super) fn keys(&self, cells: impl Iterator<Item = (char, [u8; 16])>) -> Vec<Vec<u8>> {
        let mut keys = Vec::with_capacity(CELLS_MAX + 1);
        let mut birth = self.bucket.name_of(1);
        birth.push(b'b');
        keys.push(birth);
        keys.extend(cells.map(|(kind, cell)| self.bucket.cell(kind, cell)));
        keys
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.born_us.min(EXACT_MAX).to_le_bytes().to_vec()
    }
}

/// The buckets as one sender of commands knows them.
#[derive(Debug)]
pub(super) struct Buckets(Vec<BucketState>);

#[derive(Clone, Copy, Debug, Default)]
struct BucketState {
    /// When Redis created the bucket, as of the last reply; 0: unknown.
    born_us: u64,
    /// Commands without a reply.
    in_flight: u32,
}

impl Buckets {
    /// Makes this many (1 to 256), of which nothing is known.
    pub(super) fn new(count: u16) -> Buckets {
        Buckets(vec![BucketState::default(); usize::from(count.clamp(1, 256))])
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn of(&self, key: &[u8; 16]) -> Bucket {
        let [first, ..] = *key;
        let bucket = usize::from(first).checked_rem(self.0.len()).unwrap_or(0);
        // Proof: below 256, as `first` is.
        Bucket(u8::try_from(bucket).unwrap_or(0))
    }

    /// Whether fewer than `max` commands are without a reply.
    pub(super) fn has_room(&self, bucket: Bucket, max: u32) -> bool {
        self.0.get(usize::from(bucket.0)).is_some_and(|state| state.in_flight < max)
    }

    pub(super) fn has_commands(&self) -> bool {
        self.0.iter().any(|state| state.in_flight > 0)
    }

    /// Counts a command, and makes its head.
    pub(super) fn send(&mut self, bucket: Bucket, now: Timestamp) -> CommandHead {
        let state = self.state(bucket);
        state.in_flight += 1;
        CommandHead { bucket, born_us: state.born_us, sent_at: now }
    }

    /// Ends a command. Returns whether Redis has lost the bucket since an earlier reply.
    pub(super) fn answered(&mut self, head: &CommandHead, born_us: u64) -> bool {
        self.failed(head);
        let before = std::mem::replace(&mut self.state(head.bucket).born_us, born_us);
        before != 0 && before != born_us
    }

    /// Ends a command that may or may not have run.
    pub(super) fn failed(&mut self, head: &CommandHead) {
        let state = self.state(head.bucket);
        state.in_flight = state.in_flight.saturating_sub(1);
    }

    pub(super) fn forget_commands(&mut self) {
        self.0.iter_mut().for_each(|state| state.in_flight = 0);
    }

    #[allow(clippy::indexing_slicing, reason = "buckets are those of keys, and commands have no others")]
    fn state(&mut self, bucket: Bucket) -> &mut BucketState {
        &mut self.0[usize::from(bucket.0)]
    }
}

/// Parts of commands, each about one key, gathered by bucket and command.
#[derive(Debug)]
pub(super) struct Batches<T>(BTreeMap<Bucket, Vec<Vec<T>>>);

impl<T> Batches<T> {
    pub(super) const fn new() -> Batches<T> {
        Batches(BTreeMap::new())
    }

    /// Adds a part to the last command of its bucket, or to another if that is full or names the key already.
    pub(super) fn add(&mut self, bucket: Bucket, part: T, key: impl Fn(&T) -> [u8; 16]) {
        let commands = self.0.entry(bucket).or_default();
        let is_new = |parts: &&mut Vec<T>| parts.iter().all(|before| key(before) != key(&part));
        match commands.last_mut().filter(|parts| parts.len() < CELLS_MAX).filter(is_new) {
            Some(parts) => parts.push(part),
            None => commands.push(vec![part]),
        }
    }

    /// The number of commands of a bucket.
    pub(super) fn count(&self, bucket: Bucket) -> u32 {
        self.0.get(&bucket).map_or(0, |commands| u32::try_from(commands.len()).unwrap_or(u32::MAX))
    }

    /// The parts of each command.
    pub(super) fn all(self) -> impl Iterator<Item = (Bucket, Vec<T>)> {
        self.0
            .into_iter()
            .flat_map(|(bucket, commands)| commands.into_iter().map(move |parts| (bucket, parts)))
    }
}

/// A sync: this host's requests about some cells of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncBatch {
    pub head: CommandHead,
    /// At most [`CELLS_MAX`], with distinct keys. None: the command shows whether Redis runs commands.
    pub asks: Vec<CellRequest>,
    /// The numbers of the keys in the table of this host. Not part of its bytes.
    pub numbers: Vec<usize>,
}

impl SyncBatch {
    fn encode(&self) -> RedisCommand<'static> {
        debug_assert!(are_distinct(self.asks.iter().map(|ask| ask.key), 0..=CELLS_MAX), "{self:?}");
        let mut asks = ScriptWriter { bytes: Vec::with_capacity(self.asks.len() * ASK_BYTES) };
        self.asks.iter().for_each(|ask| ask.write(&mut asks));
        RedisCommand {
            script: &scripts::SYNC,
            keys: self.head.keys(self.asks.iter().map(|ask| (kind(ask.window.is_some()), ask.key))),
            args: vec![self.head.bytes(), asks.bytes],
        }
    }
}

/// The payments of remote checks in one bucket, each of all its keys here or of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    pub head: CommandHead,
    /// Of at most [`CELLS_MAX`] costs together.
    pub checks: Vec<CheckPayment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckPayment {
    /// The number of the check. Not part of the bytes.
    pub number: u64,
    /// At most [`CELLS_MAX`], with distinct keys. A request that lacks more waits for several payments.
    pub costs: Vec<KeyPayment>,
    /// What the request lacks, in the order of the costs. Not part of the bytes.
    pub needs: Vec<Shortfall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPayment {
    pub key: [u8; 16],
    pub cell_quota: CellQuota,
    /// The cost in µtok.
    pub cost: u64,
    /// As in [`CellRequest::known_age_us`].
    pub known_age_us: Option<u64>,
    /// How its windows advance; `None` for a bucket.
    pub window: Option<CellWindow>,
}

impl Payment {
    pub fn costs(&self) -> impl Iterator<Item = &KeyPayment> {
        self.checks.iter().flat_map(|check| &check.costs)
    }

    /// Whether another check fits: there is room, and a key that is in both has the same quota, as the script reads it once.
    pub(super) fn has_room_for(&self, check: &CheckPayment) -> bool {
        let differs = |cost: &KeyPayment| {
            let mut same_key = self.costs().filter(|known| known.key == cost.key);
            same_key.any(|known| (known.cell_quota, known.window) != (cost.cell_quota, cost.window))
        };
        self.costs().count() + check.costs.len() <= CELLS_MAX && !check.costs.iter().any(differs)
    }

    fn encode(&self) -> RedisCommand<'static> {
        debug_assert!((1..=CELLS_MAX).contains(&self.costs().count()), "{self:?}");
        for check in &self.checks {
            debug_assert!(are_distinct(check.costs.iter().map(|cost| cost.key), 1..=CELLS_MAX), "{self:?}");
        }
        let count = |check: &CheckPayment| u8::try_from(check.costs.len()).unwrap_or(u8::MAX);
        let counts = self.checks.iter().map(count).collect();
        let mut costs = ScriptWriter::default();
        for cost in self.costs() {
            cost.cell_quota.write(cost.window.map(|window| window.slots), &mut costs);
            costs.amount(cost.cost, AMOUNT_MAX);
            costs.perhaps(cost.known_age_us);
            if let Some(window) = &cost.window {
                window.write(&mut costs);
            }
        }
        RedisCommand {
            script: &scripts::EXACT,
            keys: self.head.keys(self.costs().map(|cost| (kind(cost.window.is_some()), cost.key))),
            args: vec![self.head.bytes(), costs.bytes, counts],
        }
    }
}

/// The kind letter of a cell. A key's window and bucket are separate cells, so that a host with the previous
/// rule cannot corrupt the new state.
fn kind(is_window: bool) -> char {
    if is_window { 'w' } else { 'q' }
}

/// Whether the keys are distinct, and as many as allowed. A script reads all cells before it writes them, so that a
/// repeated key would lose its first update.
pub(super) fn are_distinct<K: Ord>(keys: impl Iterator<Item = K>, allowed: RangeInclusive<usize>) -> bool {
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable();
    allowed.contains(&keys.len()) && keys.array_windows().all(|[one, next]| one != next)
}

/// Cells of one sync: they occupy Redis for 0.25 ms. The fixed cost of a command equals about three cells: twice
/// the cells per command would raise throughput by 4 %.
pub const CELLS_MAX: usize = 32;
