//! Pressure stall information (Documentation/accounting/psi.rst of the kernel): the share of time in which tasks stalled
//! for lack of a resource. Computed from the running total, as the kernel's own averages lag behind.

use std::path::{Path, PathBuf};

use tracing::info;

use super::SignalError;
use super::control_group::{Hierarchy, ProcessGroups, Pseudofile, find_group, group_path, read_mounts};
use super::usage_window::UsageWindow;
use crate::clock::Now;

/// A resource that tasks may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Resource {
    Cpu,
    Memory,
    Io,
}

/// The pressure on the application's control group if the kernel accounts for it, else on the machine.
#[derive(Debug)]
pub(super) struct Pressure {
    resource: Resource,
    process: ProcessGroups,
    file: Option<Pseudofile>,
    logged_path: PathBuf,
    window: UsageWindow,
}

impl Pressure {
    pub(super) fn new(resource: Resource) -> Pressure {
        Pressure {
            resource,
            process: ProcessGroups::default(),
            file: None,
            logged_path: PathBuf::new(),
            window: UsageWindow::default(),
        }
    }

    /// Returns the stalled share of the time in thousandths; `None` until there are two samples.
    pub(super) fn read(
        &mut self,
        root: &Path,
        pid: Option<u32>,
        now: Now,
    ) -> Result<Option<u32>, SignalError> {
        // Without a readable process, the pressure on the machine is sampled.
        let moved = self.process.refresh(root, pid).unwrap_or(false);
        if moved || self.file.is_none() {
            self.open(root)?;
        }
        let Some(file) = &mut self.file else { return Ok(None) };
        match file.parse_with(|text| parse_total_micros(text, self.resource.psi_line())) {
            Ok(micros) => {
                let share = self.window.push(now.at, micros.saturating_mul(1_000));
                Ok(share.map(|share| share.thousandths_of(1, 1)))
            }
            Err(cause) => {
                // The group was removed, or its accounting switched off: find the file again next time.
                self.file = None;
                self.process.clear();
                Err(cause)
            }
        }
    }

    fn open(&mut self, root: &Path) -> Result<(), SignalError> {
        let file = match self.open_group_file(root) {
            Some(file) => file,
            None => self.open_machine_file(root)?,
        };
        self.window.clear();
        if self.logged_path != file.path {
            self.logged_path = file.path.clone();
            info!(file = %self.logged_path.display(), "pressure is sampled from this file");
        }
        self.file = Some(file);
        Ok(())
    }

    /// Opens the group's file; `None` also if the accounting of the group is off (`cgroup.pressure`).
    fn open_group_file(&self, root: &Path) -> Option<Pseudofile> {
        let path = group_path(&self.process.0, Hierarchy::Unified)?;
        let group = find_group(root, &read_mounts(root), Hierarchy::Unified, path)?;
        if group.is_topmost() {
            // The topmost group is the machine, whose file is in /proc.
            return None;
        }
        let mut file =
            Pseudofile::open(group.directory().join(format!("{}.pressure", self.resource))).ok()?;
        file.parse_with(|_| Some(())).ok()?;
        Some(file)
    }

    fn open_machine_file(&self, root: &Path) -> Result<Pseudofile, SignalError> {
        let path = root.join(format!("proc/pressure/{}", self.resource));
        let opened = Pseudofile::open(path.clone());
        opened.map_err(|error| SignalError::NoPressure { path: path.into(), cause: error.to_string().into() })
    }
}

impl Resource {
    /// Returns the line to read: `some` (at least one task stalls) or `full` (all do). For memory `some` is too sensitive:
    /// a task stalls for memory whenever it reads a file for the first time.
    const fn psi_line(self) -> &'static str {
        match self {
            Resource::Cpu | Resource::Io => "some",
            Resource::Memory => "full",
        }
    }
}

/// Reads the total in microseconds from `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`.
fn parse_total_micros(text: &str, line: &str) -> Option<u64> {
    let mut fields = text
        .lines()
        .map(|line| line.split(' '))
        .find_map(|mut fields| (fields.next() == Some(line)).then_some(fields))?;
    fields.find_map(|field| field.strip_prefix("total="))?.parse().ok()
}
