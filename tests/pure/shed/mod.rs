//! The promises of shedding as arithmetic: the tables of the law, what absurd readings do, and shares that are kept. A
//! failing property prints its seed and its smallest case.

mod brake;
mod draw;
mod heavy;
mod hint;
mod law_properties;
mod simple;
mod slow_law;
mod window;

use std::time::Duration;

use tidegate::clock::Timestamp;

fn at_millis(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis * 1_000_000)
}

const SECOND: Duration = Duration::from_secs(1);

/// Numbers spread evenly, the same ones for the same seed (`SplitMix64`: Steele, Lea, Flood, 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
