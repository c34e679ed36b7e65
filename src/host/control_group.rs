//! Finds the control groups of a process, and the directory of a group: version 2, version 1, or both side by side
//! (cgroups(7)); the process is only observed. And files that the kernel generates when they are read: kept open, read from their
//! start each time, never written.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use super::SignalError;

/// The directory of a control group in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ControlGroup {
    mount: PathBuf,
    /// The path from there to the group; empty for the topmost group that is visible here.
    below: PathBuf,
}

/// A hierarchy of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hierarchy {
    /// Version 2.
    Unified,
    /// The hierarchy of version 1 that has this controller.
    Controller(&'static str),
}

impl ControlGroup {
    pub(super) fn directory(&self) -> PathBuf {
        self.mount.join(&self.below)
    }

    /// Whether this is the topmost group that is visible here.
    pub(super) fn is_topmost(&self) -> bool {
        self.below.as_os_str().is_empty()
    }

    /// Iterates over the directories of the group and of all visible groups above it, upwards.
    pub(super) fn ancestors(&self) -> impl Iterator<Item = PathBuf> {
        self.below.ancestors().take(LEVELS_MAX).map(|below| self.mount.join(below))
    }

    pub(super) fn in_hierarchy(&self, root: &Path, mounts: &str, other: Hierarchy) -> Option<ControlGroup> {
        let points = mounts.lines().filter_map(Mount::parse).filter(|mount| mount.has(other));
        let mut groups =
            points.map(|mount| ControlGroup { mount: mount.path(root), below: self.below.clone() });
        groups.find(|group| group.directory().is_dir())
    }
}

/// Returns the path of a process's group in a hierarchy, from the text of `/proc/PID/cgroup`.
pub(super) fn group_path(groups: &str, hierarchy: Hierarchy) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let matches = match hierarchy {
            Hierarchy::Unified => number == "0" && controllers.is_empty(),
            Hierarchy::Controller(name) => controllers.split(',').any(|controller| controller == name),
        };
        matches.then_some(path)
    })
}

/// Finds the directory of a group by the mounts of `/proc/self/mountinfo`; `None` if it is not visible here.
pub(super) fn find_group(
    root: &Path,
    mounts: &str,
    hierarchy: Hierarchy,
    path: &str,
) -> Option<ControlGroup> {
    let points = mounts.lines().filter_map(Mount::parse).filter(|mount| mount.has(hierarchy));
    let mut groups = points.filter_map(|mount| {
        // A container may mount only its own part of the hierarchy; the path of a group outside of the daemon's cgroup
        // namespace contains `..`.
        let below = Path::new(path).strip_prefix(mount.top).ok()?;
        let plain = below.components().all(|component| matches!(component, Component::Normal(_)));
        plain.then(|| ControlGroup { mount: mount.path(root), below: below.into() })
    });
    groups.find(|group| group.directory().is_dir())
}

/// Reads `/proc/self/mountinfo`; empty if it cannot be read.
pub(super) fn read_mounts(root: &Path) -> String {
    fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default()
}

/// One line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
struct Mount<'m> {
    /// The directory of the file system that is mounted.
    top: &'m str,
    point: &'m str,
    kind: &'m str,
    options: &'m str,
}

impl<'m> Mount<'m> {
    fn parse(line: &'m str) -> Option<Mount<'m>> {
        let (mounted, system) = line.split_once(" - ")?;
        let mut mounted = mounted.split(' ').skip(3);
        let mut system = system.split(' ');
        let (top, point) = (mounted.next()?, mounted.next()?);
        Some(Mount { top, point, kind: system.next()?, options: system.nth(1)? })
    }

    fn has(&self, hierarchy: Hierarchy) -> bool {
        match hierarchy {
            Hierarchy::Unified => self.kind == "cgroup2",
            Hierarchy::Controller(name) => {
                self.kind == "cgroup" && self.options.split(',').any(|option| option == name)
            }
        }
    }

    fn path(&self, root: &Path) -> PathBuf {
        root.join(self.point.trim_start_matches('/'))
    }
}

/// More levels than any manager of control groups nests; groups above are ignored.
const LEVELS_MAX: usize = 32;

/// The control groups of one process of an application: the text of `/proc/PID/cgroup` as last read, empty without a process.
#[derive(Debug, Default)]
pub(super) struct ProcessGroups(pub(super) String);

impl ProcessGroups {
    /// Reads the groups of a process. Returns whether they have changed since the last call; another process of the same
    /// application usually has the same groups.
    ///
    /// After an exit the groups stay as they were: workers come and go, but the application keeps its groups.
    pub(super) fn refresh(&mut self, root: &Path, pid: Option<u32>) -> Result<bool, SignalError> {
        let groups = match pid.map(|pid| fs::read_to_string(root.join(format!("proc/{pid}/cgroup")))) {
            Some(Ok(groups)) => groups,
            Some(Err(_)) if self.0.is_empty() => return Err(SignalError::NoProcess),
            Some(Err(_)) => return Ok(false),
            None => String::new(),
        };
        let is_changed = groups != self.0;
        self.0 = groups;
        Ok(is_changed)
    }

    /// Clears the groups, so that the next [`ProcessGroups::refresh`] reports a change unless the process has exited.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// A file of /proc or /sys.
#[derive(Debug)]
pub(super) struct Pseudofile {
    pub(super) path: PathBuf,
    /// Open since the first use.
    file: Option<File>,
}

impl Pseudofile {
    /// Makes a file that may not exist yet: it is opened on first use.
    pub(super) fn new(path: PathBuf) -> Pseudofile {
        Pseudofile { path, file: None }
    }

    /// Opens a file that must exist.
    pub(super) fn open(path: PathBuf) -> io::Result<Pseudofile> {
        let file = Some(File::open(&path)?);
        Ok(Pseudofile { path, file })
    }

    /// Whether the file exists. Opens it.
    pub(super) fn exists(&mut self) -> bool {
        self.file().is_ok()
    }

    /// Reads its current text, as far as [`BYTES_MAX`], and parses it. `None` from `parse` means unexpected text.
    pub(super) fn parse_with<T>(&mut self, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, SignalError> {
        let mut buffer = [0; BYTES_MAX];
        let read = self.file().and_then(|file| file.read_at(&mut buffer, 0));
        let read = read.map_err(|error| SignalError::from_file(&self.path, &error))?;
        let text = buffer.get(..read).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.and_then(parse).ok_or_else(|| SignalError::Malformed { path: self.path.as_path().into() })
    }

    fn file(&mut self) -> io::Result<&File> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => Ok(none.insert(File::open(&self.path)?)),
        }
    }
}

/// Longer than all of these files but `/proc/stat`, which is of use by its first line.
const BYTES_MAX: usize = 4 << 10;
