//! Pressure stall information (Documentation/accounting/psi.rst of the kernel): the share of time in which work stood
//! still for want of something. From the running total, not from the kernel's own averages, which lag behind.

use std::io;
use std::path::{Path, PathBuf};

use tracing::info;

use super::control_group::{Hierarchy, find, mounts, path_in};
use super::process::Process;
use super::pseudofile::{BYTES_MAX, Pseudofile};
use super::unreadable::Unreadable;
use super::window::Window;
use crate::clock::Now;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Cpu,
    Memory,
    Io,
}

/// The pressure on the application's control group where the kernel tells it, else on the machine.
#[derive(Debug)]
pub(super) struct Pressure {
    resource: Resource,
    process: Process,
    file: Option<Pseudofile>,
    /// The file that was last said to be read.
    told: PathBuf,
    window: Window,
}

impl Pressure {
    pub(super) fn new(resource: Resource) -> Pressure {
        Pressure {
            resource,
            process: Process::default(),
            file: None,
            told: PathBuf::new(),
            window: Window::new(),
        }
    }

    /// Thousandths of the time. None: not yet.
    pub(super) fn read(
        &mut self,
        root: &Path,
        pid: Option<u32>,
        now: Now,
    ) -> Result<Option<u32>, Unreadable> {
        // A process that cannot be looked at leaves the machine.
        let moved = self.process.look(root, pid).unwrap_or(false);
        if moved || self.file.is_none() {
            self.open(root)?;
        }
        let Some(file) = &self.file else { return Ok(None) };
        let mut buffer = [0; BYTES_MAX];
        let total = file
            .read(&mut buffer)
            .and_then(|text| total_micros(text, self.resource.line()).ok_or_else(|| file.nonsense()));
        match total {
            Ok(micros) => {
                let share = self.window.push(now.at, micros.saturating_mul(1_000));
                Ok(share.map(|share| share.thousandths_of(1, 1)))
            }
            Err(cause) => {
                // The group is gone, or its accounting was switched off: look again for what there is.
                self.file = None;
                self.process.forget_groups();
                Err(cause)
            }
        }
    }

    fn open(&mut self, root: &Path) -> Result<(), Unreadable> {
        let file = match self.of_group(root) {
            Some(file) => file,
            None => self.of_machine(root)?,
        };
        self.window.clear();
        if self.told != file.path() {
            self.told = file.path().into();
            info!(file = %self.told.display(), "pressure is read here");
        }
        self.file = Some(file);
        Ok(())
    }

    /// None also where the accounting of the group is switched off (`cgroup.pressure`).
    fn of_group(&self, root: &Path) -> Option<Pseudofile> {
        let path = path_in(self.process.groups(), Hierarchy::Unified)?;
        let group = find(root, &mounts(root), Hierarchy::Unified, path)?;
        if group.is_topmost() {
            // The whole machine, which says so in /proc.
            return None;
        }
        let file =
            Pseudofile::open(group.directory().join(format!("{}.pressure", self.resource.name()))).ok()?;
        file.read(&mut [0; BYTES_MAX]).ok()?;
        Some(file)
    }

    fn of_machine(&self, root: &Path) -> Result<Pseudofile, Unreadable> {
        let path = root.join(format!("proc/pressure/{}", self.resource.name()));
        let refused = |error: &io::Error| Unreadable::NoPressure {
            path: path.as_path().into(),
            cause: error.to_string().into(),
        };
        Pseudofile::open(path.clone()).map_err(|error| refused(&error))
    }
}

impl Resource {
    const fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
            Resource::Io => "io",
        }
    }

    /// Somebody waits, or everybody does: without memory all stand still before one is killed; that somebody waits
    /// for it happens whenever a file is read for the first time.
    const fn line(self) -> &'static str {
        match self {
            Resource::Cpu | Resource::Io => "some",
            Resource::Memory => "full",
        }
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`, in microseconds.
fn total_micros(text: &str, line: &str) -> Option<u64> {
    let mut fields = text
        .lines()
        .map(|line| line.split(' '))
        .find_map(|mut fields| (fields.next() == Some(line)).then_some(fields))?;
    fields.find_map(|field| field.strip_prefix("total="))?.parse().ok()
}
