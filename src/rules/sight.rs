//! Best-effort detection of the domains of a file that is not valid YAML. Its errors are reported elsewhere.

use super::file::RulesFile;
use super::source::{Report, Source};
use super::{de, yaml};

/// Returns the domains that lines starting with `domain:` name.
pub(super) fn domains_by_sight(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let source = Source::new("", line.to_owned());
        let root = yaml::read(&source).ok()?;
        let file: RulesFile<'_> = de::read(&root, &mut Report::new(&source))?;
        Some(file.domain.0.to_owned())
    };
    text.lines().filter(|line| line.starts_with("domain:")).take(SIGHTED_MAX).filter_map(name).collect()
}

/// A file has one domain, or a few if files were concatenated.
const SIGHTED_MAX: usize = 16;
