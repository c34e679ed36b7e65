//! The calls to Redis as plain data, and the bytes that are sent for them.
//!
//! Every key that a script touches is named here; none is made up inside a script. All keys of a call carry one tag, so that
//! they lie in one slot of a cluster.

use super::beat::Beat;
use super::cell::{AMOUNT_MAX, ASK_BYTES, Ask, Terms};
use super::link::Script;
use super::look::{Peek, Reset};
use super::overrides::OverridesCall;
use super::places::Places;
use super::scripts;
use super::version::VersionCall;
use super::window::CellWindow;
use super::wire::{EXACT_MAX, Writer, hex, push_hex};

/// Who this host is.
pub type Host = [u8; 16];

/// Which life of a bucket of cells: another one says that everything in it was lost.
pub type Nonce = [u8; 16];

/// One call of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Reports, settles and borrows.
    Sync(Batch),
    /// Pays at once, all or nothing.
    Exact(Payment),
    /// Reports places and asks for more.
    Places(Places),
    /// Says that this host is alive.
    Beat(Beat),
    /// Asks which number the terms of a rule have.
    Version(VersionCall),
    /// Looks at cells.
    Peek(Peek),
    /// Fills one again.
    Reset(Reset),
    /// Reads, or replaces, the fleet overrides.
    Overrides(OverridesCall),
}

/// What is sent to run a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Which script.
    pub script: &'static Script,
    /// `KEYS`, in order.
    pub keys: Vec<Vec<u8>>,
    /// `ARGV`, in order.
    pub args: Vec<Vec<u8>>,
}

impl Call {
    /// Its bytes; the same call has the same.
    ///
    /// # Errors
    /// What could not be done as it is meant: nothing was sent.
    pub fn encode(&self) -> Result<Encoded, CallFault> {
        match self {
            Call::Sync(batch) => batch.encode(),
            Call::Exact(payment) => payment.encode(),
            Call::Places(places) => places.encode(),
            Call::Beat(beat) => beat.encode(),
            Call::Version(version) => Ok(version.encode()),
            Call::Peek(peek) => peek.encode(),
            Call::Reset(reset) => Ok(reset.encode()),
            Call::Overrides(overrides) => Ok(overrides.encode()),
        }
    }

    /// Cells of tokens that it asks about, ahead of need.
    #[must_use]
    pub fn cells(&self) -> usize {
        if let Call::Sync(batch) = self { batch.asks.len() } else { 0 }
    }

    /// What stands between the braces of all its keys, and tells which server has them.
    #[must_use]
    pub fn tag(&self) -> String {
        match self {
            Call::Sync(batch) => batch.place.bucket.tag(),
            Call::Exact(payment) => payment.place.bucket.tag(),
            Call::Places(places) => places.place.bucket.tag(),
            Call::Peek(peek) => peek.bucket.tag(),
            Call::Reset(reset) => reset.bucket.tag(),
            Call::Beat(_) | Call::Version(_) | Call::Overrides(_) => OF_ALL.to_owned(),
        }
    }
}

/// What stands between the braces of the keys that are about all hosts.
pub(super) const OF_ALL: &str = "tm";

/// Cells of which one script can speak, because they lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket(u8);

impl Bucket {
    /// Where a key lies, of this many buckets (1 to 256).
    #[must_use]
    pub fn of(key: &[u8; 16], buckets: u16) -> Bucket {
        let [first, ..] = *key;
        let bucket = u16::from(first).checked_rem(buckets).unwrap_or(0);
        // Proof: below 256, as `first` is.
        Bucket(u8::try_from(bucket).unwrap_or(0))
    }

    /// What there is of this bucket, where there is something of each.
    #[allow(
        clippy::indexing_slicing,
        reason = "there is: what is asked of a bucket without it would be lost"
    )]
    pub(super) fn of_each<T>(self, all: &mut [T]) -> &mut T {
        &mut all[usize::from(self.0)]
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// The bucket of this number.
    #[must_use]
    pub fn from_number(number: u8) -> Bucket {
        Bucket(number)
    }

    /// What stands between the braces of all its keys.
    #[must_use]
    pub fn tag(self) -> String {
        format!("t{:02x}", self.0)
    }

    /// The name of a cell: `q` of tokens, `w` of a window of them, `c` of places.
    pub(super) fn cell(self, kind: char, key: [u8; 16]) -> Vec<u8> {
        let mut name = self.name_of(2 + 2 * key.len());
        name.extend([u8::try_from(kind).unwrap_or(b'?'), b':']);
        push_hex(&mut name, &key);
        name
    }

    fn name(self, rest: &str) -> Vec<u8> {
        let mut name = self.name_of(rest.len());
        name.extend_from_slice(rest.as_bytes());
        name
    }

    /// How all its names begin; there is room for so many bytes more.
    fn name_of(self, more: usize) -> Vec<u8> {
        let mut name = Vec::with_capacity(b"tg:{t00}:".len() + more);
        name.extend_from_slice(b"tg:{t");
        push_hex(&mut name, &[self.0]);
        name.extend_from_slice(b"}:");
        name
    }
}

/// In which row a call stands: one host, one lane of one bucket. One call at a time is on its way in a lane; the same number
/// again is the same call again, and is answered with the reply of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where the cells lie.
    pub bucket: Bucket,
    /// Who calls.
    pub host: Host,
    /// Which of its lanes. Each is for calls of one script alone: a reply that is kept is one of that.
    pub lane: u8,
    /// Which life of the lane; a later one ends what came before.
    pub epoch: u64,
    /// Which call of this life, from 1.
    pub seq: u64,
    /// The nonce to take where there is none.
    pub offer: Nonce,
    /// The nonce of the last reply from this bucket.
    pub known: Option<Nonce>,
}

impl Place {
    pub(super) fn keys(&self, kind: char, cells: impl ExactSizeIterator<Item = [u8; 16]>) -> Vec<Vec<u8>> {
        self.keys_of(cells.map(|cell| (kind, cell)))
    }

    fn keys_of(&self, cells: impl ExactSizeIterator<Item = (char, [u8; 16])>) -> Vec<Vec<u8>> {
        let mut keys = Vec::with_capacity(cells.len() + 2);
        keys.push(self.bucket.name(&format!("h:{}:{}", hex(self.host), self.lane)));
        keys.push(self.bucket.name("n"));
        keys.extend(cells.map(|(kind, cell)| self.bucket.cell(kind, cell)));
        keys
    }

    pub(super) fn head(&self) -> Vec<u8> {
        let mut head = Writer::with_capacity(48);
        head.amount(self.epoch, EXACT_MAX);
        head.amount(self.seq, EXACT_MAX);
        head.bytes.extend_from_slice(&self.offer);
        head.bytes.extend_from_slice(&self.known.unwrap_or_default());
        head.bytes
    }
}

/// A sync: what this host asks of some cells of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Which call this is.
    pub place: Place,
    /// At most [`CELLS_MAX`], each of another key.
    pub asks: Vec<Ask>,
}

impl Batch {
    fn encode(&self) -> Result<Encoded, CallFault> {
        distinct(self.asks.iter().map(|ask| ask.key), CELLS_MAX)?;
        let mut asks = Writer::with_capacity(self.asks.len() * ASK_BYTES);
        self.asks.iter().for_each(|ask| ask.write(&mut asks));
        Ok(Encoded {
            script: &scripts::SYNC,
            keys: self.place.keys_of(self.asks.iter().map(|ask| (kind(ask.window.is_some()), ask.key))),
            args: vec![self.place.head(), asks.bytes],
        })
    }
}

/// An exact decision: some keys of one bucket pay, all or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// Which call this is.
    pub place: Place,
    /// At most [`COSTS_MAX`], each of another key.
    pub costs: Vec<Cost>,
}

/// What one key is to pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The digest of the key.
    pub key: [u8; 16],
    /// The numbers of its rule as this host has them.
    pub terms: Terms,
    /// µtok.
    pub cost: u64,
    /// As in [`Ask::knew_us`].
    pub knew_us: Option<u64>,
    /// How its windows turn; `None`: it is a bucket.
    pub window: Option<CellWindow>,
}

impl Payment {
    fn encode(&self) -> Result<Encoded, CallFault> {
        distinct(self.costs.iter().map(|cost| cost.key), COSTS_MAX)?;
        let mut costs = Writer::default();
        for cost in &self.costs {
            cost.terms.write(cost.window.map(|window| window.slots), &mut costs);
            costs.amount(cost.cost, AMOUNT_MAX);
            costs.perhaps(cost.knew_us);
            if let Some(window) = &cost.window {
                window.write(&mut costs);
            }
        }
        Ok(Encoded {
            script: &scripts::EXACT,
            keys: self.place.keys_of(self.costs.iter().map(|cost| (kind(cost.window.is_some()), cost.key))),
            args: vec![self.place.head(), costs.bytes],
        })
    }
}

/// A window and a bucket of one key lie apart: whoever still has the rule of before spoils nothing.
pub(super) fn kind(is_window: bool) -> char {
    if is_window { 'w' } else { 'q' }
}

/// A script reads all cells first and writes them one by one: a key that came twice would lose what the first did.
pub(super) fn distinct(keys: impl Iterator<Item = [u8; 16]>, max: usize) -> Result<(), CallFault> {
    let mut keys: Vec<_> = keys.collect();
    if keys.is_empty() || keys.len() > max {
        return Err(CallFault::Count { found: keys.len(), max });
    }
    keys.sort_unstable();
    match keys.array_windows().any(|[one, next]| one == next) {
        true => Err(CallFault::Twice),
        false => Ok(()),
    }
}

/// Why a call cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFault {
    /// None, or too many.
    #[error("{found} in one call, which takes 1 to {max}")]
    Count {
        /// How many there were.
        found: usize,
        /// How many it takes.
        max: usize,
    },
    /// One key stands in it twice.
    #[error("one key twice in one call")]
    Twice,
}

/// Cells of one sync: Redis is held up for a quarter of a millisecond. Of its instructions a call costs as many as some three
/// cells do: calls of twice as many would let it carry 4 % more.
pub const CELLS_MAX: usize = 32;
/// Keys of one exact decision.
pub const COSTS_MAX: usize = 8;
