//! A timing wheel (Varghese and Lauck, “Hashed and Hierarchical Timing Wheels”, 1987): what ends in one tick hangs on one
//! of its spokes, so that to set, to change and to end a time is one step, however many there are.
//!
//! It holds numbers of leases, chained through the leases themselves. One that ends in a later round than the next stays
//! on its spoke when that comes by: each is looked at once in [`SPOKES`] ticks.

use super::lease::{Lease, NONE};
use super::slab::Slab;
use crate::clock::Timestamp;
use arrayvec::ArrayVec;

/// Numbers of leases by when they end.
#[derive(Debug)]
pub(super) struct Wheel {
    spokes: Box<[Spoke]>,
    /// The tick that was last looked at: what ends before it is gone.
    tick: u64,
}

/// What hangs on one spoke.
#[derive(Clone, Copy, Debug)]
struct Spoke {
    /// The first of the chain.
    first: u32,
    /// None of the chain ends before this: who looks earlier need not walk it.
    none_before: Timestamp,
}

impl Spoke {
    const EMPTY: Spoke = Spoke { first: NONE, none_before: Timestamp::from_nanos(u64::MAX) };
}

impl Wheel {
    pub(super) fn new() -> Wheel {
        Wheel { spokes: vec![Spoke::EMPTY; SPOKES].into_boxed_slice(), tick: 0 }
    }

    /// Hangs a lease where it ends.
    pub(super) fn hang(&mut self, number: u32, leases: &mut Slab<Lease>) {
        let Some(lease) = leases.get_mut(number) else {
            debug_assert!(false, "a lease that is hung is there: off the wheel it never ends");
            return;
        };
        // What has ended already is found at the next look.
        let spoke = spoke(tick(lease.ends_at).max(self.tick));
        let chain = self.chain(spoke);
        let next = std::mem::replace(&mut chain.first, number);
        chain.none_before = chain.none_before.min(lease.ends_at);
        (lease.spoke, lease.on_spoke.before, lease.on_spoke.after) = (spoke, NONE, next);
        if let Some(next) = leases.get_mut(next) {
            next.on_spoke.before = number;
        }
    }

    /// Takes a lease off.
    pub(super) fn take_off(&mut self, number: u32, leases: &mut Slab<Lease>) {
        let Some(lease) = leases.get(number) else { return };
        let (link, spoke) = (lease.on_spoke, usize::from(lease.spoke));
        if let Some(before) = leases.get_mut(link.before) {
            before.on_spoke.after = link.after;
        } else if let Some(chain) = self.spokes.get_mut(spoke).filter(|chain| chain.first == number) {
            chain.first = link.after;
        }
        if let Some(after) = leases.get_mut(link.after) {
            after.on_spoke.before = link.before;
        }
    }

    /// Finds leases that have ended by now, as far as there is room for them; they still hang there. Each call goes on
    /// where the last one stopped.
    pub(super) fn ended(&mut self, now: Timestamp, leases: &Slab<Lease>, found: &mut Batch) {
        let last = tick(now);
        // After a long time one round finds them all.
        self.tick = self.tick.max(last.saturating_sub(SPOKES as u64 - 1));
        loop {
            let chain = self.chain(spoke(self.tick));
            if chain.none_before <= now {
                let (mut next, mut none_before) = (chain.first, Spoke::EMPTY.none_before);
                while let Some(lease) = leases.get(next) {
                    if lease.ends_at > now {
                        none_before = none_before.min(lease.ends_at);
                    } else if found.try_push(next).is_err() {
                        return;
                    }
                    next = lease.on_spoke.after;
                }
                // Those that were found hang there until they are ended, and are found again if they are not.
                chain.none_before = if found.is_empty() { none_before } else { chain.none_before };
            }
            if self.tick >= last {
                return;
            }
            self.tick += 1;
        }
    }

    fn chain(&mut self, spoke: u16) -> &mut Spoke {
        #[allow(clippy::indexing_slicing, reason = "there are SPOKES of them, and the modulus is below that")]
        &mut self.spokes[usize::from(spoke) % SPOKES]
    }

    /// A moment before which none ends, once [`Wheel::ended`] has found no more.
    pub(super) fn none_before(&self) -> Timestamp {
        let next_tick = Timestamp::from_nanos((self.tick + 1).saturating_mul(TICK_NANOS));
        let chain = self.spokes.get(usize::from(spoke(self.tick)));
        chain.map_or(next_tick, |chain| chain.none_before.min(next_tick))
    }
}

/// Leases that end together, under one lock.
pub(super) type Batch = ArrayVec<u32, 128>;

fn tick(at: Timestamp) -> u64 {
    at.as_nanos() / TICK_NANOS
}

fn spoke(tick: u64) -> u16 {
    // Below SPOKES, which fits.
    u16::try_from(tick % SPOKES as u64).unwrap_or_default()
}

/// A quarter of a second, as often as it is turned.
const TICK_NANOS: u64 = 250_000_000;

/// A round takes 128 s: more than twice what most leases last.
const SPOKES: usize = 512;
