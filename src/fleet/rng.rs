//! The random number generator: reproducible from its seed.

use std::time::Duration;

/// xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators", 2016).
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(seed | 1)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A random number below `end`, or 0 if `end` is 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.bits().checked_rem(end).unwrap_or(0)
    }

    /// A random duration below `span`.
    pub(super) fn up_to(&mut self, span: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Random bytes of the kernel, or zeros if it has none: hosts then only draw the same numbers and delays.
pub(super) fn drawn<const BYTES: usize>() -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}
