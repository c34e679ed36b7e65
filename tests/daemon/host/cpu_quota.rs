//! CPU time against a control group's quota, on machines of files: versions 1 and 2, and missing parts.

use tidegate::host::SignalSource;

use super::machine::Machine;

const PID: u32 = 42;

const VERSION_2: &str = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
const VERSION_1: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

fn machine(groups: &str, mounts: &str) -> Machine {
    let machine = Machine::new(&[("cpu_quota", SignalSource::CpuQuota)], Some(PID));
    machine.write("proc/42/cgroup", groups);
    machine.write("proc/self/mountinfo", mounts);
    machine.write("sys/devices/system/cpu/online", "0-3\n");
    machine
}

/// Sets the used CPU time of a group of version 2.
fn used(machine: &Machine, group: &str, micros: u64) {
    let text = format!("usage_usec {micros}\nuser_usec {micros}\nsystem_usec 0\n");
    machine.write(&format!("sys/fs/cgroup{group}/cpu.stat"), &text);
}

/// The sample after this usage.
fn after(machine: &mut Machine, group: &str, micros: u64) -> Vec<Option<u32>> {
    used(machine, group, micros);
    machine.sample()
}

fn may_use(machine: &Machine, group: &str, quota: &str) {
    machine.write(&format!("sys/fs/cgroup{group}/cpu.max"), quota);
}

const APP: &str = "/system.slice/app.service";

fn version_2() -> Machine {
    let machine = machine("0::/system.slice/app.service\n", VERSION_2);
    used(&machine, "", 900_000_000);
    used(&machine, "/system.slice", 500_000_000);
    used(&machine, APP, 7_000_000);
    may_use(&machine, "/system.slice", "max 100000\n");
    may_use(&machine, APP, "50000 100000\n");
    machine
}

#[test]
fn measures_usage_against_cgroup_v2_quota() {
    let mut machine = version_2();
    assert_eq!(machine.sample(), [], "one total says nothing, and that is not the same as zero");
    assert_eq!(after(&mut machine, APP, 7_250_000), [Some(500)], "250 ms in a second, of 500 ms");
    assert_eq!(after(&mut machine, APP, 8_000_000), [Some(1_000)], "one second in two, of one");
    may_use(&machine, APP, "1 18446744073709551615\n");
    assert_eq!(machine.sample(), [Some(u32::MAX)], "as much as a number holds");
}

#[test]
fn reports_fullest_ancestor_cgroup() {
    let mut machine = version_2();
    may_use(&machine, "/system.slice", "200000 100000\n");
    machine.sample();
    // The group used 100 of 500 ms, the slice with its other groups 1.8 of 2 s.
    used(&machine, APP, 7_100_000);
    assert_eq!(after(&mut machine, "/system.slice", 501_800_000), [Some(900)]);
    // Without a quota, the usage of other groups does not matter.
    may_use(&machine, "/system.slice", "max 100000\n");
    assert_eq!(machine.sample(), [Some(100)], "100 ms in two seconds");
}

#[test]
fn applies_changed_and_new_quota() {
    let mut machine = version_2();
    machine.remove("sys/fs/cgroup/system.slice/app.service/cpu.max");
    machine.sample();
    assert_eq!(after(&mut machine, APP, 8_000_000), [Some(250)], "no quota: one second of four CPUs'");
    may_use(&machine, APP, "200000 100000\n");
    assert_eq!(after(&mut machine, APP, 9_000_000), [Some(500)]);
    may_use(&machine, APP, "100000 100000\n");
    assert_eq!(after(&mut machine, APP, 10_000_000), [Some(1_000)]);
}

#[test]
fn uses_cpuset_without_cpu_controller() {
    let mut machine = machine("0::/app\n", VERSION_2);
    used(&machine, "/app", 0);
    machine.write("sys/fs/cgroup/cpuset.cpus.effective", "0-1,3\n");
    machine.sample();
    assert_eq!(after(&mut machine, "/app", 1_500_000), [Some(500)], "1.5 s of three CPUs'");
}

fn version_1(groups: &str, mounts: &str) -> Machine {
    let machine = machine(groups, mounts);
    for group in ["", "/app"] {
        machine.write(&format!("sys/fs/cgroup/cpu,cpuacct{group}/cpu.cfs_period_us"), "100000\n");
    }
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "9000000000000\n");
    machine.write("sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us", "150000\n");
    machine.write("sys/fs/cgroup/cpu,cpuacct/app/cpuacct.usage", "5000000000\n");
    // Another group in the hierarchy of version 2, without a controller.
    used(&machine, "/unified/other", 1);
    machine
}

#[test]
fn measures_usage_under_cgroup_v1_and_hybrid() {
    let pure = "4:cpuset:/\n2:cpu,cpuacct:/app\n1:name=systemd:/app\n";
    let both = "4:cpuset:/\n2:cpu,cpuacct:/app\n1:name=systemd:/app\n0::/other\n";
    for groups in [pure, both] {
        let mut machine = version_1(groups, VERSION_1);
        machine.sample();
        machine.write("sys/fs/cgroup/cpu,cpuacct/app/cpuacct.usage", "5750000000\n");
        assert_eq!(machine.sample(), [Some(500)], "750 ms of 1.5 s: {groups}");
        machine.write("sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us", "-1\n");
        assert_eq!(machine.sample(), [Some(93)], "750 ms in two seconds of four CPUs: {groups}");
    }
}

#[test]
fn reads_cgroup_v1_with_separate_mounts() {
    let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n";
    let mut machine = machine("2:cpuacct:/app\n1:cpu:/app\n", mounts);
    machine.write("sys/fs/cgroup/cpu/app/cpu.cfs_quota_us", "25000\n");
    machine.write("sys/fs/cgroup/cpu/app/cpu.cfs_period_us", "50000\n");
    machine.write("sys/fs/cgroup/cpuacct/app/cpuacct.usage", "0\n");
    machine.sample();
    machine.write("sys/fs/cgroup/cpuacct/app/cpuacct.usage", "400000000\n");
    assert_eq!(machine.sample(), [Some(800)]);
}

#[test]
fn reads_cgroup_mounted_from_container_root() {
    let mounts = "40 31 0:29 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
    let mut machine = machine("0::/docker/abc/worker\n", mounts);
    used(&machine, "/worker", 0);
    may_use(&machine, "/worker", "100000 100000");
    machine.sample();
    assert_eq!(after(&mut machine, "/worker", 100_000), [Some(100)]);
}

#[test]
fn unreadable_usage_yields_no_sample() {
    let unreadable = [None];
    // No process, a missing one, and ones whose group is not mounted here.
    let mut without_process = Machine::new(&[("cpu_quota", SignalSource::CpuQuota)], None);
    assert_eq!(without_process.sample(), unreadable);
    let mut gone = Machine::new(&[("cpu_quota", SignalSource::CpuQuota)], Some(7));
    assert_eq!(gone.sample(), unreadable);
    for groups in ["0::/../other\n", "0::/elsewhere\n", "1:name=systemd:/\n", "", "nonsense"] {
        let mut machine = machine(groups, VERSION_2);
        used(&machine, "", 1);
        used(&machine, "/../other", 1);
        assert_eq!(machine.sample(), unreadable, "{groups:?}");
    }
    for (path, text) in [
        ("cpu.stat", "user_usec 1\n"),
        ("cpu.stat", "usage_usec many\n"),
        ("cpu.max", "0 100000\n"),
        ("cpu.max", "100000\n"),
    ] {
        let mut machine = version_2();
        machine.write(&format!("sys/fs/cgroup{APP}/{path}"), text);
        assert_eq!(machine.sample(), unreadable, "{path}: {text:?}");
        // A restarted service has a group of the same name, which starts anew.
        machine.remove(&format!("sys/fs/cgroup{APP}"));
        used(&machine, APP, 1);
        may_use(&machine, APP, "max 100000\n");
        assert_eq!(machine.sample(), []);
        assert_eq!(machine.sample(), [Some(0)], "an idle group is not an unreadable one");
    }
}

#[test]
fn restarts_measurement_only_when_cgroup_changes() {
    let wanted = [("cpu_quota", SignalSource::CpuQuota)];
    let mut machine = version_2();
    machine.sample();
    machine.write("proc/43/cgroup", "0::/system.slice/app.service\n");
    machine.client.want(&wanted, Some(43));
    assert_eq!(after(&mut machine, APP, 7_250_000), [Some(500)]);
    // A process that has exited leaves the known group in use.
    machine.client.want(&wanted, Some(45));
    assert_eq!(after(&mut machine, APP, 7_500_000), [Some(500)]);
    machine.write("proc/44/cgroup", "0::/system.slice\n");
    machine.client.want(&wanted, Some(44));
    assert_eq!(machine.sample(), []);
}

#[test]
fn restarts_measurement_after_gap() {
    let mut machine = version_2();
    machine.sample();
    machine.pass(60);
    assert_eq!(after(&mut machine, APP, 37_000_000), [], "a minute asleep is not a minute of load");
    assert_eq!(after(&mut machine, APP, 37_500_000), [Some(1_000)]);
}
