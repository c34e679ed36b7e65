//! The settings: errors have a position and a help.

use tidegate::daemon::settings::{Environment, Settings};
use tidegate::rules::Problem;
use tidegate::rules::source::Source;

use super::rules::check_problems;

/// Reads the bytes as a settings file.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let environment = Environment { cores: 2, ..Environment::default() };
    match Settings::read(Some(&Source::new("tidegate.yaml", text.to_owned())), &environment) {
        Ok((settings, problems)) => {
            assert!(!settings.rules.as_os_str().is_empty());
            check_problems(&problems, text);
        }
        Err(problems) => {
            assert!(problems.iter().any(Problem::is_error), "no settings and no error");
            check_problems(&problems, text);
        }
    }
}
