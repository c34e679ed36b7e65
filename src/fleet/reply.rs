//! What comes back for a call, read without trust: a reply has exactly the length that its call says, and no number leaves
//! its range.

use super::beat::Beaten;
use super::call::{Batch, Call, Nonce, Payment};
use super::cell::{BURST_MAX, DEBT_MAX, GENERATION_US, SAID_BYTES, Said};
use super::look::Peeked;
use super::overrides::OverridesSaid;
use super::places::{self, Places, PlacesSaid};
use super::window::{self, WindowSaid};
use super::wire::{EXACT_MAX, Reader};

/// A reply as it was meant, and how much of it could not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The reply.
    pub reply: Reply,
    /// How many of its numbers were absurd and were cut to what can be.
    pub clamped: u32,
}

/// What a call brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To [`Call::Sync`].
    Sync(Answer<Vec<Said>>),
    /// To [`Call::Exact`].
    Exact(Answer<Vec<Paid>>),
    /// To [`Call::Places`].
    Places(Answer<Vec<PlacesSaid>>),
    /// To [`Call::Beat`].
    Beat(Beaten),
    /// To [`Call::Version`].
    Version(u64),
    /// To [`Call::Peek`].
    Peek(Peeked),
    /// To [`Call::Reset`]: whether there was such a cell.
    Reset(bool),
    /// To [`Call::Overrides`].
    Overrides(OverridesSaid),
}

/// What is said to a call that has its number in a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// Whether and why not.
    pub kind: Kind<T>,
    /// The life of this bucket of cells; zeros where nobody has written to it.
    pub nonce: Nonce,
    /// When the call was first run, by the clock of Redis.
    pub now_us: u64,
}

/// What became of a numbered call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<T> {
    /// It was done, now or when it came before.
    Done(T),
    /// A later one of this host was here: another daemon goes by its name, or this call was given up.
    Stale,
    /// Nothing is known of the calls before it. Nothing was done: the host begins another epoch, without reports of before.
    Unknown,
}

/// What is said to one cost of a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paid {
    /// What is left, µtok.
    pub level: i64,
    /// What stood in its way; all have paid where nothing did.
    pub wait: Wait,
    /// It was gone before its time, and starts empty.
    pub lost: bool,
    /// The version whose numbers hold.
    pub version: u64,
    /// What is said of a window besides.
    pub window: Option<WindowSaid>,
}

/// Whether a key has enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It has.
    No,
    /// It has in this many microseconds, if nobody else takes any, and hosts keep what they hold of a window.
    Until(u64),
    /// It cannot: the cost is above the burst.
    Never,
}

impl Reply {
    /// Reads the bytes of a reply to this call.
    ///
    /// # Errors
    /// Bytes that are no reply to it.
    pub fn decode(call: &Call, bytes: &[u8]) -> Result<Received, ReplyFault> {
        match call {
            Call::Sync(batch) => sync(batch, bytes),
            Call::Exact(payment) => exact(payment, bytes),
            Call::Places(places) => of_places(places, bytes),
            Call::Beat(beat) => beat.decode(bytes),
            Call::Peek(peek) => peek.decode(bytes),
            Call::Reset(_) => {
                let found = Reader::of(bytes, 1)?.byte();
                Ok(Received { reply: Reply::Reset(found != 0), clamped: u32::from(found > 1) })
            }
            Call::Overrides(_) => OverridesSaid::decode(bytes),
            Call::Version(_) => {
                let mut from = Reader::of(bytes, 8)?;
                let version = from.amount(EXACT_MAX);
                Ok(Received { reply: Reply::Version(version), clamped: from.clamped })
            }
        }
    }
}

fn sync(batch: &Batch, bytes: &[u8]) -> Result<Received, ReplyFault> {
    let windows = batch.asks.iter().filter(|ask| ask.window.is_some()).count();
    let length = batch.asks.len() * SAID_BYTES + windows * window::SAID_BYTES;
    let (answer, clamped) = answer(bytes, length, |from, now_us| {
        batch.asks.iter().map(|ask| Said::read(from, ask, now_us / GENERATION_US)).collect()
    })?;
    Ok(Received { reply: Reply::Sync(answer), clamped })
}

fn exact(payment: &Payment, bytes: &[u8]) -> Result<Received, ReplyFault> {
    let windows = payment.costs.iter().filter(|cost| cost.window.is_some()).count();
    let length = payment.costs.len() * PAID_BYTES + windows * window::SAID_BYTES;
    let (answer, clamped) = answer(bytes, length, |from, _| {
        payment.costs.iter().map(|cost| Paid::read(from, cost.window.is_some())).collect()
    })?;
    Ok(Received { reply: Reply::Exact(answer), clamped })
}

fn of_places(call: &Places, bytes: &[u8]) -> Result<Received, ReplyFault> {
    let (answer, clamped) = answer(bytes, call.asks.len() * places::SAID_BYTES, |from, now_us| {
        call.asks.iter().map(|ask| PlacesSaid::read(from, ask, now_us / GENERATION_US)).collect()
    })?;
    Ok(Received { reply: Reply::Places(answer), clamped })
}

fn answer<T>(
    bytes: &[u8],
    rest: usize,
    read: impl FnOnce(&mut Reader<'_>, u64) -> T,
) -> Result<(Answer<T>, u32), ReplyFault> {
    let kind = *bytes.first().ok_or(ReplyFault::Length { expected: HEADER_BYTES, found: 0 })?;
    let rest = if kind == OK { rest } else { 0 };
    let mut from = Reader::of(bytes, HEADER_BYTES + rest)?;
    from.byte();
    let nonce = from.bytes();
    let now_us = from.amount(EXACT_MAX);
    let kind = match kind {
        OK => Kind::Done(read(&mut from, now_us)),
        STALE => Kind::Stale,
        UNKNOWN => Kind::Unknown,
        other => return Err(ReplyFault::Kind(other)),
    };
    Ok((Answer { kind, nonce, now_us }, from.clamped))
}

impl Paid {
    fn read(from: &mut Reader<'_>, is_window: bool) -> Paid {
        let level = from.signed(-DEBT_MAX, BURST_MAX.cast_signed());
        let wait = match from.signed(-1, EXACT_MAX.cast_signed()) {
            0 => Wait::No,
            us => u64::try_from(us).map_or(Wait::Never, Wait::Until),
        };
        let lost = from.byte();
        from.clamped += u32::from(lost > 1);
        let version = from.amount(EXACT_MAX);
        let window = is_window.then(|| WindowSaid::read(from));
        Paid { level, wait, lost: lost != 0, version, window }
    }
}

/// Why bytes are no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyFault {
    /// A reply to this call has another length.
    #[error("a reply of {found} bytes to a call that brings {expected}")]
    Length {
        /// How long it should be.
        expected: usize,
        /// How long it is.
        found: usize,
    },
    /// It begins with a byte that says nothing.
    #[error("a reply of kind {0}, which does not exist")]
    Kind(u8),
}

const OK: u8 = 0;
const STALE: u8 = 1;
const UNKNOWN: u8 = 2;
const HEADER_BYTES: usize = 25;
const PAID_BYTES: usize = 25;
