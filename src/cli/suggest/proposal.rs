//! One proposed limit, and its text in a rules file.

use super::census::CallerAttributes;
use super::demand::{CallerShare, SufficientRate};
use super::window::WholeSecondsWindow;

/// A token bucket for each caller of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Proposal {
    pub(super) name: String,
    pub(super) key: CallerAttributes,
    pub(super) window: WholeSecondsWindow,
    /// The share of callers that it suffices for.
    pub(super) share: CallerShare,
    pub(super) count: u64,
    pub(super) burst: u64,
}

impl Proposal {
    pub(super) fn new(key: &CallerAttributes, rate: &SufficientRate, burst: u64) -> Proposal {
        let SufficientRate { window, share, count, .. } = *rate;
        let of_key = key.attributes.join("-");
        // A name has at most 64 bytes; the other parts take at most 20.
        let of_key = of_key.get(..of_key.floor_char_boundary(NAME_BYTES_OF_KEY)).unwrap_or_default();
        let name = format!("{of_key}-per-{window}-{}", share.0);
        Proposal { name, key: key.clone(), window, share, count, burst }
    }

    /// Returns a rate such as `20/min`.
    pub(super) fn rate(&self) -> String {
        format!("{}/{}", self.count, self.window)
    }

    /// Whether key, window, rate and burst are equal.
    pub(super) fn is_equal(&self, other: &Proposal) -> bool {
        self.is_like(other) && self.count == other.count && self.burst == other.burst
    }

    pub(super) fn is_like(&self, other: &Proposal) -> bool {
        self.key == other.key && self.window == other.window
    }

    /// Returns the rule, in shadow. A JSON string is valid YAML.
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

/// Returns a rules file for a domain.
pub(super) fn file(domain: &str, rules: &str) -> String {
    format!("domain: {}\nlimits:\n{rules}", serde_json::Value::from(domain))
}

/// Shares of callers that are never refused, from the strictest limit to the loosest.
pub(super) const SHARES: &[CallerShare] = &[("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Finer shares, to find the strictest limit with few enough refusals.
pub(super) const SHARES_FINER: &[CallerShare] = &[
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
