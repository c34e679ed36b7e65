//! Expected problems of files as tables: position, part of the message, part of the help.
#![allow(dead_code, unreachable_pub, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use tidegate::rules::{Loaded, Problem, read_text};

/// Line, column, part of the message, part of the help.
pub type ExpectedError<'t> = (u32, u32, &'t str, &'t str);

/// Asserts the errors of a text, in order, and that its domain is absent.
#[track_caller]
pub fn errors(file: &str, text: &str, expected: &[ExpectedError<'_>]) -> Vec<Problem> {
    let loaded = read_text(file, text);
    let errors: Vec<Problem> = loaded.problems.into_iter().filter(Problem::is_error).collect();
    let found = errors.iter().map(|error| format!("{error}\n")).collect::<String>();
    assert_eq!(errors.len(), expected.len(), "{text}\n{found}");
    for (error, (line, column, message, help)) in errors.iter().zip(expected) {
        assert_eq!((error.position.line, error.position.column), (*line, *column), "{text}\n{found}");
        assert!(error.message.contains(message), "{message:?} in\n{error}\n{text}");
        assert!(error.help.contains(help), "{help:?} in\n{error}\n{text}");
    }
    assert!(loaded.domains.is_empty(), "a domain with errors is absent:\n{text}");
    errors
}

/// A directory of these files.
pub fn folder<T: AsRef<[u8]>>(files: &[(&str, T)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

/// Asserts the warnings of a text without errors, in order: line, part of the message, part of the help.
#[track_caller]
pub fn warnings(file: &str, text: &str, expected: &[(u32, &str, &str)]) -> Loaded {
    let loaded = read_text(file, text);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    let found = loaded.problems.iter().map(|warning| format!("{warning}\n")).collect::<String>();
    assert_eq!(loaded.problems.len(), expected.len(), "{text}\n{found}");
    for (warning, (line, message, help)) in loaded.problems.iter().zip(expected) {
        assert_eq!(warning.position.line, *line, "{text}\n{found}");
        assert!(warning.message.contains(message), "{message:?} in\n{found}");
        assert!(warning.help.contains(help), "{help:?} in\n{found}");
    }
    loaded
}
