//! CPU time used by the application's control group, of what it may use: the fullest of its own quota, those of the
//! groups above it, and the CPUs it may run on. The quota of a group is shared with everything in it, so each is
//! compared with what that whole group used.

use std::path::Path;

use super::control_group::{ControlGroup, Hierarchy, find, mounts, path_in};
use super::process::Process;
use super::pseudofile::{Awaited, BYTES_MAX, Pseudofile};
use super::unreadable::Unreadable;
use super::window::Window;
use crate::clock::Now;

/// The CPU time of one application.
#[derive(Debug, Default)]
pub(super) struct CpuQuota {
    process: Process,
    /// Of the group itself and of those above it, upwards.
    levels: Vec<Level>,
    /// A list of the CPUs that the group may run on.
    cpus: Option<Pseudofile>,
}

/// One control group.
#[derive(Debug)]
struct Level {
    usage: Usage,
    quota: Quota,
    window: Window,
}

/// Where the CPU time used is told.
#[derive(Debug)]
enum Usage {
    /// `cpu.stat`: a line `usage_usec N`.
    Micros(Awaited),
    /// `cpuacct.usage`: N.
    Nanos(Awaited),
}

/// Where the quota is told. Where there is no such file the group has none: it is the topmost, or the controller is
/// not switched on for it, which may happen at any time.
#[derive(Debug)]
enum Quota {
    /// `cpu.max`: `max PERIOD` or `QUOTA PERIOD`.
    Max(Awaited),
    /// `cpu.cfs_quota_us`, -1 being none, and `cpu.cfs_period_us`.
    Pair(Awaited, Awaited),
}

impl CpuQuota {
    /// Thousandths of what may be used. None: not yet.
    pub(super) fn read(
        &mut self,
        root: &Path,
        pid: Option<u32>,
        now: Now,
    ) -> Result<Option<u32>, Unreadable> {
        let Some(pid) = pid else { return Err(Unreadable::NoProcess) };
        let read = self.process.look(root, Some(pid)).and_then(|moved| {
            if moved || self.levels.is_empty() {
                self.find(root, pid)?;
            }
            self.fullest(now)
        });
        if read.is_err() {
            self.process.forget_groups();
        }
        read
    }

    fn fullest(&mut self, now: Now) -> Result<Option<u32>, Unreadable> {
        let cpus = match &self.cpus {
            Some(file) => cpus_of(file)?,
            None => return Err(Unreadable::NoCpuTime),
        };
        let mut fullest = None;
        for (above, level) in self.levels.iter_mut().enumerate() {
            let quota = level.quota.read()?;
            if above > 0 && quota.is_none() {
                continue;
            }
            let share = level.window.push(now.at, level.usage.nanos()?);
            let of_quota = quota.and_then(|(quota, period)| Some(share?.thousandths_of(quota, period)));
            let of_cpus = share.filter(|_| above == 0).map(|share| share.thousandths_of(cpus, 1));
            fullest = fullest.max(of_quota).max(of_cpus);
        }
        Ok(fullest)
    }

    fn find(&mut self, root: &Path, pid: u32) -> Result<(), Unreadable> {
        self.levels.clear();
        let mounts = mounts(root);
        let groups = self.process.groups();
        // The controller is either in a hierarchy of version 1 or in that of version 2, wherever others are.
        let old =
            path_in(groups, Hierarchy::Controller("cpu")).map(|path| (Hierarchy::Controller("cpu"), path));
        let new = || path_in(groups, Hierarchy::Unified).map(|path| (Hierarchy::Unified, path));
        let (hierarchy, path) = old.or_else(new).ok_or(Unreadable::NoCpuGroups)?;
        let group = find(root, &mounts, hierarchy, path)
            .ok_or_else(|| Unreadable::GroupElsewhere { pid, group: path.into() })?;
        self.levels = if hierarchy == Hierarchy::Unified {
            group.upwards().map(|directory| Level::of_version_2(&directory)).collect()
        } else {
            let used = group.beside(root, &mounts, Hierarchy::Controller("cpuacct"));
            let used = used.ok_or(Unreadable::NoCpuGroups)?;
            let pairs = group.upwards().zip(used.upwards());
            pairs.map(|(directory, used)| Level::of_version_1(&directory, &used)).collect()
        };
        self.cpus = cpu_list(root, &mounts, groups, &group, hierarchy);
        Ok(())
    }
}

impl Level {
    fn of_version_2(directory: &Path) -> Level {
        let file = |name| Awaited::new(directory.join(name));
        Level {
            usage: Usage::Micros(file("cpu.stat")),
            quota: Quota::Max(file("cpu.max")),
            window: Window::new(),
        }
    }

    fn of_version_1(directory: &Path, used: &Path) -> Level {
        let file = |name| Awaited::new(directory.join(name));
        let usage = Usage::Nanos(Awaited::new(used.join("cpuacct.usage")));
        let quota = Quota::Pair(file("cpu.cfs_quota_us"), file("cpu.cfs_period_us"));
        Level { usage, quota, window: Window::new() }
    }
}

impl Usage {
    fn nanos(&mut self) -> Result<u64, Unreadable> {
        let mut buffer = [0; BYTES_MAX];
        let (file, nanos) = match self {
            Usage::Micros(file) => {
                let file = file.file()?;
                let micros =
                    file.read(&mut buffer)?.lines().find_map(|line| line.strip_prefix("usage_usec "));
                (file, micros.and_then(|micros| micros.parse::<u64>().ok()?.checked_mul(1_000)))
            }
            Usage::Nanos(file) => {
                let file = file.file()?;
                (file, file.read(&mut buffer)?.trim_end().parse().ok())
            }
        };
        nanos.ok_or_else(|| file.nonsense())
    }
}

impl Quota {
    /// Quota and period, in microseconds; none: as much as there is.
    fn read(&mut self) -> Result<Option<(u64, u64)>, Unreadable> {
        let (mut first, mut second) = ([0; BYTES_MAX], [0; BYTES_MAX]);
        let (file, quota, period) = match self {
            Quota::Max(file) => {
                let Some(file) = file.if_there() else { return Ok(None) };
                let text = file.read(&mut first)?.trim_end();
                let (quota, period) = text.split_once(' ').ok_or_else(|| file.nonsense())?;
                (file, quota, period)
            }
            Quota::Pair(quota, period) => {
                let Some(file) = quota.if_there() else { return Ok(None) };
                (file, file.read(&mut first)?.trim_end(), period.file()?.read(&mut second)?.trim_end())
            }
        };
        if quota == "max" || quota == "-1" {
            return Ok(None);
        }
        let pair = quota.parse().ok().zip(period.parse().ok());
        // Neither is ever zero; a share of nothing is no reading.
        pair.filter(|(quota, period)| *quota > 0 && *period > 0).map(Some).ok_or_else(|| file.nonsense())
    }
}

/// The list of CPUs that a group may run on: its own, that of the nearest group above it that has one, or all.
fn cpu_list(
    root: &Path,
    mounts: &str,
    groups: &str,
    group: &ControlGroup,
    hierarchy: Hierarchy,
) -> Option<Pseudofile> {
    let cpuset = Hierarchy::Controller("cpuset");
    let in_old = path_in(groups, cpuset).and_then(|path| find(root, mounts, cpuset, path));
    let own = in_old.or_else(|| (hierarchy == Hierarchy::Unified).then(|| group.clone()));
    let lists = own.iter().flat_map(ControlGroup::upwards).flat_map(|directory| {
        ["cpuset.cpus.effective", "cpuset.effective_cpus"].map(|name| directory.join(name))
    });
    let machine = root.join("sys/devices/system/cpu/online");
    lists.chain([machine]).find_map(|path| Pseudofile::open(path).ok())
}

/// How many CPUs a list such as `0-3,8` names.
fn cpus_of(file: &Pseudofile) -> Result<u64, Unreadable> {
    let mut buffer = [0; BYTES_MAX];
    let ranges = file.read(&mut buffer)?.trim_end().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    });
    let cpus = ranges.sum::<Option<u64>>().filter(|cpus| *cpus > 0);
    cpus.ok_or_else(|| file.nonsense())
}
