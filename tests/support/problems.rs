//! Files of a test, and words of their problems.
#![allow(unreachable_pub, reason = "used by several rooms")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// A directory of these files.
pub fn folder<T: AsRef<[u8]>>(files: &[(&str, T)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

/// Asserts that a text has all these words.
#[track_caller]
pub fn has(text: &str, words: &[&str]) {
    words.iter().for_each(|words| assert!(text.contains(words), "no `{words}` in {text}"));
}
