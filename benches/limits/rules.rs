//! The measured rules, as in files.

use crate::workload::DOMAIN;

/// A domain with one rule that counts by caller.
pub(crate) fn one(fields: &str) -> String {
    format!("domain: {DOMAIN}\nlimits:\n- {{name: per-user, key: [user], {fields}}}\n")
}

/// Three rules that count by caller and match every request.
pub(crate) fn three() -> String {
    let rules = ["a", "b", "c"].map(|name| format!("- {{name: {name}, key: [user], {TOKEN_BUCKET}}}\n"));
    format!("domain: {DOMAIN}\nlimits:\n{}", rules.concat())
}

/// `count` rules, of which one matches: exact paths, patterns and callers in turn. Conditions resemble the
/// requests' values, so that none is rejected at once.
pub(crate) fn many(count: usize) -> String {
    let mut yaml = one(TOKEN_BUCKET);
    for number in 1..count {
        let condition = match number % 3 {
            0 => format!("path: /v1/p{number:06}"),
            1 => format!("path: '/v1/g{number}/*'"),
            _ => format!("user: x{number:07}"),
        };
        yaml.push_str(&format!("- {{name: r{number}, match: {{{condition}}}, key: [user], rate: 100/s}}\n"));
    }
    yaml
}

/// So slow that no key is full again during a benchmark, and so large that none is refused.
pub(crate) const TOKEN_BUCKET: &str = "rate: 1/h, burst: 10000";

pub(crate) const LEAKY_BUCKET: &str = "algorithm: leaky_bucket, rate: 60/h, queue: 1000";

pub(crate) const FIXED_WINDOW: &str = "algorithm: fixed_window, rate: 10000/h";

pub(crate) const SLIDING_LOG: &str = "algorithm: sliding_log, rate: 100/h";

pub(crate) fn sliding_window(buckets: u8) -> String {
    format!("algorithm: sliding_window, rate: 10000/h, buckets: {buckets}")
}
