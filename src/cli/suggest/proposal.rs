//! One limit that is proposed, and how it is written.

use super::census::Key;
use super::demand::{Rate, Share};
use super::window::Window;

/// A token bucket for each caller of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Proposal {
    /// What the rule is called.
    pub(super) name: String,
    pub(super) key: Key,
    pub(super) window: Window,
    /// Of whom it is enough.
    pub(super) share: Share,
    pub(super) count: u64,
    pub(super) burst: u64,
}

impl Proposal {
    pub(super) fn new(key: &Key, rate: &Rate, burst: u64) -> Proposal {
        let Rate { window, share, count, .. } = *rate;
        let of_key = key.attributes.join("-");
        // A name has 64 bytes at most, and these three need no more than 40 of them.
        let of_key = of_key.get(..of_key.floor_char_boundary(NAME_BYTES_OF_KEY)).unwrap_or_default();
        let name = format!("{of_key}-per-{window}-{}", share.0);
        Proposal { name, key: key.clone(), window, share, count, burst }
    }

    /// `20/min`.
    pub(super) fn rate(&self) -> String {
        format!("{}/{}", self.count, self.window)
    }

    /// Whether another says the same.
    pub(super) fn is_equal(&self, other: &Proposal) -> bool {
        self.is_like(other) && self.count == other.count && self.burst == other.burst
    }

    /// Whether another is for the same key and window.
    pub(super) fn is_like(&self, other: &Proposal) -> bool {
        self.key == other.key && self.window == other.window
    }

    /// The rule, in shadow. What JSON writes as a text is one in YAML.
    pub(super) fn yaml(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let key: Vec<String> = self.key.attributes.iter().map(|name| quoted(name)).collect();
        format!(
            "  - {{name: {}, key: [{}], rate: {}, burst: {}, mode: shadow}}\n",
            quoted(&self.name),
            key.join(", "),
            self.rate(),
            self.burst
        )
    }
}

/// A file of rules of a domain.
pub(super) fn file(domain: &str, rules: &str) -> String {
    format!("domain: {}\nlimits:\n{rules}", serde_json::Value::from(domain))
}

/// The shares of callers that are never refused, from the strictest limit to the loosest.
pub(super) const SHARES: &[Share] = &[("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// The same where the strictest that refuses little enough is looked for.
pub(super) const SHARES_FINER: &[Share] = &[
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.5", 0.995),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("max", 1.0),
];

const NAME_BYTES_OF_KEY: usize = 32;
