//! Where the directory of a control group lies: version 2, version 1, or both side by side (cgroups(7)). It reads
//! nothing that is in there.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// A control group of one hierarchy, by its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ControlGroup {
    /// Where the hierarchy is mounted.
    mount: PathBuf,
    /// From there to the group; empty: it is the topmost that can be seen from here.
    below: PathBuf,
}

/// Which hierarchy is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hierarchy {
    /// The one of version 2.
    Unified,
    /// The one of version 1 with this controller.
    Controller(&'static str),
}

impl ControlGroup {
    /// The directory of the group.
    pub(super) fn directory(&self) -> PathBuf {
        self.mount.join(&self.below)
    }

    /// Whether it is the topmost that can be seen from here.
    pub(super) fn is_topmost(&self) -> bool {
        self.below.as_os_str().is_empty()
    }

    /// The directories of the group and of all above it that can be seen from here, upwards.
    pub(super) fn upwards(&self) -> impl Iterator<Item = PathBuf> {
        self.below.ancestors().take(LEVELS_MAX).map(|below| self.mount.join(below))
    }

    /// The group at the same place of another hierarchy.
    pub(super) fn beside(&self, root: &Path, mounts: &str, other: Hierarchy) -> Option<ControlGroup> {
        let points = mounts.lines().filter_map(Mount::read).filter(|mount| mount.is(other));
        let mut groups =
            points.map(|mount| ControlGroup { mount: mount.at(root), below: self.below.clone() });
        groups.find(|group| group.directory().is_dir())
    }
}

/// The path of a process's group in a hierarchy, as `/proc/PID/cgroup` has it.
pub(super) fn path_in(groups: &str, hierarchy: Hierarchy) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match hierarchy {
            Hierarchy::Unified => number == "0" && controllers.is_empty(),
            Hierarchy::Controller(name) => controllers.split(',').any(|controller| controller == name),
        };
        is_it.then_some(path)
    })
}

/// Finds the directory of a group by the mounts of `/proc/self/mountinfo`. None: it cannot be seen from here.
pub(super) fn find(root: &Path, mounts: &str, hierarchy: Hierarchy, path: &str) -> Option<ControlGroup> {
    let points = mounts.lines().filter_map(Mount::read).filter(|mount| mount.is(hierarchy));
    let mut groups = points.filter_map(|mount| {
        // A container may have mounted only its own part of the hierarchy; and a group outside of what the daemon
        // may see is written with `..`.
        let below = Path::new(path).strip_prefix(mount.top).ok()?;
        let plain = below.components().all(|component| matches!(component, Component::Normal(_)));
        plain.then(|| ControlGroup { mount: mount.at(root), below: below.into() })
    });
    groups.find(|group| group.directory().is_dir())
}

/// What is mounted where, as of now.
pub(super) fn mounts(root: &Path) -> String {
    fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default()
}

/// One line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
struct Mount<'m> {
    /// Which part of the file system is mounted.
    top: &'m str,
    point: &'m str,
    kind: &'m str,
    options: &'m str,
}

impl<'m> Mount<'m> {
    fn read(line: &'m str) -> Option<Mount<'m>> {
        let (place, system) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut system = system.split(' ');
        let (top, point) = (place.next()?, place.next()?);
        Some(Mount { top, point, kind: system.next()?, options: system.nth(1)? })
    }

    fn is(&self, hierarchy: Hierarchy) -> bool {
        match hierarchy {
            Hierarchy::Unified => self.kind == "cgroup2",
            Hierarchy::Controller(name) => {
                self.kind == "cgroup" && self.options.split(',').any(|option| option == name)
            }
        }
    }

    fn at(&self, root: &Path) -> PathBuf {
        root.join(self.point.trim_start_matches('/'))
    }
}

/// Deeper than anything that manages control groups nests them; what lies above is not looked at.
const LEVELS_MAX: usize = 32;
