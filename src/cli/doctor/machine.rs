//! Checks the host: sources of signals, clocks, kernel, scheduler; and the systemd unit files with their drop-ins, without
//! contacting systemd.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::Finding;
use crate::clock::unix_nanos;
use crate::sys;

pub(super) fn all() -> Vec<Finding> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = of_release(release.trim());
    vec![pressure(), control_groups(), accept_queues(), clocks(), kernel, scheduler()]
}

fn pressure() -> Finding {
    const WHAT: &str = "pressure";
    const FILE: &str = "/proc/pressure/cpu";
    if std::fs::read_to_string(FILE).is_ok_and(|text| text.starts_with("some ")) {
        return Finding::well(WHAT, "the kernel tells how much work waits");
    }
    let readings = "the signals cpu_pressure, memory_pressure and io_pressure have no reading";
    let help = "boot with psi=1; in a unit leave ProcSubset= out";
    Finding::warning(WHAT, format!("{FILE} cannot be read: {readings}"), help)
}

fn control_groups() -> Finding {
    const WHAT: &str = "control groups";
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Finding::well(WHAT, "version 2: how much CPU time an application may use is known");
    }
    Finding::warning(
        WHAT,
        "not version 2 alone: the signal cpu_quota is read where the application's own group can be found",
        "nothing, unless the rules use cpu_quota; else boot with systemd.unified_cgroup_hierarchy=1",
    )
}

fn accept_queues() -> Finding {
    const WHAT: &str = "accept queues";
    let made = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(SOCK_DIAG));
    match made {
        Ok(_) => Finding::well(WHAT, "the kernel tells how many connections wait"),
        Err(error) => Finding::warning(
            WHAT,
            format!("the kernel does not report waiting connections ({error}): the brake uses busy slots"),
            "allow AF_NETLINK where this runs: RestrictAddressFamilies= of a unit, the seccomp profile of a container",
        ),
    }
}

fn clocks() -> Finding {
    const WHAT: &str = "clock";
    let seconds = unix_nanos() / 1_000_000_000;
    let since = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    let says = humantime::format_rfc3339_seconds(since);
    if (UNIX_MIN..UNIX_MAX).contains(&seconds) {
        return Finding::well(WHAT, format!("the wall clock says {says}; rates use the time since boot"));
    }
    let message = format!("the wall clock says {says}: windows that are aligned to it fall at wrong times");
    Finding::wrong(WHAT, message, "set it: timedatectl set-ntp true")
}

pub fn of_release(release: &str) -> Finding {
    const WHAT: &str = "kernel";
    match version(release) {
        Some(found) if found >= (5, 3) => {
            Finding::well(WHAT, format!("{release}: it tells when a process ends"))
        }
        Some(_) => Finding::warning(
            WHAT,
            format!("{release} cannot tell when a process ends: leases end with its connections"),
            "Linux 5.3 or later can, 6.5 or later without any doubt",
        ),
        None => Finding::unseen(WHAT, "/proc/sys/kernel/osrelease cannot be read", "mount /proc"),
    }
}

/// Requests the scheduling of decision threads on a separate thread and checks the result.
fn scheduler() -> Finding {
    let tried = std::thread::Builder::new().spawn(|| (sys::request_short_slice(), sys::read_slice()));
    match tried.map(std::thread::JoinHandle::join) {
        Ok(Ok((requested, given))) => of_slice(&requested, given),
        Ok(Err(_)) | Err(_) => {
            Finding::unseen(SCHEDULER, "no thread can be started to try it", "raise the limit of processes")
        }
    }
}

pub fn of_slice(requested: &io::Result<()>, given: io::Result<Duration>) -> Finding {
    let late = "on a busy host some answers take milliseconds";
    let slice = match (requested, given) {
        (Err(error), _) => {
            let message = format!(
                "short slices cannot be asked for here ({error}): where the daemon cannot either, {late}"
            );
            let help = "allow sched_setattr: SystemCallFilter= of a unit, the seccomp profile of a container";
            return Finding::warning(SCHEDULER, message, help);
        }
        (Ok(()), Err(error)) => {
            let message = format!("a short slice was requested, and the result is unreadable ({error})");
            let help = "allow sched_getattr where this runs, or try it on the host";
            return Finding::unseen(SCHEDULER, message, help);
        }
        (Ok(()), Ok(slice)) => slice,
    };
    let got = match slice {
        sys::SHORT_SLICE => {
            let soon = "decision threads run soon on a busy host";
            return Finding::well(SCHEDULER, format!("asked for a slice of {slice:?} and got it: {soon}"));
        }
        Duration::ZERO => "the kernel took no notice".to_owned(),
        slice => format!("got {slice:?}"),
    };
    let message = format!("asked for a slice of {:?}, and {got}: {late}", sys::SHORT_SLICE);
    Finding::warning(SCHEDULER, message, "nothing must be done; Linux 6.12 or later gives short slices")
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

const SCHEDULER: &str = "scheduler";

/// 2025, before this was written.
const UNIX_MIN: i64 = 1_735_689_600;

/// 2100.
const UNIX_MAX: i64 = 4_102_444_800;

/// Returns the findings on the unit files below this root.
pub fn units(root: &Path) -> Vec<Finding> {
    if !root.join("run/systemd/system").exists() {
        let message = "this host does not run systemd: another supervisor has to restart the daemon";
        return vec![Finding::well(UNIT, message)];
    }
    let mut findings = Vec::new();
    let directories = PLACES.map(|place| root.join(place));
    for name in UNITS {
        if !directories.iter().any(|directory| directory.join(name).exists()) {
            let copy = format!("copy systemd/{name} to /etc/systemd/system");
            let help = format!("{copy}, then systemctl daemon-reload: docs/operate.md");
            findings.push(Finding::warning(UNIT, format!("{name} is not installed"), help));
        }
        for file in directories.iter().flat_map(|directory| drop_ins(&directory.join(format!("{name}.d")))) {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            findings.push(match text.lines().map(str::trim).find_map(harm) {
                Some((line, harm)) => {
                    let help = "take the line out, then systemctl daemon-reload and restart";
                    Finding::wrong(UNIT, format!("{} says {line}: {harm}", file.display()), help)
                }
                None => Finding::well(UNIT, format!("{} changes {name}", file.display())),
            });
        }
    }
    if findings.is_empty() {
        findings.push(Finding::well(UNIT, "tidegate.socket and tidegate.service are as packaged"));
    }
    findings
}

fn drop_ins(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    files.sort();
    files
}

/// Returns the line and its harm if it removes something that the daemon needs.
pub fn harm(line: &str) -> Option<(&str, &'static str)> {
    let found = HARMFUL.iter().find(|(begin, _)| line.starts_with(begin))?;
    let (option, value) = line.split_once('=')?;
    let is_harmless = matches!(value.trim(), "" | "no" | "false" | "0" | "off" | "default" | "all")
        || option == "RestrictAddressFamilies" && value.contains("AF_NETLINK");
    (!is_harmless).then_some((line, found.1))
}

const UNIT: &str = "unit";

const UNITS: [&str; 2] = ["tidegate.service", "tidegate.socket"];

/// Directories that systemd reads, in order of precedence.
const PLACES: [&str; 4] =
    ["etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];

const HARMFUL: [(&str, &str); 5] = [
    ("PrivateUsers=", "every peer is user 65534, so all count as one"),
    ("ProtectProc=", "the processes behind sessions cannot be seen"),
    ("ProcSubset=", "pressure and CPU time cannot be read"),
    ("PrivateNetwork=", "accept queues of this host cannot be seen, nor metrics be served"),
    ("RestrictAddressFamilies=", "without AF_NETLINK accept queues cannot be read"),
];
