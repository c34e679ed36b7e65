//! Best-effort detection of the domains of a file that is not valid YAML. Its errors are reported elsewhere.

use super::source::{Report, Source};
use super::written::File;
use super::{meaning, yaml};

/// Returns the domains that lines starting with `domain:` name.
pub(super) fn domains_by_sight(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let source = Source::new("", line.to_owned());
        let root = yaml::read(&source).ok()?;
        let mut report = Report::new(&source);
        let (node, name) = File::read(&root, &mut report).domain?;
        meaning::domain(node, name, &mut report).map(str::to_owned)
    };
    text.lines().filter(|line| line.starts_with("domain:")).take(SIGHTED_MAX).filter_map(name).collect()
}

/// A file has one domain, or a few if files were concatenated.
const SIGHTED_MAX: usize = 16;
