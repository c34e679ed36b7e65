//! Random mutations of the inputs of a corpus.

/// Mutates from a seed: the same seed makes the same inputs.
pub(crate) struct Mutator(u64);

impl Mutator {
    pub(crate) fn new(seed: u64) -> Mutator {
        Mutator(seed)
    }

    /// One of the inputs with one to eight changes.
    pub(crate) fn mutate(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..=self.below(8) {
            self.change(&mut input, inputs);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(32)).min(input.len());
        match self.below(7) {
            0 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << self.below(8)),
            1 => {
                let edge = EDGES[self.below(EDGES.len())];
                input.iter_mut().skip(at).take(1).for_each(|byte| *byte = edge);
            }
            2 => {
                let byte = self.word().to_le_bytes()[0];
                input.insert(at, byte);
            }
            3 => drop(input.drain(at..end.max(at))),
            4 => {
                let part = input[at..end.max(at)].to_vec();
                input.splice(at..at, part);
            }
            5 => input.truncate(at),
            _ => {
                let other = &inputs[self.below(inputs.len())];
                let from = self.below(other.len() + 1);
                let until = (from + 1 + self.below(64)).min(other.len()).max(from);
                input.splice(at..at, other[from..until].iter().copied());
            }
        }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.word() % end as u64).unwrap()
    }

    /// SplitMix64 (Steele, Lea, Flood, 2014).
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }
}

/// Numbers at which lengths and signs turn, and what texts are made of.
const EDGES: [u8; 14] = [0, 1, 0x7f, 0x80, 0xff, 0x90, 0xc1, b'\n', b'"', b',', b':', b'-', b' ', b'{'];

/// As much as libFuzzer tries.
const INPUT_BYTES_MAX: usize = 4_096;
