//! The table of an `overrides_file`: errors have positions, and tables without errors can decide.

use std::fs;

use tempfile::TempDir;
use tidegate::rules::read;

use super::rules::{check_problems, judge_some};

const RULES: &str = "\
domain: api
limits:
- {name: a, key: [user], rate: 1/s, overrides_file: t.csv}
- {name: b, key: [org, user], rate: 1/s, burst: 9, overrides_file: t2.csv}
concurrency:
- {name: c, key: [user], max: 2, overrides_file: t3.csv}
";

thread_local! {
    static DIRECTORY: TempDir = {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("rules.yaml"), RULES).unwrap();
        directory
    };
}

/// Reads the bytes as a table with keys of one value, of two values, and for a concurrency limit.
pub fn check(bytes: &[u8]) {
    DIRECTORY.with(|directory| {
        for name in ["t.csv", "t2.csv", "t3.csv"] {
            fs::write(directory.path().join(name), bytes).unwrap();
        }
        let loaded = read(directory.path());
        let text = String::from_utf8_lossy(bytes);
        let of_tables: Vec<_> = loaded
            .problems
            .iter()
            .filter(|problem| problem.position.file.ends_with(".csv") && problem.position.line > 0)
            .cloned()
            .collect();
        check_problems(&of_tables, &text);
        assert_eq!(loaded.domains.is_empty(), loaded.has_errors());
        judge_some(loaded.domains);
    });
}
