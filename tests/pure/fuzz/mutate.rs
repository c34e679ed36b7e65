//! Random mutations of the inputs of a corpus.

use crate::rng::Rng;

/// Mutates from a seed: the same seed makes the same inputs.
pub(crate) struct Mutator(Rng);

impl Mutator {
    pub(crate) fn new(seed: u64) -> Mutator {
        Mutator(Rng::new(seed))
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
        match self.below(9) {
            0 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << self.below(8)),
            1 => {
                let edge = EDGES[self.below(EDGES.len())];
                input.iter_mut().skip(at).take(1).for_each(|byte| *byte = edge);
            }
            2 => {
                let byte = self.0.word().to_le_bytes()[0];
                input.insert(at, byte);
            }
            3 => drop(input.drain(at..end.max(at))),
            4 => {
                let part = input[at..end.max(at)].to_vec();
                input.splice(at..at, part);
            }
            5 => input.truncate(at),
            // A word replaces a few characters, and a line is removed or moved: typical typos.
            6 => {
                let words: Vec<&str> = WORDS.split('~').collect();
                let end = (at + self.below(6)).min(input.len());
                drop(input.splice(at..end, self.0.pick(&words).bytes()));
            }
            7 => {
                let mut lines: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
                if !lines.is_empty() {
                    let line = lines.remove(self.below(lines.len()));
                    (0..self.below(3)).for_each(|_| lines.insert(self.below(lines.len() + 1), line));
                }
                *input = lines.concat();
            }
            _ => {
                let other = &inputs[self.below(inputs.len())];
                let from = self.below(other.len() + 1);
                let until = (from + 1 + self.below(64)).min(other.len()).max(from);
                input.splice(at..at, other[from..until].iter().copied());
            }
        }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.0.below(end as u64)).unwrap()
    }
}

/// Boundary values of lengths and signs, and characters of texts.
const EDGES: [u8; 14] = [0, 1, 0x7f, 0x80, 0xff, 0x90, 0xc1, b'\n', b'"', b',', b':', b'-', b' ', b'{'];

/// Words with a meaning in YAML, and values of rules, between `~`.
const WORDS: &str = "~- ~: ~{~[~#~&a~*a~!!int ~|~\"~\t~\u{feff}~é~---~null~true~-1~1e9~<<: ~? \
                     ~99999999999999999999~unlimited~10%~500ms~1/s";

/// The maximum of libFuzzer.
const INPUT_BYTES_MAX: usize = 4_096;
