//! A share in the compact form of the key table. Most decisions change the compact form in place; the others unfold it,
//! change the [`ShareState`] and fold it again. Results equal those of the [`ShareState`].
//!
//! ```text
//!   table:  digest │ used, asked, …                               untracked
//!           digest │ tokens, until when, level │ ──▶ Share        anything else
//! ```

use std::cell::Cell;

use super::credit::UntrackedCredit;
use super::state::{SEEN_SHIFT, SyncRequest};
use super::{OUTAGES_AT_START, ShareQuota, ShareState, is_linked};
use crate::clock::Timestamp;
use crate::limit::token_bucket::GcraState;
use crate::limit::{QuotaLevel, TickScale, halves, low_half, malloc_block_bytes};

#[derive(Clone, Debug)]
pub struct CompactShare(Form);

#[derive(Clone, Debug)]
enum Form {
    Untracked(Untracked),
    Boxed(Boxed),
}

/// The state of an untracked key without borrowed tokens, debt or known level, as most keys are.
#[derive(Clone, Debug)]
#[repr(Rust, packed(2))]
struct Untracked {
    /// The one of the two buckets that is not full: the credit, or the fallback.
    used: GcraState,
    is_fallback: bool,
    requested_since: Timestamp,
    requested: u32,
    /// The low bits of the outage counter: outages are too rare to wrap it.
    outages: u16,
    sync_request: SyncRequest,
}

/// Any other state.
#[derive(Clone, Debug)]
struct Boxed {
    fast: FastPath,
    share: PackedBox,
}

/// A boxed share behind a pointer without alignment, so that an entry of the table has no padding. As nothing can refer to
/// such a pointer, each access takes the box out and puts it back.
#[derive(Default)]
struct PackedBox(Cell<Pointer>);

#[derive(Default)]
#[repr(Rust, packed(2))]
struct Pointer(Option<Box<ShareState>>);

/// The data of a decision that only takes borrowed tokens: reading the boxed share would be another cache miss.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(2))]
struct FastPath {
    /// Borrowed tokens. Tokens taken since folding are also demand.
    tokens: u32,
    /// Below this many tokens the share has more to do than to take them.
    floor: u16,
    /// The level of the last reply of Redis, and its time in `at`.
    level: Int48,
    demand: u32,
    at: Int48,
    /// The time after `at` for which tokens can be taken so, in units of 2²⁴ ns; zero: not at all.
    lasts: u8,
    /// The low bits of the outage counter: within seconds it cannot wrap.
    outages: u8,
}

/// A signed number of 48 bits in six bytes.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(2))]
struct Int48 {
    low: u32,
    high: i16,
}

impl Int48 {
    const ZERO: Int48 = Int48 { low: 0, high: 0 };

    /// Packs a number; `None` if it needs more than 48 bits.
    fn new(number: i64) -> Option<Int48> {
        let high = i16::try_from(number >> 32).ok()?;
        let [low, _] = halves(number.cast_unsigned());
        Some(Int48 { low, high })
    }

    #[inline]
    fn get(self) -> i64 {
        i64::from(self.high) << 32 | i64::from(self.low)
    }
}

impl CompactShare {
    pub fn fresh(quota: &ShareQuota, now: Timestamp) -> CompactShare {
        CompactShare(Form::Untracked(Untracked {
            used: GcraState::full(quota.bucket().scale(), now),
            is_fallback: false,
            requested_since: now,
            requested: 0,
            outages: low_half(outage_counter(quota)),
            sync_request: SyncRequest::Idle,
        }))
    }

    pub fn new(share: ShareState, quota: &ShareQuota, now: Timestamp) -> CompactShare {
        CompactShare(
            Untracked::from_share(&share, quota.bucket().scale(), now)
                .map_or_else(|| Form::Boxed(Boxed::new(share, quota)), Form::Untracked),
        )
    }

    /// The buckets of an outage that begins now, for a snapshot: the one of this host, and the one in Redis by its last
    /// reply. `None` if both are full. Borrowed tokens expire, and debts of before the outage are not kept.
    pub fn outage_buckets(&self, scale: TickScale, now: Timestamp) -> Option<[GcraState; 2]> {
        let full = GcraState::full(scale, now);
        let ahead = |bucket: GcraState| bucket.ticks_until_full(scale, now);
        let (fallback, in_redis) = match &self.0 {
            Form::Untracked(untracked) if untracked.is_fallback => (untracked.used, full),
            Form::Untracked(_) => (full, full),
            Form::Boxed(Boxed { share, .. }) => {
                let buckets = share.access(|share| (share.fallback, share.bucket_in_redis));
                let (fallback, in_redis) = buckets.unwrap_or((full, full));
                // Outside of an outage the bucket of this host is full: it begins with that in Redis.
                (if ahead(fallback) < ahead(in_redis) { in_redis } else { fallback }, in_redis)
            }
        };
        (ahead(fallback) > 0).then_some([fallback, in_redis])
    }

    /// The share of a host that has just started in an outage, with the buckets of a snapshot.
    pub fn in_outage([fallback, in_redis]: [GcraState; 2], scale: TickScale, now: Timestamp) -> CompactShare {
        let full = ShareState::full(scale, OUTAGES_AT_START, now);
        let share = ShareState { fallback, bucket_in_redis: in_redis, ..full };
        let form = match Untracked::from_share(&share, scale, now) {
            Some(untracked) => Form::Untracked(untracked),
            None => Form::Boxed(Boxed { fast: FastPath::none(&share), share: PackedBox::new(share) }),
        };
        CompactShare(form)
    }

    pub fn unfold(&self, quota: &ShareQuota, now: Timestamp) -> ShareState {
        match &self.0 {
            Form::Untracked(untracked) => untracked.unfold(quota, now),
            Form::Boxed(boxed) => boxed.unfold(quota, now),
        }
    }

    /// Unfolds the share, changes it and folds it again. Returns the result of `change`.
    pub fn update<T>(
        &mut self,
        quota: &ShareQuota,
        now: Timestamp,
        change: impl FnOnce(&mut ShareState) -> T,
    ) -> T {
        let mut share = self.unfold(quota, now);
        let changed = change(&mut share);
        match (&mut self.0, Untracked::from_share(&share, quota.bucket().scale(), now)) {
            (form, Some(untracked)) => *form = Form::Untracked(untracked),
            (Form::Boxed(boxed), None) => boxed.fold(share, quota),
            (form @ Form::Untracked(_), None) => *form = Form::Boxed(Boxed::new(share, quota)),
        }
        changed
    }

    /// Admits a request of at least one unit, as [`ShareState::admit`] would, and returns its level. `None`, without any
    /// change, if the compact form does not suffice to decide.
    #[inline]
    pub fn admit_fast(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32) -> Option<QuotaLevel> {
        match &mut self.0 {
            Form::Boxed(boxed) => boxed.fast.take_borrowed(quota, now, cost),
            Form::Untracked(untracked) => untracked.use_credit(quota, now, cost),
        }
    }

    /// See [`ShareState::take_sync_due`].
    pub fn take_sync_due(&mut self) -> bool {
        match &mut self.0 {
            Form::Boxed(boxed) => boxed.share.access(ShareState::take_sync_due).unwrap_or_default(),
            Form::Untracked(untracked) => untracked.sync_request.take_due(),
        }
    }

    /// See [`ShareState::nanos_until_fresh`].
    pub fn nanos_until_fresh(&self, scale: TickScale, now: Timestamp) -> u64 {
        match &self.0 {
            Form::Untracked(untracked) => {
                untracked.used.ticks_until_full(scale, now).div_ceil(u64::from(scale.ticks_per_nano()))
            }
            Form::Boxed(boxed) if boxed.fast.age(now).is_some() => u64::MAX,
            // Tokens taken in the meantime belong to a tracked key.
            Form::Boxed(boxed) => {
                boxed.share.access(|share| share.nanos_until_fresh(scale, now)).unwrap_or_default()
            }
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Untracked(_) => 0,
            Form::Boxed(_) => HEAP_BYTES,
        }
    }

    pub const fn heap_bytes_max() -> usize {
        HEAP_BYTES
    }
}

impl Untracked {
    /// Folds a share whose only state is that of an untracked key; otherwise `None`.
    fn from_share(share: &ShareState, scale: TickScale, now: Timestamp) -> Option<Untracked> {
        let is_full = |bucket: GcraState| bucket.ticks_until_full(scale, now) == 0;
        if !share.is_unknown_to_redis() || !is_full(share.bucket_in_redis) {
            return None;
        }
        let is_fallback = !is_full(share.fallback);
        if is_fallback && !is_full(share.untracked) {
            return None;
        }
        Some(Untracked {
            used: if is_fallback { share.fallback } else { share.untracked },
            is_fallback,
            requested_since: share.requested_since,
            requested: share.requested,
            outages: low_half(share.outages),
            sync_request: share.sync_request,
        })
    }

    fn unfold(&self, quota: &ShareQuota, now: Timestamp) -> ShareState {
        let full = GcraState::full(quota.bucket().scale(), now);
        let (untracked, fallback) = if self.is_fallback { (full, self.used) } else { (self.used, full) };
        ShareState {
            untracked,
            fallback,
            requested: self.requested,
            requested_since: self.requested_since,
            outages: self.outages(outage_counter(quota)),
            sync_request: self.sync_request,
            ..ShareState::fresh(quota, now)
        }
    }

    /// The full outage counter that the low bits stand for, given its current value.
    #[inline]
    fn outages(&self, so_far: u32) -> u32 {
        so_far.wrapping_sub(u32::from(low_half(so_far).wrapping_sub(self.outages)))
    }

    /// Uses credit, if another unit is left afterwards and no sync becomes due.
    #[inline]
    fn use_credit(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32) -> Option<QuotaLevel> {
        let fleet_status = quota.fleet_status()?;
        let outages = quota.outages(fleet_status);
        let is_reachable = self.outages == low_half(outages) && is_linked(outages);
        if !is_reachable
            || self.is_fallback
            || self.sync_request == SyncRequest::Due
            || quota.window().is_some()
        {
            return None;
        }
        let credit = UntrackedCredit::new(quota, fleet_status.hosts(), self.used, now)?;
        let ahead = credit.after(cost)?;
        let is_sync_due = credit.is_sync_due(ahead) && self.sync_request == SyncRequest::Idle;
        if is_sync_due || !(UntrackedCredit { ahead, ..credit }).has_one() {
            return None;
        }
        if credit.ahead == 0 {
            self.requested = 0;
            self.requested_since = now;
        }
        self.requested = self.requested.saturating_add(cost);
        self.used = GcraState::from_ahead(quota.bucket().scale(), now, ahead);
        Some(quota.untracked_level(false))
    }
}

impl Boxed {
    fn new(share: ShareState, quota: &ShareQuota) -> Boxed {
        Boxed { fast: FastPath::new(&share, quota), share: PackedBox::new(share) }
    }

    fn fold(&mut self, share: ShareState, quota: &ShareQuota) {
        self.fast = FastPath::new(&share, quota);
        self.share.access(|boxed| *boxed = share);
    }

    fn unfold(&self, quota: &ShareQuota, now: Timestamp) -> ShareState {
        let share = self.share.access(|share| *share);
        let (mut share, tokens) = (share.unwrap_or_else(|| ShareState::fresh(quota, now)), self.fast.tokens);
        share.requested = share.requested.saturating_add(share.tokens.saturating_sub(tokens));
        share.tokens = tokens;
        share
    }
}

impl PackedBox {
    fn new(share: ShareState) -> PackedBox {
        PackedBox(Cell::new(Pointer(Some(Box::new(share)))))
    }

    /// Reads or changes the share. `None` only within another access, or after a panic in one.
    fn access<T>(&self, access: impl FnOnce(&mut ShareState) -> T) -> Option<T> {
        let Pointer(mut boxed) = self.0.take();
        let result = boxed.as_deref_mut().map(access);
        self.0.set(Pointer(boxed));
        result
    }
}

impl Clone for PackedBox {
    fn clone(&self) -> PackedBox {
        self.access(|share| PackedBox::new(*share)).unwrap_or_default()
    }
}

impl std::fmt::Debug for PackedBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.access(|share| share.fmt(f)).unwrap_or(Ok(()))
    }
}

impl FastPath {
    fn new(share: &ShareState, quota: &ShareQuota) -> FastPath {
        FastPath::from_share(share, quota).unwrap_or_else(|| FastPath::none(share))
    }

    /// Decides no request.
    fn none(share: &ShareState) -> FastPath {
        let (level, at) = (Int48::ZERO, Int48::ZERO);
        FastPath { tokens: share.tokens, floor: u16::MAX, level, demand: 0, at, lasts: 0, outages: 0 }
    }

    /// The fast path of a share, if a decision can take tokens and change nothing else: it has borrowed tokens, no
    /// debt, and no sync is due. `None` also where the numbers do not fit.
    fn from_share(share: &ShareState, quota: &ShareQuota) -> Option<FastPath> {
        // The next increase of a window is stored in the boxed share.
        let may = quota.window().is_none()
            && share.tracked
            && share.owed == 0
            && share.sync_request != SyncRequest::Due
            && is_linked(share.outages)
            && share.tokens <= quota.bucket().burst()
            // The demand counter must not overflow before the tokens run out.
            && share.requested.checked_add(share.tokens).is_some();
        let seen = share.last_level().filter(|_| may)?;
        let nanos = share.expires_at.nanos_since(seen.received_at).min(LASTS_NANOS_MAX);
        // The last token is not taken so: the level of its reply depends on more than the last known level.
        let floor = if share.sync_request == SyncRequest::Idle { share.low.max(1) } else { 1 };
        let [outages, ..] = share.outages.to_le_bytes();
        Some(FastPath {
            tokens: share.tokens,
            floor: u16::try_from(floor).ok()?,
            level: Int48::new(seen.level)?,
            demand: u32::try_from(seen.demand).ok()?,
            at: Int48::new(seen.received_at.as_nanos().cast_signed() >> SEEN_SHIFT)?,
            lasts: u8::try_from(nanos >> LASTS_SHIFT).ok()?,
            outages,
        })
    }

    /// The age of the last known level in nanoseconds, if tokens can still be taken.
    #[inline]
    fn age(&self, now: Timestamp) -> Option<u64> {
        let at = self.at.get().cast_unsigned() << SEEN_SHIFT;
        let age = now.as_nanos().saturating_sub(at);
        (age >> LASTS_SHIFT < u64::from(self.lasts)).then_some(age)
    }

    #[inline]
    fn take_borrowed(&mut self, quota: &ShareQuota, now: Timestamp, cost: u32) -> Option<QuotaLevel> {
        let age = self.age(now)?;
        let outages = quota.outages(quota.fleet_status()?);
        let left = self.tokens.checked_sub(cost).filter(|left| *left >= u32::from(self.floor))?;
        let [outages, ..] = outages.to_le_bytes();
        if outages != self.outages {
            return None;
        }
        self.tokens = left;
        let level = quota.estimate(self.level.get(), u64::from(self.demand), age);
        Some(quota.known_level(level, left))
    }
}

/// The outage counter; odd during an outage.
fn outage_counter(quota: &ShareQuota) -> u32 {
    quota.fleet_status().map_or(0, |fleet_status| quota.outages(fleet_status))
}

const HEAP_BYTES: usize = malloc_block_bytes(size_of::<ShareState>());

/// 2²⁴ ns, a sixtieth of a second: the fast path ends up to this much early.
const LASTS_SHIFT: u32 = 24;

/// Four seconds: later the demand of other hosts is less certain. Borrowed tokens expire sooner.
const LASTS_NANOS_MAX: u64 = 4_000_000_000;

/// 44 bytes with its key. Aligning each entry to its own cache line was slower: fewer entries fit.
const _: () = assert!(size_of::<CompactShare>() == 34 && align_of::<CompactShare>() == 2);

#[cfg(test)]
mod tests {
    use super::Int48;

    #[test]
    fn packs_48_bits_and_rejects_larger_numbers() {
        let max = (1 << 47) - 1;
        for number in [0, 1, -1, 1 << 31, 1 << 32, -(1 << 32), 0x1234_5678_9abc, max, -max - 1] {
            assert_eq!(Int48::new(number).map(Int48::get), Some(number));
        }
        for number in [max + 1, -max - 2, i64::MAX, i64::MIN] {
            assert!(Int48::new(number).is_none(), "{number}");
        }
    }
}
