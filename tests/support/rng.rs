//! Random numbers from a seed: SplitMix64 (Steele, Lea and Flood, 2014); and the number of cases of a property.
#![allow(dead_code, reason = "no test file uses all of it")]

pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// With the seed `SEED` of the environment, else with this one. Prints it.
    pub(crate) fn seeded(seed: u64) -> Rng {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(seed);
        println!("SEED={seed}");
        Rng(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.word() % end
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }
}

/// The configuration of a property: `PROPTEST_CASES` cases, else `usual`, which takes a second or two.
pub(crate) fn cases(usual: u32) -> proptest::test_runner::Config {
    let cases =
        std::env::var("PROPTEST_CASES").map_or(usual, |text| text.parse().expect("a number of cases"));
    proptest::test_runner::Config { cases, ..Default::default() }
}
