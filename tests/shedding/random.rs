//! Draws random numbers for the simulator: the same for the same seed. It knows no time and no load.

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates a separate stream for each purpose, so that an additional draw of one kind changes no other.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        Random(mixed(seed.wrapping_mul(STREAMS).wrapping_add(stream)))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mixed(self.0)
    }

    /// Uniform in [0, 1).
    pub(crate) fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        // The upper half of a product: its bias is invisible in a simulation of a million draws.
        ((u64::from(end) * (self.bits() >> 32)) >> 32) as u32
    }

    /// Exponential with mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -ln(1.0 - self.share())
    }

    /// Lognormal with mean 1 and a standard deviation of 2.
    pub(crate) fn lognormal(&mut self) -> f64 {
        // ln(1 + 2²), for a coefficient of variation of 2.
        let variance = 5.0_f64.ln();
        // Box and Muller (1958); the second normal is unused, so that each draw consumes the same from the
        // stream.
        let radius = (-2.0 * (1.0 - self.share()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.share()).cos();
        (variance.sqrt() * normal - variance / 2.0).exp()
    }
}

/// Natural logarithm of a positive number, in only sums and products: identical to the bit on every machine,
/// unlike a library's, so that figures drawn from a run are the same everywhere.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = f64::from((bits >> 52) as u32) - 1023.0;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    // 2 · artanh, which within 1 ≤ mantissa < 2 gains a digit with each term.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let series = (0..16).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    exponent * std::f64::consts::LN_2 + 2.0 * z * series
}

/// Spreads the bits of a number over all of it.
pub(crate) fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const STREAMS: u64 = 1_000_003;

#[test]
fn logarithm_matches_standard_library() {
    for x in [1e-16, 1e-9, 0.001, 0.1, 0.5, 0.7, 0.999, 1.0, 1.5, 1.999_999, 2.0, 12_345.0] {
        assert!((ln(x) - x.ln()).abs() <= 1e-14 * x.ln().abs().max(1.0), "{x}");
    }
}
