//! The directories to watch for changes of the rules, and the relevant names in each. Every link on the path
//! is followed, as replacing a link changes its target.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Directories by their path without links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DirectoryPaths(BTreeMap<PathBuf, WatchedDirectory>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WatchedDirectory {
    names: BTreeSet<OsString>,
    /// Whether all other names are relevant too.
    whole: bool,
    /// Whether changes would be missed without this watch. The other directories matter only if they are
    /// moved while the daemon runs.
    pub(super) needed: bool,
    /// Device and inode, to detect that another directory took its place.
    id: Option<(u64, u64)>,
}

impl DirectoryPaths {
    /// Returns the directories for rules at a path, a directory or one file, as far as it exists.
    pub(super) fn of(path: &Path) -> DirectoryPaths {
        let mut places = DirectoryPaths::default();
        let mut links = LINKS_MAX;
        let start = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if let Some(found) = places.walk(&start, &mut links) {
            let directory = if found.is_dir() { found } else { parent_of(&found) };
            let place = places.place(&directory);
            (place.whole, place.needed) = (true, true);
            places.follow_entries(&directory);
        }
        for (directory, place) in &mut places.0 {
            place.id = directory.metadata().ok().map(|found| (found.dev(), found.ino()));
        }
        places
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, &WatchedDirectory)> {
        self.0.iter().map(|(directory, place)| (directory.as_path(), place))
    }

    /// Whether a change of this path may change the rules.
    pub(super) fn concern(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default();
        let place = self.0.get(&parent_of(path));
        self.is_one(path) || place.is_some_and(|place| place.names.contains(name) || place.shows(name))
    }

    pub(super) fn is_one(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }

    /// Walks a path component by component, through links. Returns its target; `None` if it does not exist.
    fn walk(&mut self, path: &Path, links: &mut u32) -> Option<PathBuf> {
        let mut here = PathBuf::from("/");
        let mut components: Vec<OsString> = components_of(path);
        while let Some(name) = components.pop() {
            if name == OsStr::new("..") {
                here = parent_of(&here);
                continue;
            }
            let next = here.join(&name);
            let place = self.place(&here);
            place.names.insert(name);
            let Ok(metadata) = next.symlink_metadata() else {
                place.needed = true;
                return None;
            };
            if metadata.is_symlink() {
                place.needed = true;
                *links = links.checked_sub(1)?;
                let target = next.read_link().ok()?;
                if target.is_absolute() {
                    here = PathBuf::from("/");
                }
                components.extend(components_of(&target));
            } else {
                // The parent directory reports the replacement of the last component.
                place.needed |= components.is_empty();
                here = next;
            }
        }
        Some(here)
    }

    /// Follows the links among the files of a directory. Those of a mounted ConfigMap share one target.
    fn follow_entries(&mut self, directory: &Path) {
        let Ok(entries) = directory.read_dir() else { return };
        let mut known: BTreeMap<PathBuf, Option<PathBuf>> = BTreeMap::new();
        for entry in entries.flatten().take(ENTRIES_MAX) {
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let Some(target) = is_link.then(|| entry.path().read_link().ok()).flatten() else { continue };
            let target = directory.join(target);
            let Some(name) = target.file_name() else { continue };
            let mut links = LINKS_MAX;
            let parent = parent_of(&target);
            let parent =
                known.entry(parent).or_insert_with_key(|parent| self.walk(parent, &mut links)).clone();
            let Some(parent) = parent else { continue };
            let place = self.place(&parent);
            place.needed = true;
            place.names.insert(name.to_owned());
            if parent.join(name).is_symlink() {
                self.walk(&parent.join(name), &mut links);
            }
        }
    }

    fn place(&mut self, directory: &Path) -> &mut WatchedDirectory {
        self.0.entry(directory.to_owned()).or_default()
    }
}

impl WatchedDirectory {
    /// Whether a file of this name belongs to the rules. Hidden files, as editors write them, do not.
    fn shows(&self, name: &OsStr) -> bool {
        self.whole && !name.as_bytes().starts_with(b".")
    }
}

/// Returns the components in reverse order.
fn components_of(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.filter(|name| !name.as_bytes().is_empty()).collect()
}

fn parent_of(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).to_owned()
}

/// The limit of the kernel.
const LINKS_MAX: u32 = 40;

/// The limit of files that are read.
const ENTRIES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    use super::DirectoryPaths;

    /// Makes a directory; its path contains no links.
    fn ground() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        (directory, path)
    }

    /// Checks which changes below `ground` concern the rules at `path`.
    #[track_caller]
    fn check(ground: &Path, path: &str, concerned: &[&str], others: &[&str]) -> DirectoryPaths {
        let places = DirectoryPaths::of(&ground.join(path));
        for name in concerned {
            assert!(places.concern(&ground.join(name)), "{name}: {places:?}");
            let directory = ground.join(name).parent().unwrap().to_owned();
            assert!(places.iter().any(|(place, _)| place == directory), "{name}: not watched");
        }
        for name in others {
            assert!(!places.concern(&ground.join(name)), "{name}: {places:?}");
        }
        places
    }

    #[test]
    fn watches_a_plain_directory() {
        let (_kept, ground) = ground();
        fs::create_dir_all(ground.join("etc/rules/sub")).unwrap();
        fs::write(ground.join("etc/rules/a.yaml"), "").unwrap();
        let concerned = ["etc/rules/a.yaml", "etc/rules/new.csv", "etc/rules", "etc"];
        let others = ["etc/other", "other", "etc/rules/.a.swp", "etc/rules/sub/a.yaml"];
        let places = check(&ground, "etc/rules", &concerned, &others);
        let needed: Vec<_> = places.iter().filter(|(_, place)| place.needed).map(|(path, _)| path).collect();
        assert_eq!(needed, [ground.join("etc"), ground.join("etc/rules")]);
    }

    #[test]
    fn watches_one_file() {
        let (_kept, ground) = ground();
        fs::write(ground.join(".rules"), "").unwrap();
        check(&ground, ".rules", &[".rules", "partners.csv"], &[".rules.swp"]);
    }

    #[test]
    fn watches_every_link_of_the_path() {
        let (_kept, ground) = ground();
        fs::create_dir_all(ground.join("one/etc/rules")).unwrap();
        symlink("../one", ground.join("one/self")).unwrap();
        symlink("one/self/../one/self", ground.join("current")).unwrap();
        symlink(ground.join("current/etc"), ground.join("etc")).unwrap();
        let concerned = ["etc", "current", "one/self", "one/etc/rules/a.yaml", "one/etc", "one"];
        check(&ground, "etc/rules", &concerned, &["two", "one/other"]);
    }

    #[test]
    fn watches_targets_of_linked_files() {
        let (_kept, ground) = ground();
        fs::create_dir_all(ground.join("rules/..2024_1")).unwrap();
        fs::create_dir(ground.join("shared")).unwrap();
        fs::write(ground.join("rules/..2024_1/a.yaml"), "").unwrap();
        symlink("..2024_1", ground.join("rules/..data")).unwrap();
        symlink("..data/a.yaml", ground.join("rules/a.yaml")).unwrap();
        symlink("../shared/b.yaml", ground.join("rules/b.yaml")).unwrap();
        symlink("c.yaml", ground.join("shared/b.yaml")).unwrap();
        symlink("../away/d.yaml", ground.join("rules/d.yaml")).unwrap();
        let concerned = ["rules/..data", "rules/..2024_1/a.yaml", "shared/b.yaml", "shared/c.yaml", "away"];
        check(&ground, "rules", &concerned, &["rules/..2024_2", "rules/..2024_1/x.yaml", "shared/d.yaml"]);
    }

    #[test]
    fn watches_parent_of_a_missing_path() {
        let (_kept, ground) = ground();
        let places = check(&ground, "a/b/rules", &["a"], &["b"]);
        assert!(places.iter().any(|(path, place)| path == ground && place.needed));
        // Cyclic links are followed up to the limit.
        symlink("loop", ground.join("loop")).unwrap();
        check(&ground, "loop/rules", &["loop"], &["b"]);
    }
}
