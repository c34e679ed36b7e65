//! CPU utilization of the application's control group: the highest share of its own quota, of the quotas of the groups
//! above it, and of the CPUs it may run on. Everything in a group shares the group's quota, so each quota is compared
//! with the usage of its whole group.

use std::path::Path;

use super::control_group::{ControlGroup, Hierarchy, find_group, group_path, read_mounts};
use super::process_groups::ProcessGroups;
use super::pseudofile::{BYTES_MAX, LazyPseudofile, Pseudofile};
use super::signal_error::SignalError;
use super::usage_window::UsageWindow;
use crate::clock::Now;

/// The CPU time of one application.
#[derive(Debug, Default)]
pub(super) struct CpuQuota {
    process: ProcessGroups,
    /// The group itself and those above it, upwards.
    levels: Vec<GroupLevel>,
    /// The list of CPUs that the group may run on.
    cpus: Option<Pseudofile>,
}

/// One control group.
#[derive(Debug)]
struct GroupLevel {
    usage: UsageFile,
    quota: QuotaFiles,
    window: UsageWindow,
}

/// The file that has the CPU time used.
#[derive(Debug)]
enum UsageFile {
    /// `cpu.stat`: a line `usage_usec N`.
    Micros(LazyPseudofile),
    /// `cpuacct.usage`: N.
    Nanos(LazyPseudofile),
}

/// The files that have the quota. Without them the group has no quota: it is the topmost, or its controller is off,
/// which can change at any time.
#[derive(Debug)]
enum QuotaFiles {
    /// `cpu.max`: `max PERIOD` or `QUOTA PERIOD`.
    Max(LazyPseudofile),
    /// `cpu.cfs_quota_us`, -1 for no quota, and `cpu.cfs_period_us`.
    Pair(LazyPseudofile, LazyPseudofile),
}

impl CpuQuota {
    /// Returns the used share of the allowed CPU time in thousandths; `None` until there are two samples.
    pub(super) fn read(
        &mut self,
        root: &Path,
        pid: Option<u32>,
        now: Now,
    ) -> Result<Option<u32>, SignalError> {
        let Some(pid) = pid else { return Err(SignalError::NoProcess) };
        let share = self.process.refresh(root, Some(pid)).and_then(|moved| {
            if moved || self.levels.is_empty() {
                self.find_levels(root, pid)?;
            }
            self.read_highest_share(now)
        });
        if share.is_err() {
            self.process.clear_groups();
        }
        share
    }

    fn read_highest_share(&mut self, now: Now) -> Result<Option<u32>, SignalError> {
        let cpus = match &self.cpus {
            Some(file) => count_cpus(file)?,
            None => return Err(SignalError::NoCpuTime),
        };
        let mut highest = None;
        for (above, level) in self.levels.iter_mut().enumerate() {
            let quota = level.quota.read()?;
            if above > 0 && quota.is_none() {
                continue;
            }
            let share = level.window.push(now.at, level.usage.read_nanos()?);
            let of_quota = quota.and_then(|(quota, period)| Some(share?.thousandths_of(quota, period)));
            let of_cpus = share.filter(|_| above == 0).map(|share| share.thousandths_of(cpus, 1));
            highest = highest.max(of_quota).max(of_cpus);
        }
        Ok(highest)
    }

    fn find_levels(&mut self, root: &Path, pid: u32) -> Result<(), SignalError> {
        self.levels.clear();
        let mounts = read_mounts(root);
        let groups = self.process.groups();
        // A controller belongs to either a version 1 hierarchy or version 2, independently of the other controllers.
        let v1_cpu = Hierarchy::Controller("cpu");
        let v1 = group_path(groups, v1_cpu).map(|path| (v1_cpu, path));
        let v2 = || group_path(groups, Hierarchy::Unified).map(|path| (Hierarchy::Unified, path));
        let (hierarchy, path) = v1.or_else(v2).ok_or(SignalError::NoCpuGroups)?;
        let group = find_group(root, &mounts, hierarchy, path)
            .ok_or_else(|| SignalError::GroupElsewhere { pid, group: path.into() })?;
        self.levels = if hierarchy == Hierarchy::Unified {
            group.ancestors().map(|directory| GroupLevel::new_v2(&directory)).collect()
        } else {
            let usage_group = group.in_hierarchy(root, &mounts, Hierarchy::Controller("cpuacct"));
            let usage_group = usage_group.ok_or(SignalError::NoCpuGroups)?;
            let pairs = group.ancestors().zip(usage_group.ancestors());
            pairs.map(|(directory, usage)| GroupLevel::new_v1(&directory, &usage)).collect()
        };
        self.cpus = open_cpu_list(root, &mounts, groups, &group, hierarchy);
        Ok(())
    }
}

impl GroupLevel {
    fn new_v2(directory: &Path) -> GroupLevel {
        let file = |name| LazyPseudofile::new(directory.join(name));
        GroupLevel {
            usage: UsageFile::Micros(file("cpu.stat")),
            quota: QuotaFiles::Max(file("cpu.max")),
            window: UsageWindow::new(),
        }
    }

    fn new_v1(directory: &Path, usage_directory: &Path) -> GroupLevel {
        let file = |name| LazyPseudofile::new(directory.join(name));
        let usage = UsageFile::Nanos(LazyPseudofile::new(usage_directory.join("cpuacct.usage")));
        let quota = QuotaFiles::Pair(file("cpu.cfs_quota_us"), file("cpu.cfs_period_us"));
        GroupLevel { usage, quota, window: UsageWindow::new() }
    }
}

impl UsageFile {
    fn read_nanos(&mut self) -> Result<u64, SignalError> {
        let mut buffer = [0; BYTES_MAX];
        let (file, nanos) = match self {
            UsageFile::Micros(file) => {
                let file = file.open()?;
                let micros =
                    file.read(&mut buffer)?.lines().find_map(|line| line.strip_prefix("usage_usec "));
                (file, micros.and_then(|micros| micros.parse::<u64>().ok()?.checked_mul(1_000)))
            }
            UsageFile::Nanos(file) => {
                let file = file.open()?;
                (file, file.read(&mut buffer)?.trim_end().parse().ok())
            }
        };
        nanos.ok_or_else(|| file.malformed())
    }
}

impl QuotaFiles {
    /// Returns quota and period in microseconds; `None` without a quota.
    fn read(&mut self) -> Result<Option<(u64, u64)>, SignalError> {
        let (mut first, mut second) = ([0; BYTES_MAX], [0; BYTES_MAX]);
        let (file, quota, period) = match self {
            QuotaFiles::Max(file) => {
                let Some(file) = file.open_if_exists() else { return Ok(None) };
                let text = file.read(&mut first)?.trim_end();
                let (quota, period) = text.split_once(' ').ok_or_else(|| file.malformed())?;
                (file, quota, period)
            }
            QuotaFiles::Pair(quota, period) => {
                let Some(file) = quota.open_if_exists() else { return Ok(None) };
                (file, file.read(&mut first)?.trim_end(), period.open()?.read(&mut second)?.trim_end())
            }
        };
        if quota == "max" || quota == "-1" {
            return Ok(None);
        }
        let pair = quota.parse().ok().zip(period.parse().ok());
        // The kernel allows neither to be zero, and a share of zero is undefined.
        pair.filter(|(quota, period)| *quota > 0 && *period > 0).map(Some).ok_or_else(|| file.malformed())
    }
}

/// Opens the list of CPUs that a group may run on: its own, that of the nearest group above it that has one, or that of
/// the machine.
fn open_cpu_list(
    root: &Path,
    mounts: &str,
    groups: &str,
    group: &ControlGroup,
    hierarchy: Hierarchy,
) -> Option<Pseudofile> {
    let cpuset = Hierarchy::Controller("cpuset");
    let v1 = group_path(groups, cpuset).and_then(|path| find_group(root, mounts, cpuset, path));
    let own = v1.or_else(|| (hierarchy == Hierarchy::Unified).then(|| group.clone()));
    let lists = own.iter().flat_map(ControlGroup::ancestors).flat_map(|directory| {
        ["cpuset.cpus.effective", "cpuset.effective_cpus"].map(|name| directory.join(name))
    });
    let machine = root.join("sys/devices/system/cpu/online");
    lists.chain([machine]).find_map(|path| Pseudofile::open(path).ok())
}

/// Counts the CPUs in a list such as `0-3,8`.
fn count_cpus(file: &Pseudofile) -> Result<u64, SignalError> {
    let mut buffer = [0; BYTES_MAX];
    let ranges = file.read(&mut buffer)?.trim_end().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    });
    let cpus = ranges.sum::<Option<u64>>().filter(|cpus| *cpus > 0);
    cpus.ok_or_else(|| file.malformed())
}
