//! The common workload: one domain of 33 rules, a million callers, one kind of request.
//!
//! Frames are built byte by byte, not with the daemon's codec, whose decoder could otherwise accept only its
//! own encoder's output unnoticed.

#![allow(dead_code, reason = "shared by several benchmarks, each of which uses a part")]

pub(crate) const DOMAIN: &str = "api";

/// Callers, drawn uniformly: the table is far larger than the caches.
pub(crate) const USERS: u32 = 1_000_000;

/// Possible callers: their names have seven digits.
const NAMES: u32 = 10_000_000;

/// Rules of the domain: one that counts by caller; the others never match.
pub(crate) const RULES: usize = 33;

/// Seconds per token of a caller: so slow that no key is full again, and swept, during a run.
pub(crate) const REFILL_SECONDS: u64 = 3_600;

/// So large that no benchmark is refused.
pub(crate) const BURST: u64 = 10_000;

pub(crate) fn rules() -> String {
    rules_where("")
}

/// The rules file, with more fields in the rule that counts by caller.
pub(crate) fn rules_where(fields: &str) -> String {
    let mut yaml = format!(
        "domain: {DOMAIN}\nlimits:\n  - {{name: per-user, key: [user], rate: 1/h, burst: {BURST}{fields}}}\n"
    );
    for number in 1..RULES {
        yaml.push_str(&format!(
            "  - {{name: path-{number}, match: {{path: /p/{number}}}, key: [user], rate: 100/s}}\n"
        ));
    }
    yaml
}

/// The caller's name: always 8 bytes, so that all frames have one size.
pub(crate) fn user(number: u32) -> String {
    format!("u{number:07}")
}

/// A caller's name in place. A million names on the heap, drawn at random, would cost two cache misses each,
/// as much as the measured table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserName([u8; 1 + USER_DIGITS]);

impl UserName {
    pub(crate) fn new(number: u32) -> UserName {
        let mut name = [b'u'; 1 + USER_DIGITS];
        write_digits(&mut name[1..], number);
        UserName(name)
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

fn write_digits(digits: &mut [u8], number: u32) {
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Users {
    /// Uniform over [`USERS`].
    Uniform(Random),
    /// Uniform over the first `.0`.
    Below(u32, Random),
    /// One after the other.
    InOrder(u32),
}

impl Users {
    /// Uniform over [`USERS`]; the seed makes runs repeatable.
    pub(crate) fn uniform(seed: u64) -> Users {
        Users::Uniform(Random(seed))
    }

    /// Uniform over the first `bound`.
    pub(crate) fn below(bound: u32, seed: u64) -> Users {
        Users::Below(bound, Random(seed))
    }

    pub(crate) fn draw(&mut self) -> u32 {
        match self {
            Users::Uniform(random) => random.below(USERS),
            Users::Below(bound, random) => random.below(*bound),
            Users::InOrder(next) => {
                let user = *next;
                *next = (user + 1) % NAMES;
                user
            }
        }
    }
}

/// SplitMix64: a few instructions per number, so that the load generator costs little.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        // Multiply-shift: the upper half times the bound, shifted down, is below the bound.
        (((mixed >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// `hit` frames of one caller after the other: `[3, id, "api", [["user", "u0000000", "path", "/v1/charges"]],
/// 1]`.
#[derive(Clone, Debug)]
pub(crate) struct Hits {
    frame: Vec<u8>,
    id: u32,
    id_at: usize,
    user_at: usize,
    users: Users,
}

impl Hits {
    pub(crate) fn new(users: Users) -> Hits {
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        frame.extend_from_slice(&[ARRAY | 5, 3, UINT32]);
        let id_at = frame.len();
        frame.extend_from_slice(&[0; 4]);
        text(&mut frame, DOMAIN);
        frame.extend_from_slice(&[ARRAY | 1, ARRAY | 4]);
        text(&mut frame, "user");
        text(&mut frame, &user(0));
        let user_at = frame.len() - USER_DIGITS;
        text(&mut frame, "path");
        text(&mut frame, "/v1/charges");
        frame.push(1);
        set_length(&mut frame);
        Hits { frame, id: ID_FIRST, id_at, user_at, users }
    }

    /// The next request frame.
    pub(crate) fn next(&mut self) -> &[u8] {
        self.id = self.id.checked_add(1).unwrap_or(ID_FIRST);
        self.frame[self.id_at..self.id_at + 4].copy_from_slice(&self.id.to_be_bytes());
        let user = self.users.draw();
        write_digits(&mut self.frame[self.user_at..self.user_at + USER_DIGITS], user);
        &self.frame
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame.len()
    }
}

/// The frame that opens a connection: `[0, 1, 1]`.
pub(crate) fn hello() -> Vec<u8> {
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    frame.extend_from_slice(&[ARRAY | 3, 0, 1, 1]);
    set_length(&mut frame);
    frame
}

fn text(frame: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 32, "a short string has five bits for its length");
    frame.push(SHORT_TEXT | text.len() as u8);
    frame.extend_from_slice(text.as_bytes());
}

fn set_length(frame: &mut [u8]) {
    let payload_bytes = (frame.len() - FRAME_HEADER_BYTES) as u32;
    frame[..FRAME_HEADER_BYTES].copy_from_slice(&payload_bytes.to_be_bytes());
}

/// The length before every payload.
pub(crate) const FRAME_HEADER_BYTES: usize = 4;

// MessagePack: the upper bits of a short array and a short string, and the type byte of a 32-bit integer.
const ARRAY: u8 = 0x90;
const SHORT_TEXT: u8 = 0xA0;
const UINT32: u8 = 0xCE;

/// From here on ids take four bytes in requests and replies, so that all frames have one size.
const ID_FIRST: u32 = 0x1_0000;

const USER_DIGITS: usize = 7;
