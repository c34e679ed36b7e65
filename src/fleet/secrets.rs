//! Which secrets a host has, as it says to the others, and which of them all have agreed on. No byte of a secret is in it:
//! a mark tells one from another, and nothing else.

use super::cell::HOSTS_MAX;
use super::wire::{EXACT_MAX, Reader, Writer};
use arrayvec::ArrayVec;

/// What tells a secret from others: a digest, and never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark([u8; 8]);

/// What a host says of its secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The one that makes its keys; `None`: it is yet to be told.
    pub uses: Option<Mark>,
    /// Those that it has, in the order of its settings; at least one.
    pub has: ArrayVec<Mark, SECRETS_MAX>,
}

/// What hosts have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// What was in use before; `None`: nothing is known of that.
    pub before: Option<Mark>,
    /// What is in use, once it is time.
    pub uses: Mark,
    /// From when, by the clock of that Redis.
    pub from_us: u64,
    /// How many hosts do not name first what this host does, where that is not in use; zero: nobody, or nobody knows yet.
    pub lacking: u32,
    /// The first of them: what begins the names of these hosts, in hexadecimal digits.
    pub who: Vec<String>,
}

impl Mark {
    /// Of a digest of the secret.
    #[must_use]
    pub fn of_digest(digest: [u8; 8]) -> Mark {
        Mark(u64::from_le_bytes(digest).max(1).to_le_bytes())
    }

    fn read(from: &mut Reader<'_>) -> Option<Mark> {
        let bytes: [u8; 8] = from.bytes();
        (bytes != [0; 8]).then_some(Mark(bytes))
    }

    /// As it stands in Redis; zeros: none.
    #[must_use]
    pub fn bytes(mark: Option<Mark>) -> [u8; 8] {
        mark.map_or([0; 8], |Mark(bytes)| bytes)
    }
}

/// Enough for people to tell two apart.
impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mark([first, second, third, fourth, ..]) = self;
        write!(f, "{first:02x}{second:02x}{third:02x}{fourth:02x}")
    }
}

impl Held {
    /// As it stands in Redis.
    pub(super) fn write(&self, to: &mut Writer) {
        to.bytes.extend(Mark::bytes(self.uses));
        self.has.iter().for_each(|mark| to.bytes.extend(mark.0));
    }
}

impl Agreed {
    pub(super) const BYTES: usize = 8 + 8 + 8 + 4 + NAMES_MAX * NAME_BYTES;

    /// `now_us`: when it was said.
    pub(super) fn read(from: &mut Reader<'_>, now_us: u64) -> Agreed {
        let before = Mark::read(from);
        let uses = Mark::read(from).unwrap_or(Mark([1; 8]));
        let from_us = from.amount(EXACT_MAX).min(now_us.saturating_add(LEAD_MAX_US));
        let lacking = from.small(HOSTS_MAX);
        let names = [(); NAMES_MAX].map(|()| from.bytes::<NAME_BYTES>());
        let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
        let names = names.iter().filter(|name| name.iter().all(is_digit));
        let who = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        Agreed { before, uses, from_us, lacking, who }
    }
}

/// As many as the settings take.
pub const SECRETS_MAX: usize = 2;

/// Hosts that are named to an operator: he begins with these.
const NAMES_MAX: usize = 4;

/// Of a name of a host, as it is shown.
const NAME_BYTES: usize = 8;

/// No Redis of ours says later: who says so must not keep hosts from sharing for ever.
const LEAD_MAX_US: u64 = 10_000_000;
