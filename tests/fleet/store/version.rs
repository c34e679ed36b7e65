//! Models the version numbers of one rule.

use std::collections::BTreeMap;

use tidegate::fleet::version::VersionCommand;

#[derive(Clone, Debug, Default)]
pub(super) struct Versions {
    numbers: BTreeMap<String, u64>,
    last: u64,
}

impl Versions {
    pub(super) fn number(&mut self, command: &VersionCommand) -> u64 {
        let now = command.numbers.as_str();
        let of = |cell_quota: &str| self.numbers.get(cell_quota).copied().unwrap_or(0);
        let (before, before_number) = match &command.before {
            Some((before, known)) => (Some(before.as_str()), of(before.as_str()).max(*known)),
            None => (None, 0),
        };
        let number = match of(now) {
            _ if before == Some(now) => before_number,
            number if number <= before_number => 0,
            number => number,
        };
        let last = self.last.max(before_number);
        let number = if number == 0 { last + 1 } else { number };
        self.last = last.max(number);
        self.numbers.insert(now.to_owned(), number);
        // One field of Redis is the last number.
        if self.numbers.len() + 1 > FIELDS_MAX {
            let (oldest, _) = self.numbers.iter().min_by_key(|(_, number)| **number).unwrap();
            let oldest = oldest.clone();
            self.numbers.remove(&oldest);
        }
        number
    }

    pub(super) fn fields(&self) -> BTreeMap<String, Vec<u8>> {
        let last = ("#".to_owned(), self.last);
        let fields = self.numbers.clone().into_iter().chain([last]);
        fields.map(|(field, number)| (field, number.to_string().into_bytes())).collect()
    }
}

const FIELDS_MAX: usize = 64;
