//! An instant in seven bytes: in units of 256 ns, over the whole range of [`Timestamp`].

use crate::clock::Timestamp;

/// The first instant of a unit of 256 ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CoarseTimestamp([u8; 7]);

impl CoarseTimestamp {
    /// The start of the unit that contains an instant.
    #[inline]
    pub(super) fn at_or_before(at: Timestamp) -> CoarseTimestamp {
        let [_, units @ ..] = at.as_nanos().to_le_bytes();
        CoarseTimestamp(units)
    }

    /// The start of the unit that contains an instant, or of the next one if the former is not in the same window as the
    /// instant.
    #[inline]
    pub(super) fn in_window_of(
        at: Timestamp,
        is_in_window: impl FnOnce(CoarseTimestamp) -> bool,
    ) -> CoarseTimestamp {
        let before = CoarseTimestamp::at_or_before(at);
        if is_in_window(before) {
            return before;
        }
        CoarseTimestamp::at_or_before(Timestamp::from_nanos(at.as_nanos().saturating_add(UNIT_NANOS - 1)))
    }

    #[inline]
    pub(super) fn get(self) -> Timestamp {
        let [a, b, c, d, e, f, g] = self.0;
        Timestamp::from_nanos(u64::from_le_bytes([0, a, b, c, d, e, f, g]))
    }
}

const UNIT_NANOS: u64 = 256;
