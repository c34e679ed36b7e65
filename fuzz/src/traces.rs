//! Traces and access logs through `tidegate replay`: an error names its line.

use std::sync::{Arc, LazyLock};

use tidegate::cli::replay::play;
use tidegate::rules::{Domain, read_text};

const RULES: &str = "\
domain: api
priorities: [critical, other]
limits:
- {name: bucket, key: [user], rate: 5/s, refund_on: ok, warn_at: 80%}
- {name: address, key: [ip], algorithm: sliding_window, rate: 9/min}
- {name: log, key: [path], algorithm: sliding_log, rate: 3/min, over: {soft: 50%}}
- {name: tokens, key: [user], unit: tokens, rate: 1000/min, max_debt: 100}
- {name: paced, key: [user], algorithm: leaky_bucket, rate: 5/s, queue: 20}
concurrency:
- {name: each, key: [user], max: 3}
shed:
- {pool: web, slots: 4, queue_age: {others: 500ms}, workers: {after: 1s, full: 30s}}
";

static DOMAINS: LazyLock<Vec<Arc<Domain>>> = LazyLock::new(|| {
    let loaded = read_text("rules.yaml", RULES);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    loaded.domains
});

/// Replays the bytes as a JSON-lines trace.
pub fn check(bytes: &[u8]) {
    if is_fit(bytes) {
        check_played(bytes, &play(bytes.to_vec(), DOMAINS.clone(), None, false));
    }
}

/// Replays the bytes as an access log: a malformed line ends it only if strict.
pub fn check_access_log(bytes: &[u8]) {
    if is_fit(bytes) {
        let summary = play(bytes.to_vec(), DOMAINS.clone(), Some("api"), false);
        assert!(summary.is_ok(), "{summary:?}");
        check_played(bytes, &play(bytes.to_vec(), DOMAINS.clone(), Some("api"), true));
    }
}

fn check_played(bytes: &[u8], played: &Result<String, String>) {
    match played {
        Ok(summary) => assert!(!summary.is_empty()),
        Err(message) => {
            let number = message.strip_prefix("line ").and_then(|rest| rest.split(':').next());
            let number: usize = number.and_then(|number| number.parse().ok()).expect(message);
            assert!((1..=bytes.split(|byte| *byte == b'\n').count()).contains(&number), "{message}");
            assert!(!message.chars().any(char::is_control), "{message:?}");
        }
    }
}

/// Excludes inputs that make a debug build panic.
fn is_fit(bytes: &[u8]) -> bool {
    !bytes.windows(6).any(|window| window == b"debug-")
}
