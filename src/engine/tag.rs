//! What a table knows of a state besides the state: sixteen bits beside the digest of its key.

use crate::clock::{Now, Timestamp};
use crate::limit::Scale;

/// Which of a key's states this is, and what tells whether it is as good as new: the scale of a bucket's ticks, the
/// timeline of a window's end, the time that a log looks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u16);

/// Which of a key's states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// The rule's.
    #[default]
    Own,
    /// What a rule admits beyond its quota while there is room.
    Elastic,
    /// The candidate's.
    Candidate,
    /// What a candidate would admit beyond its quota.
    CandidateElastic,
}

impl Role {
    /// The state beside this one for what is beyond the quota.
    pub(super) fn elastic(self) -> Role {
        match self {
            Role::Own | Role::Elastic => Role::Elastic,
            Role::Candidate | Role::CandidateElastic => Role::CandidateElastic,
        }
    }
}

impl Tag {
    /// For what needs none.
    pub(super) const NONE: Tag = Tag(0);

    /// Of a bucket. Quotas of another generation were in force when it was last changed.
    pub(super) fn bucket(scale: Scale, generation: u8) -> Tag {
        // 128 ticks, the most there are, stand as 0.
        let ticks = u16::from(scale.ticks_per_nano()) & SCALE_BITS;
        Tag(ticks | (u16::from(generation) % GENERATIONS) << GENERATION_SHIFT)
    }

    /// Of a window that ends at a moment: of Unix time, else of the boot-time clock.
    pub(super) fn window(is_unix: bool) -> Tag {
        Tag(u16::from(is_unix))
    }

    /// Of what looks back so many nanoseconds, kept to one part in 16, upwards.
    pub(super) fn span(nanos: u64) -> Tag {
        let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(MANTISSA_BITS + 1);
        let mantissa = nanos.div_ceil(1 << shift);
        // Rounding up may have carried into the next power of two.
        let (shift, mantissa) =
            if mantissa > MANTISSA_MAX { (shift + 1, mantissa.div_ceil(2)) } else { (shift, mantissa) };
        let code = u64::from(shift) << (MANTISSA_BITS + 1) | mantissa;
        Tag(u16::try_from(code).unwrap_or(SPAN_BITS))
    }

    /// The same for another of the key's states.
    pub(super) fn for_role(self, role: Role) -> Tag {
        let role = match role {
            Role::Own => 0,
            Role::Elastic => 1,
            Role::Candidate => 2,
            Role::CandidateElastic => 3,
        };
        Tag(self.0 & !ROLE_BITS | role << ROLE_SHIFT)
    }

    /// Which of the key's states it is.
    pub(super) fn role(self) -> Role {
        match self.0 >> ROLE_SHIFT {
            0 => Role::Own,
            1 => Role::Elastic,
            2 => Role::Candidate,
            _ => Role::CandidateElastic,
        }
    }

    pub(super) fn bits(self) -> u16 {
        self.0
    }

    pub(super) fn from_bits(bits: u16) -> Tag {
        Tag(bits)
    }

    /// The scale of a bucket's ticks.
    #[inline]
    pub(super) fn scale(self) -> Scale {
        let ticks = u8::try_from(self.0 & SCALE_BITS).unwrap_or_default();
        Scale::from_ticks_per_nano(ticks).unwrap_or(Scale::FINEST)
    }

    /// Whether a window ends at a moment of Unix time.
    pub(super) fn is_unix(self) -> bool {
        self.0 & 1 == 1
    }

    /// How far a log looks back, or a sixteenth further.
    pub(super) fn span_nanos(self) -> u64 {
        let code = u64::from(self.0 & SPAN_BITS);
        let mantissa = code & ((1 << (MANTISSA_BITS + 1)) - 1);
        mantissa << (code >> (MANTISSA_BITS + 1))
    }
}

/// A state that, left alone, ends as good as new: then it need not be kept.
pub(super) trait Fading {
    /// Nanoseconds until it equals a fresh one; zero when it does.
    fn nanos_until_fresh(&self, tag: Tag, now: Now) -> u64;

    /// What it holds outside its table.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Something that holds until a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Until(pub(super) Timestamp);

impl Fading for Until {
    fn nanos_until_fresh(&self, _: Tag, now: Now) -> u64 {
        self.0.as_nanos().saturating_sub(now.at.as_nanos())
    }
}

const SCALE_BITS: u16 = 0x7f;

const GENERATION_SHIFT: u32 = 7;

/// Generations of a rule's quotas that are told apart: all that there is room for below the role.
const GENERATIONS: u16 = 128;

/// What tells the states of one key apart stands above what may change.
pub(super) const ROLE_SHIFT: u32 = 14;

const ROLE_BITS: u16 = 0b11 << ROLE_SHIFT;

/// Bits below the highest one that a span keeps.
const MANTISSA_BITS: u32 = 4;

const MANTISSA_MAX: u64 = (1 << (MANTISSA_BITS + 1)) - 1;

/// Six bits of shift above five of mantissa.
const SPAN_BITS: u16 = 0x7ff;

#[cfg(test)]
mod tests {
    use super::{Role, Tag};
    use crate::limit::Scale;

    #[test]
    fn a_span_is_never_kept_shorter_and_little_longer() {
        let edges = (0..56).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, (1 << bit) * 31 / 16]);
        for nanos in edges {
            for role in [Role::Own, Role::Candidate, Role::CandidateElastic] {
                let kept = Tag::span(nanos).for_role(role).span_nanos();
                assert!(kept >= nanos && kept <= nanos + nanos / 16 + 1, "{nanos} kept as {kept}");
            }
        }
    }

    #[test]
    fn a_scale_is_kept_in_every_generation_and_role() {
        for ticks in 1..=128 {
            let scale = Scale::from_ticks_per_nano(ticks).unwrap_or(Scale::NANOS);
            for generation in [0, 1, 3, 127, 255] {
                assert_eq!(Tag::bucket(scale, generation).for_role(Role::Candidate).scale(), scale);
            }
        }
        assert_ne!(Tag::bucket(Scale::NANOS, 0), Tag::bucket(Scale::NANOS, 1));
    }
}
