//! Tags: 16 bits of metadata about a state, stored in the digest of its key.

use crate::clock::{Now, Timestamp};
use crate::limit::TickScale;

/// Distinguishes a key's states and holds a bucket's scale, or the span of a window or log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u16);

impl Tag {
    pub(super) const NONE: Tag = Tag(0);

    /// The tag of a bucket with a scale and the generation of its quotas.
    pub(super) fn bucket(scale: TickScale, generation: u8) -> Tag {
        // 128 ticks, the maximum, are stored as 0.
        let ticks = u16::from(scale.ticks_per_nano()) & SCALE_BITS;
        Tag(ticks | (u16::from(generation) % GENERATIONS) << GENERATION_SHIFT)
    }

    /// The tag of a state with a span in nanoseconds, rounded up by at most 1/16.
    pub(super) fn span(nanos: u64) -> Tag {
        let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(MANTISSA_BITS + 1);
        let mantissa = nanos.div_ceil(1 << shift);
        // Rounding up may carry into the next power of two.
        let (shift, mantissa) =
            if mantissa > MANTISSA_MAX { (shift + 1, mantissa.div_ceil(2)) } else { (shift, mantissa) };
        let code = u64::from(shift) << (MANTISSA_BITS + 1) | mantissa;
        Tag(u16::try_from(code).unwrap_or(SPAN_BITS))
    }

    /// The tag of the key's elastic state, which admits requests above the quota while the pool has room.
    pub(super) fn elastic(self) -> Tag {
        Tag(self.0 & !ROLE_BITS | 1 << ROLE_SHIFT)
    }

    /// Whether both are tags of the same state of a key.
    #[inline]
    pub(super) fn has_role_of(self, other: Tag) -> bool {
        (self.0 ^ other.0) & ROLE_BITS == 0
    }

    pub(super) fn bits(self) -> u16 {
        self.0
    }

    pub(super) fn from_bits(bits: u16) -> Tag {
        Tag(bits)
    }

    #[inline]
    pub(super) fn scale(self) -> TickScale {
        let ticks = u8::try_from(self.0 & SCALE_BITS).unwrap_or_default();
        TickScale::from_ticks_per_nano(ticks).unwrap_or(TickScale::FINEST)
    }

    /// The generations of quotas from that of an older bucket to this one.
    pub(super) fn generations_since(self, older: Tag) -> u8 {
        let generation = |tag: Tag| tag.0 >> GENERATION_SHIFT;
        u8::try_from(generation(self).wrapping_sub(generation(older)) % GENERATIONS).unwrap_or_default()
    }

    /// The tag with the fill level of a window or log, in 3 bits, which eviction compares.
    pub(super) fn filled(self, remaining: u64, limit: u64) -> Tag {
        let used = u128::from(limit.saturating_sub(remaining)) * u128::from(FULL) / u128::from(limit.max(1));
        self.with_fill(if remaining == 0 { FULL } else { u16::try_from(used).unwrap_or(FULL).min(FULL - 1) })
    }

    /// The tag of a state that has refused a request since its last charge.
    pub(super) fn refusing(self) -> Tag {
        self.with_fill(REFUSING)
    }

    fn with_fill(self, fill: u16) -> Tag {
        Tag(self.0 & !(FILL_MAX << FILL_SHIFT) | fill << FILL_SHIFT)
    }

    /// The fill level at the last charge; the highest one has refused.
    pub(super) fn fill(self) -> u16 {
        self.0 >> FILL_SHIFT & FILL_MAX
    }

    /// The span in nanoseconds, at most 1/16 too long.
    pub(super) fn span_nanos(self) -> u64 {
        let code = u64::from(self.0 & SPAN_BITS);
        let mantissa = code & ((1 << (MANTISSA_BITS + 1)) - 1);
        mantissa << (code >> (MANTISSA_BITS + 1))
    }
}

/// A state that over time becomes equal to a fresh one and can then be dropped.
pub(super) trait TableState {
    /// Nanoseconds until it equals a fresh one; 0: it does.
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64;

    /// The eviction weight of a state that is not fresh; compared before the time until fresh.
    fn weight(&self, _: Tag) -> u16 {
        0
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

/// The weight of states that are never evicted.
pub(super) const PINNED: u16 = u16::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockedUntil(pub(super) Timestamp);

impl TableState for BlockedUntil {
    fn nanos_until_fresh(&self, _: Tag, now: Now) -> u64 {
        self.0.nanos_since(now.at)
    }
}

const SCALE_BITS: u16 = 0x7f;

const GENERATION_SHIFT: u32 = 7;

/// Distinguishable generations of a rule's quotas: all that fit below the role.
pub(super) const GENERATIONS: u16 = 128;

/// The role, which distinguishes the states of one key, is above the bits that may change.
const ROLE_SHIFT: u32 = 14;

const ROLE_BITS: u16 = 0b11 << ROLE_SHIFT;

/// Mantissa bits of a span below its highest bit.
const MANTISSA_BITS: u32 = 4;

const MANTISSA_MAX: u64 = (1 << (MANTISSA_BITS + 1)) - 1;

/// 6 bits of shift above 5 of mantissa.
const SPAN_BITS: u16 = 0x7ff;

/// The fill level is between span and role.
const FILL_SHIFT: u32 = 11;

const FILL_MAX: u16 = 0b111;

/// No units are left.
const FULL: u16 = FILL_MAX - 1;

const REFUSING: u16 = FILL_MAX;

#[cfg(test)]
mod tests {
    use super::Tag;
    use crate::limit::TickScale;

    #[test]
    fn rounds_span_up_by_at_most_a_sixteenth() {
        let edges =
            (0..56).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, (1 << bit) * 31 / 16]);
        for nanos in edges {
            for tag in [Tag::span(nanos), Tag::span(nanos).elastic()] {
                let kept = tag.span_nanos();
                assert!(kept >= nanos && kept <= nanos + nanos / 16 + 1, "{nanos} kept as {kept}");
            }
        }
    }

    #[test]
    fn fill_rises_with_usage_and_refusal_is_highest() {
        let tag = Tag::span(86_400 * 1_000_000_000).elastic();
        let fills: Vec<u16> = (0..=10).map(|left| tag.filled(10 - left, 10).fill()).collect();
        assert_eq!(fills, [0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 6]);
        assert_eq!(
            [tag.filled(1, 1_000).fill(), tag.filled(0, 0).fill(), tag.filled(0, 5).refusing().fill()],
            [5, 6, 7]
        );
        assert_eq!(tag.filled(u64::MAX, 7).fill(), 0);
        let filled = tag.refusing();
        assert_eq!((filled.span_nanos(), filled.elastic()), (tag.span_nanos(), filled));
    }

    #[test]
    fn keeps_scale_in_every_generation_and_role() {
        for ticks in 1..=128 {
            let scale = TickScale::from_ticks_per_nano(ticks).unwrap_or(TickScale::NANOS);
            for generation in [0, 1, 3, 127, 255] {
                assert_eq!(Tag::bucket(scale, generation).elastic().scale(), scale);
            }
        }
        assert_ne!(Tag::bucket(TickScale::NANOS, 0), Tag::bucket(TickScale::NANOS, 1));
    }
}
