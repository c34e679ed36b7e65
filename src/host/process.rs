//! Which control groups a process is in. The process is only looked at.

use std::path::Path;

use super::pseudofile::{BYTES_MAX, Pseudofile};
use super::unreadable::Unreadable;

/// The control groups of one process of an application, as the kernel lists them.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Its list of control groups. Open, it stays that process's: when the process has ended, it cannot be read,
    /// though another may have the number by then.
    list: Option<(u32, Pseudofile)>,
    /// The process that has ended: its number is not asked for again.
    ended: Option<u32>,
    groups: String,
}

impl Process {
    /// Looks at the process of this number. Whether its control groups are others than they were at the last look:
    /// another process of the same application is in the same ones.
    ///
    /// One that has ended leaves its groups as they were: workers come and go, the application stays where it is.
    pub(super) fn look(&mut self, root: &Path, pid: Option<u32>) -> Result<bool, Unreadable> {
        let mut buffer = [0; BYTES_MAX];
        let groups = match self.list_of(root, pid).map(|list| list.read(&mut buffer)) {
            Some(Ok(groups)) => groups,
            None if pid.is_none() => "",
            None | Some(Err(_)) => {
                (self.list, self.ended) = (None, pid);
                return if self.groups.is_empty() { Err(Unreadable::NoProcess) } else { Ok(false) };
            }
        };
        if groups == self.groups {
            return Ok(false);
        }
        self.groups.clear();
        self.groups.push_str(groups);
        Ok(true)
    }

    /// `/proc/PID/cgroup` as of the last look, empty without a process.
    pub(super) fn groups(&self) -> &str {
        &self.groups
    }

    /// Its groups could not be read: they are looked for again, unless the process has ended.
    pub(super) fn forget_groups(&mut self) {
        self.groups.clear();
    }

    /// None: no such process, or none asked for.
    fn list_of(&mut self, root: &Path, pid: Option<u32>) -> Option<&Pseudofile> {
        let Some(pid) = pid.filter(|pid| self.ended != Some(*pid)) else {
            self.list = None;
            return None;
        };
        if self.list.as_ref().is_none_or(|(known, _)| *known != pid) {
            self.list = Some((pid, Pseudofile::open(root.join(format!("proc/{pid}/cgroup"))).ok()?));
        }
        self.list.as_ref().map(|(_, list)| list)
    }
}
