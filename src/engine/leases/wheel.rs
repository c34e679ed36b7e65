//! A timing wheel (Varghese and Lauck, “Hashed and Hierarchical Timing Wheels”, 1987): all leases that end in
//! one tick are chained on one spoke, so that setting, changing and removing a time are O(1).
//!
//! The chains link lease numbers through the leases themselves. A lease that ends in a later round stays on
//! its spoke: each is visited once in [`SPOKES`] ticks.

use super::lease::{Lease, NONE};
use crate::clock::Timestamp;
use arrayvec::ArrayVec;
use slab::Slab;

#[derive(Debug, Default)]
pub(super) struct Wheel {
    /// Empty before the first lease: the wheels of all tables take half a megabyte.
    spokes: Box<[WheelSlot]>,
    /// The tick last processed: all that end in earlier ticks are removed.
    tick: u64,
}

#[derive(Clone, Copy, Debug)]
struct WheelSlot {
    first: u32,
    /// Lower bound of the ends in the chain: an earlier pass skips it.
    next_end_min: Timestamp,
}

impl WheelSlot {
    const EMPTY: WheelSlot = WheelSlot { first: NONE, next_end_min: Timestamp::from_nanos(u64::MAX) };
}

impl Wheel {
    pub(super) fn insert(&mut self, number: u32, leases: &mut Slab<Lease>) {
        let Some(lease) = leases.get_mut(number as usize) else {
            debug_assert!(false, "a lease that is hung is there: off the wheel it never ends");
            return;
        };
        if self.spokes.is_empty() {
            self.spokes = vec![WheelSlot::EMPTY; SPOKES].into_boxed_slice();
        }
        // An end in the past is found at the next pass.
        let spoke = spoke(tick(lease.ends_at).max(self.tick));
        let chain = self.chain(spoke);
        let next = std::mem::replace(&mut chain.first, number);
        chain.next_end_min = chain.next_end_min.min(lease.ends_at);
        (lease.spoke, lease.on_spoke.before, lease.on_spoke.after) = (spoke, NONE, next);
        if let Some(next) = leases.get_mut(next as usize) {
            next.on_spoke.before = number;
        }
    }

    pub(super) fn remove(&mut self, number: u32, leases: &mut Slab<Lease>) {
        let Some(lease) = leases.get(number as usize) else { return };
        let (link, spoke) = (lease.on_spoke, usize::from(lease.spoke));
        if let Some(before) = leases.get_mut(link.before as usize) {
            before.on_spoke.after = link.after;
        } else if let Some(chain) = self.spokes.get_mut(spoke).filter(|chain| chain.first == number) {
            chain.first = link.after;
        }
        if let Some(after) = leases.get_mut(link.after as usize) {
            after.on_spoke.before = link.before;
        }
    }

    /// Finds leases that have ended by `now`, up to the capacity of `found`, and leaves them on the wheel.
    /// Each call continues where the last one stopped.
    pub(super) fn collect_expired(&mut self, now: Timestamp, leases: &Slab<Lease>, found: &mut ExpiryBatch) {
        let last = tick(now);
        if self.spokes.is_empty() {
            self.tick = self.tick.max(last);
            return;
        }
        // After a long pause one round finds them all.
        self.tick = self.tick.max(last.saturating_sub(SPOKES as u64 - 1));
        loop {
            let chain = self.chain(spoke(self.tick));
            if chain.next_end_min <= now {
                let (mut next, mut none_before) = (chain.first, WheelSlot::EMPTY.next_end_min);
                while let Some(lease) = leases.get(next as usize) {
                    if lease.ends_at > now {
                        none_before = none_before.min(lease.ends_at);
                    } else if found.try_push(next).is_err() {
                        return;
                    }
                    next = lease.on_spoke.after;
                }
                // Found leases stay until they are ended; the bound must let the next pass find them again.
                chain.next_end_min = if found.is_empty() { none_before } else { chain.next_end_min };
            }
            if self.tick >= last {
                return;
            }
            self.tick += 1;
        }
    }

    fn chain(&mut self, spoke: u16) -> &mut WheelSlot {
        #[allow(
            clippy::indexing_slicing,
            reason = "there are SPOKES of them once a lease was inserted, and the modulus is below that"
        )]
        &mut self.spokes[usize::from(spoke) % SPOKES]
    }

    /// Returns a time before which no lease ends, once [`Wheel::collect_expired`] finds no more.
    pub(super) fn next_end_min(&self) -> Timestamp {
        let next_tick = Timestamp::from_nanos((self.tick + 1).saturating_mul(TICK_NANOS));
        let chain = self.spokes.get(usize::from(spoke(self.tick)));
        chain.map_or(next_tick, |chain| chain.next_end_min.min(next_tick))
    }
}

pub(super) type ExpiryBatch = ArrayVec<u32, 128>;

fn tick(at: Timestamp) -> u64 {
    at.as_nanos() / TICK_NANOS
}

fn spoke(tick: u64) -> u16 {
    u16::try_from(tick % SPOKES as u64).unwrap_or_default()
}

/// A tick, 250 ms: the interval of `Engine::tick`.
const TICK_NANOS: u64 = 250_000_000;

/// A round takes 128 s: more than twice the time to live of most leases.
const SPOKES: usize = 512;
