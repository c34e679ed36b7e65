//! Concurrency over many hosts: how many places a host has of a key, how many more it would like, and how many it gets.
//!
//! A host that is not answered for 1.9 s starts nothing more on what it has: two generations later others may have it.

mod page;

pub(super) use page::{Next, PlacesPace, PlacesPage};

use super::call::{CELLS_MAX, CallFault, Encoded, Place, distinct};
use super::cell::{BURST_MAX, DEMAND_MAX, HOSTS_MAX, Report, TOKEN};
use super::scripts;
use super::wire::{EXACT_MAX, Reader, Writer};

/// What this host says of the places of some keys of one bucket. Its lane is for such calls alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Which call this is.
    pub place: Place,
    /// At most [`CELLS_MAX`], each of another key.
    pub asks: Vec<PlacesAsk>,
}

/// What a host asks of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacesAsk {
    /// The digest of the key.
    pub key: [u8; 16],
    /// The version of its rule.
    pub version: u64,
    /// How many there are for all hosts together.
    pub max: u32,
    /// The last report that was surely heard; its hold in millionths of a place, as that of tokens.
    pub last: Option<Report>,
    /// How many it has, in use or not.
    pub hold: u32,
    /// How many more it would like.
    pub want: u32,
    /// For so many of those somebody waits: they are given as long as there are any, whosever part they are.
    pub need: u32,
    /// How many it would use if it could, in thousandths.
    pub demand: u64,
    /// By what a share that is not whole is rounded: 0…999 999, drawn at random.
    pub dice: u32,
    /// How long ago it was told of this key; `None`: never, or ten seconds ago.
    pub knew_us: Option<u64>,
}

/// What a host is told of the places of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacesSaid {
    /// How many nobody has; below zero where hosts have more than there are.
    pub free: i64,
    /// What all hosts would use, in thousandths.
    pub demand: u64,
    /// How many more this host has now.
    pub grant: u32,
    /// How many hosts have spoken of this key in this generation and the last.
    pub hosts: u32,
    /// They were gone before their time: none are given away before every host has said what it has.
    pub lost: bool,
    /// The version whose number holds.
    pub version: u64,
    /// The generation in which this was said.
    pub generation: u64,
}

impl Places {
    pub(super) fn encode(&self) -> Result<Encoded, CallFault> {
        distinct(self.asks.iter().map(|ask| ask.key), CELLS_MAX)?;
        let mut asks = Writer::with_capacity(self.asks.len() * ASK_BYTES);
        self.asks.iter().for_each(|ask| ask.write(&mut asks));
        Ok(Encoded {
            script: &scripts::PLACES,
            keys: self.place.keys('c', self.asks.iter().map(|ask| ask.key)),
            args: vec![self.place.head(), asks.bytes],
        })
    }
}

impl PlacesAsk {
    fn write(&self, to: &mut Writer) {
        to.amount(self.version, EXACT_MAX);
        to.amount(u64::from(self.max) * TOKEN, BURST_MAX);
        to.amount(self.last.map_or(0, |last| last.hold), BURST_MAX);
        to.amount(self.last.map_or(0, |last| last.demand), DEMAND_MAX);
        to.perhaps(self.last.map(|last| last.generation));
        to.amount(u64::from(self.hold) * TOKEN, BURST_MAX);
        to.amount(u64::from(self.want) * TOKEN, BURST_MAX);
        to.amount(u64::from(self.need) * TOKEN, BURST_MAX);
        to.amount(self.demand, DEMAND_MAX);
        to.small(self.dice.min(999_999));
        to.perhaps(self.knew_us);
    }
}

impl PlacesSaid {
    pub(super) fn read(from: &mut Reader<'_>, ask: &PlacesAsk, generation: u64) -> PlacesSaid {
        let whole = TOKEN.cast_signed();
        let free = from.signed(-EXACT_MAX.cast_signed(), BURST_MAX.cast_signed()).div_euclid(whole);
        let demand = from.amount(2 * DEMAND_MAX);
        let grant = from.amount(u64::from(ask.want) * TOKEN) / TOKEN;
        let hosts = from.small(HOSTS_MAX);
        let lost = from.byte();
        let version = from.amount(EXACT_MAX);
        let told = from.amount(generation.saturating_add(1));
        from.clamped += u32::from(lost > 1) + u32::from(told < generation);
        // Proof: no more than what it wanted.
        let grant = u32::try_from(grant).unwrap_or(ask.want);
        let generation = told.max(generation);
        PlacesSaid { free, demand, grant, hosts, lost: lost != 0, version, generation }
    }
}

const ASK_BYTES: usize = 84;
pub(super) const SAID_BYTES: usize = 45;
