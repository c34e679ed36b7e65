//! Random descriptor trees and random requests for them, from a seed.

use std::collections::{BTreeMap, BTreeSet};

/// Numbers from a seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

/// Few of each, so that texts meet often: keys that begin like others, patterns that overlap, stars and backslashes that
/// are none.
const KEYS: [&str; 7] = ["a", "b", "a_b", "c", "a", "b", "a*"];
const VALUES: [&str; 14] =
    ["", "", "x", "y", "b", "b_x", "x*", "*", "*y", "x*y", "*x*", "b_*", "x\\*y", "\\x"];
const SENT: [&str; 12] = ["x*y", "*y", "x", "y", "b", "xy", "xzy", "b_x", "x*", "x\\*y", "\\x", "z"];
const UNITS: [&str; 8] = ["week", "second", "minute", "minute", "hour", "day", "month", "year"];

/// A tree as a file, and the lists of keys that have limits.
pub(crate) struct Tree {
    /// It has nothing that no rule can say, but where texts meet.
    plain: bool,
    pub(crate) text: String,
    pub(crate) lists: BTreeSet<Vec<&'static str>>,
}

impl Tree {
    pub(crate) fn random(dice: &mut Dice) -> Tree {
        let text = "domain: api\ndescriptors:\n".to_owned();
        let mut tree = Tree { plain: dice.one_in(2), text, lists: BTreeSet::new() };
        tree.level(dice, 0, &mut Vec::new());
        tree
    }

    fn level(&mut self, dice: &mut Dice, depth: usize, keys: &mut Vec<&'static str>) {
        let mut known = BTreeSet::new();
        let indent = "  ".repeat(2 * depth + 1);
        for _ in 0..1 + dice.below(6) {
            let key = if !self.plain && dice.one_in(12) { "a*" } else { dice.pick(&KEYS[..6]) };
            let value = dice.pick(&VALUES);
            let text = if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") };
            if !known.insert(text.clone()) {
                continue;
            }
            keys.push(key);
            self.text += &format!("{indent}- key: '{key}'\n");
            if !value.is_empty() {
                self.text += &format!("{indent}  value: '{value}'\n");
            }
            if text.contains('*') && dice.one_in(2) {
                self.text += &format!("{indent}  share_threshold: true\n");
            }
            if !dice.one_in(4) {
                self.limit(dice, &indent);
                self.lists.insert(keys.clone());
            }
            if depth < 2 && dice.one_in(3) {
                self.text += &format!("{indent}  descriptors:\n");
                self.level(dice, depth + 1, keys);
            }
            keys.pop();
        }
    }

    fn limit(&mut self, dice: &mut Dice, indent: &str) {
        if dice.one_in(6) {
            self.text += &format!("{indent}  shadow_mode: true\n");
        }
        let amount = match dice.below(12) {
            0 => "unlimited: true".to_owned(),
            _ => {
                let count = if !self.plain && dice.one_in(15) { 0 } else { 1 + dice.below(4) };
                let unit = dice.pick(if self.plain { &UNITS[1..] } else { &UNITS });
                format!("unit: {unit}, requests_per_unit: {count}")
            }
        };
        let replaces: &[&str] = if self.plain {
            &[""]
        } else {
            &["", "", "", "", ", name: one", ", name: two", ", replaces: [{name: one}]"]
        };
        let name = dice.pick(replaces);
        self.text += &format!("{indent}  rate_limit: {{{amount}{name}}}\n");
    }
}

/// What a request is about: each attribute with one value.
pub(crate) type Attributes = BTreeMap<&'static str, &'static str>;

pub(crate) fn attributes(dice: &mut Dice) -> Attributes {
    let names = ["a", "b", "a_b", "c"].into_iter().filter(|_| !dice.one_in(3)).collect::<Vec<_>>();
    names.into_iter().map(|name| (name, dice.pick(&SENT))).collect()
}

/// One descriptor for each list of which a request has all attributes.
pub(crate) fn descriptors(
    lists: &BTreeSet<Vec<&'static str>>,
    attributes: &Attributes,
) -> Vec<Vec<(&'static str, &'static str)>> {
    let pairs = |list: &Vec<&'static str>| {
        list.iter().map(|key| Some((*key, *attributes.get(key)?))).collect::<Option<Vec<_>>>()
    };
    let own = |list: &&Vec<&str>| list.iter().collect::<BTreeSet<_>>().len() == list.len();
    lists.iter().filter(own).filter_map(pairs).collect()
}
