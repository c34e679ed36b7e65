//! Version numbers of a rule's numbers, so that during a rollout all hosts agree on the newest.

use super::cell::CellQuota;
use super::link::RedisCommand;
use super::scripts;
use super::window::CellWindow;
use super::wire::EXACT_MAX;

/// Asks for the version of a rule's numbers.
///
/// Sent when rules are loaded, and again to a Redis whose buckets have another birth, which may have lost the versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionCommand {
    /// The rule, equal on all hosts.
    pub rule: [u8; 16],
    /// Its numbers now.
    pub terms: NumbersFingerprint,
    /// The numbers that this host had before (`terms` if unchanged), and their version (0: none yet).
    pub before: Option<(NumbersFingerprint, u64)>,
}

/// Identifies a rule's numbers: at most 64 bytes of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumbersFingerprint(String);

impl NumbersFingerprint {
    /// The fingerprint of a window, independent of its version.
    #[must_use]
    pub fn of_window(terms: &CellQuota, window: &CellWindow) -> NumbersFingerprint {
        NumbersFingerprint(format!("{} in {}", terms.burst, window.text()))
    }

    /// The fingerprint of a bucket, independent of its version.
    #[must_use]
    pub fn of(terms: &CellQuota) -> NumbersFingerprint {
        NumbersFingerprint(format!("{}/{}/{}", terms.rate.num(), terms.rate.den(), terms.burst))
    }

    /// The text as stored in Redis.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl VersionCommand {
    pub(super) fn encode(&self) -> RedisCommand<'static> {
        let (before, known) = match &self.before {
            Some((before, known)) => (before.0.clone(), *known),
            None => (String::new(), 0),
        };
        let known = known.min(EXACT_MAX / 2).to_string();
        RedisCommand {
            script: &scripts::VERSION,
            keys: vec![format!("tg:{{tm}}:v:{}", super::wire::hex(self.rule)).into_bytes()],
            args: vec![self.terms.0.clone().into_bytes(), before.into_bytes(), known.into_bytes()],
        }
    }
}
