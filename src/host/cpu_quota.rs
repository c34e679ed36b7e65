//! CPU utilization of the application's control group: the highest share of its own quota, of the quotas of the groups
//! above it, and of the CPUs it may run on. Everything in a group shares the group's quota, so each quota is compared
//! with the usage of its whole group.

use std::path::{Path, PathBuf};

use super::SignalError;
use super::control_group::{
    ControlGroup, Hierarchy, ProcessGroups, Pseudofile, find_group, group_path, read_mounts,
};
use super::usage_window::UsageWindow;
use crate::clock::Now;

#[derive(Debug, Default)]
pub(super) struct CpuQuota {
    process: ProcessGroups,
    /// The group itself and those above it, upwards.
    levels: Vec<GroupLevel>,
    /// The list of CPUs that the group may run on.
    cpus: Option<Pseudofile>,
}

#[derive(Debug)]
struct GroupLevel {
    /// The file that has the CPU time used: `cpu.stat`, or `cpuacct.usage` of version 1.
    usage: Pseudofile,
    /// `cpu.max`, or the two files of version 1. Without them the group has no quota: it is the topmost, or its controller is
    /// off, which can change at any time.
    quota: Vec<Pseudofile>,
    window: UsageWindow,
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
            self.process.clear();
        }
        share
    }

    fn read_highest_share(&mut self, now: Now) -> Result<Option<u32>, SignalError> {
        let cpus = match &mut self.cpus {
            Some(file) => file.parse_with(count_cpus)?,
            None => return Err(SignalError::NoCpuTime),
        };
        let mut highest = None;
        for (above, level) in self.levels.iter_mut().enumerate() {
            let quota = level.read_quota()?;
            if above > 0 && quota.is_none() {
                continue;
            }
            let share = level.window.push(now.at, level.usage.parse_with(parse_nanos)?);
            let of_quota = quota.and_then(|(quota, period)| Some(share?.thousandths_of(quota, period)));
            let of_cpus = share.filter(|_| above == 0).map(|share| share.thousandths_of(cpus, 1));
            highest = highest.max(of_quota).max(of_cpus);
        }
        Ok(highest)
    }

    fn find_levels(&mut self, root: &Path, pid: u32) -> Result<(), SignalError> {
        self.levels.clear();
        let mounts = read_mounts(root);
        let groups = &self.process.0;
        // A controller belongs to either a version 1 hierarchy or version 2, independently of the other controllers.
        let v1_cpu = Hierarchy::Controller("cpu");
        let v1 = group_path(groups, v1_cpu).map(|path| (v1_cpu, path));
        let v2 = || group_path(groups, Hierarchy::Unified).map(|path| (Hierarchy::Unified, path));
        let (hierarchy, path) = v1.or_else(v2).ok_or(SignalError::NoCpuGroups)?;
        let group = find_group(root, &mounts, hierarchy, path)
            .ok_or_else(|| SignalError::GroupElsewhere { pid, group: path.into() })?;
        self.levels = if hierarchy == Hierarchy::Unified {
            let level =
                |directory: PathBuf| GroupLevel::new(directory.join("cpu.stat"), &directory, &["cpu.max"]);
            group.ancestors().map(level).collect()
        } else {
            let usage_group = group.in_hierarchy(root, &mounts, Hierarchy::Controller("cpuacct"));
            let usage_group = usage_group.ok_or(SignalError::NoCpuGroups)?;
            let pairs = group.ancestors().zip(usage_group.ancestors());
            let quota = ["cpu.cfs_quota_us", "cpu.cfs_period_us"];
            pairs
                .map(|(directory, usage)| GroupLevel::new(usage.join("cpuacct.usage"), &directory, &quota))
                .collect()
        };
        self.cpus = open_cpu_list(root, &mounts, groups, &group, hierarchy);
        Ok(())
    }
}

impl GroupLevel {
    fn new(usage: PathBuf, directory: &Path, quota: &[&str]) -> GroupLevel {
        let quota = quota.iter().map(|name| Pseudofile::new(directory.join(name))).collect();
        GroupLevel { usage: Pseudofile::new(usage), quota, window: UsageWindow::default() }
    }

    /// Returns quota and period in microseconds; `None` without a quota.
    fn read_quota(&mut self) -> Result<Option<(u64, u64)>, SignalError> {
        let [first, others @ ..] = &mut *self.quota else { return Ok(None) };
        if !first.exists() {
            return Ok(None);
        }
        let mut period = String::new();
        for file in others {
            period += &file.parse_with(|text| Some(text.to_owned()))?;
        }
        first.parse_with(|quota| parse_quota(&format!("{quota} {period}")))
    }
}

/// Reads the CPU time used: a line `usage_usec N`, or N in nanoseconds.
fn parse_nanos(text: &str) -> Option<u64> {
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(micros) => micros.parse::<u64>().ok()?.checked_mul(1_000),
        None => text.trim_end().parse().ok(),
    }
}

/// Parses `QUOTA PERIOD`; `Some(None)` without a quota: `max` or -1. The kernel allows neither to be zero, and a share of
/// zero is undefined.
fn parse_quota(text: &str) -> Option<Option<(u64, u64)>> {
    let (quota, period) = text.trim_end().split_once([' ', '\n'])?;
    if quota == "max" || quota == "-1" {
        return Some(None);
    }
    let pair = quota.parse().ok().zip(period.trim_start().parse().ok());
    pair.filter(|(quota, period)| *quota > 0 && *period > 0).map(Some)
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
fn count_cpus(list: &str) -> Option<u64> {
    let ranges = list.trim_end().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    });
    ranges.sum::<Option<u64>>().filter(|cpus| *cpus > 0)
}
