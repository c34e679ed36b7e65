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
    groups: String,
}

impl Process {
    /// Looks at the process of this number. Whether its control groups are others than they were at the last look:
    /// another process of the same application is in the same ones.
    pub(super) fn look(&mut self, root: &Path, pid: Option<u32>) -> Result<bool, Unreadable> {
        let mut buffer = [0; BYTES_MAX];
        let looked =
            self.list_of(root, pid).and_then(|list| list.map(|list| list.read(&mut buffer)).transpose());
        let groups = match looked {
            Ok(groups) => groups.unwrap_or_default(),
            Err(_) => {
                *self = Process::default();
                return Err(Unreadable::NoProcess);
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

    fn list_of(&mut self, root: &Path, pid: Option<u32>) -> Result<Option<&Pseudofile>, Unreadable> {
        let Some(pid) = pid else {
            self.list = None;
            return Ok(None);
        };
        if self.list.as_ref().is_none_or(|(known, _)| *known != pid) {
            let path = root.join(format!("proc/{pid}/cgroup"));
            self.list = Some((pid, Pseudofile::open(path).map_err(|_| Unreadable::NoProcess)?));
        }
        Ok(self.list.as_ref().map(|(_, list)| list))
    }
}
