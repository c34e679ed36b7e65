//! Which number the terms of a rule have, so that during a rollout all hosts agree on the newest.

use super::call::Encoded;
use super::cell::Terms;
use super::scripts;
use super::window::CellWindow;
use super::wire::EXACT_MAX;

/// Asks for the number of some terms.
///
/// To be asked when rules are read, and again of each Redis with another nonce: it may have forgotten the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionCall {
    /// Which rule, the same on all hosts.
    pub rule: [u8; 16],
    /// Its terms now.
    pub terms: Fingerprint,
    /// The terms that this host had before, with their number (0: it had none yet); the same as now where nothing changed.
    pub before: Option<(Fingerprint, u64)>,
}

/// What tells the terms of a rule from others: at most 64 bytes of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Of a window, whatever its version.
    #[must_use]
    pub fn of_window(terms: &Terms, window: &CellWindow) -> Fingerprint {
        Fingerprint(format!("{} in {}", terms.burst, window.text()))
    }

    /// Of terms, whatever their version.
    #[must_use]
    pub fn of(terms: &Terms) -> Fingerprint {
        Fingerprint(format!("{}/{}/{}", terms.rate.num(), terms.rate.den(), terms.burst))
    }

    /// Of a limit on work at once.
    #[must_use]
    pub fn of_places(max: u32) -> Fingerprint {
        Fingerprint(format!("{max} at once"))
    }

    /// As it stands in Redis.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl VersionCall {
    pub(super) fn encode(&self) -> Encoded {
        let (before, known) = match &self.before {
            Some((before, known)) => (before.0.clone(), *known),
            None => (String::new(), 0),
        };
        let known = known.min(EXACT_MAX / 2).to_string();
        Encoded {
            script: &scripts::VERSION,
            keys: vec![format!("tg:{{tm}}:v:{}", super::wire::hex(self.rule)).into_bytes()],
            args: vec![self.terms.0.clone().into_bytes(), before.into_bytes(), known.into_bytes()],
        }
    }
}
