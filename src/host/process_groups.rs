//! The control groups of a process. The process is only observed.

use std::path::Path;

use super::pseudofile::Pseudofile;
use super::signal_error::SignalError;

/// The control groups of one process of an application, as listed in `/proc/PID/cgroup`.
#[derive(Debug, Default)]
pub(super) struct ProcessGroups {
    /// The process and its list, kept open: after the process has exited it cannot be read, even if another process has
    /// the number by then.
    list: Option<(u32, Pseudofile)>,
    /// A process that has exited, whose number is not looked up again.
    exited: Option<u32>,
    groups: String,
}

impl ProcessGroups {
    /// Reads the list of a process. Returns whether the groups have changed since the last call; another process of the
    /// same application usually has the same groups.
    ///
    /// After an exit the groups stay as they were: workers come and go, but the application keeps its groups.
    pub(super) fn refresh(&mut self, root: &Path, pid: Option<u32>) -> Result<bool, SignalError> {
        let list = self.open_list(root, pid);
        let groups = match list.map(|list| list.parse_with(|text| Some(text.to_owned()))) {
            Some(Ok(groups)) => groups,
            None if pid.is_none() => String::new(),
            None | Some(Err(_)) => {
                (self.list, self.exited) = (None, pid);
                return if self.groups.is_empty() { Err(SignalError::NoProcess) } else { Ok(false) };
            }
        };
        if groups == self.groups {
            return Ok(false);
        }
        self.groups = groups;
        Ok(true)
    }

    /// Returns the text of `/proc/PID/cgroup` as last read, empty without a process.
    pub(super) fn groups(&self) -> &str {
        &self.groups
    }

    /// Clears the groups, so that the next [`ProcessGroups::refresh`] reports a change unless the process has exited.
    pub(super) fn clear_groups(&mut self) {
        self.groups.clear();
    }

    /// Opens the list of a process; `None` without a `pid` or without such a process.
    fn open_list(&mut self, root: &Path, pid: Option<u32>) -> Option<&mut Pseudofile> {
        let Some(pid) = pid.filter(|pid| self.exited != Some(*pid)) else {
            self.list = None;
            return None;
        };
        if self.list.as_ref().is_none_or(|(known, _)| *known != pid) {
            self.list = Some((pid, Pseudofile::open(root.join(format!("proc/{pid}/cgroup"))).ok()?));
        }
        self.list.as_mut().map(|(_, list)| list)
    }
}
