//! Which domains a file is of that cannot be read: what is wrong with it is told elsewhere.

use super::source::{Report, Source};
use super::written::File;
use super::{meaning, yaml};

/// The domains that a file names at the start of a line, for files that cannot be read as YAML.
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

/// A file is of one domain; of a few, when two were run together.
const SIGHTED_MAX: usize = 16;
