//! Pressure stall information: the machine's, the application's, absent, and switched off.

use tidegate::host::SignalSource;

use super::machine::Machine;

const ALL: [(&str, SignalSource); 3] = [
    ("cpu", SignalSource::CpuPressure),
    ("memory", SignalSource::MemoryPressure),
    ("io", SignalSource::IoPressure),
];

const VERSION_2: &str = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

/// Writes a pressure file. Its averages are wrong on purpose, as only totals may be read.
fn pressure(machine: &Machine, path: &str, some: u64, full: u64) {
    let averages = "avg10=99.00 avg60=99.00 avg300=99.00";
    machine.write(path, &format!("some {averages} total={some}\nfull {averages} total={full}\n"));
}

fn of_machine(machine: &Machine, some: u64, full: u64) {
    for resource in ["cpu", "memory", "io"] {
        pressure(machine, &format!("proc/pressure/{resource}"), some, full);
    }
}

#[test]
fn reads_machine_pressure_without_process() {
    let mut machine = Machine::new(&ALL, None);
    of_machine(&machine, 7_000_000, 3_000_000);
    assert_eq!(machine.sample(), []);
    of_machine(&machine, 7_250_000, 3_010_000);
    let (some, full) = (Some(250), Some(10));
    assert_eq!(machine.sample(), [some, full, some], "somebody waits for CPU and disk, everybody for memory");
}

#[test]
fn covers_the_last_eight_seconds() {
    let mut machine = Machine::new(&[("cpu", SignalSource::CpuPressure)], None);
    let mut total = 7_000_000;
    let mut sample = |stalled: u64| {
        total += stalled;
        of_machine(&machine, total, 0);
        machine.sample()
    };
    assert_eq!(sample(0), [], "one sample has no increase");
    // Half of the time for ten seconds, then none of it.
    let busy: Vec<_> = (0..10).flat_map(|_| sample(500_000)).flatten().collect();
    assert_eq!(busy, [500; 10]);
    let idle: Vec<_> = (0..9).flat_map(|_| sample(0)).flatten().collect();
    assert_eq!(idle, [437, 375, 312, 250, 187, 125, 62, 0, 0]);
}

#[test]
fn begins_anew_after_a_decrease_or_a_gap() {
    let mut machine = Machine::new(&[("cpu", SignalSource::CpuPressure)], None);
    let mut sample = |seconds: u64, total: u64| {
        machine.pass(seconds);
        of_machine(&machine, total, 0);
        machine.sample()
    };
    assert_eq!(sample(0, 1_000_000), []);
    assert_eq!(sample(0, 900_000), [], "another total");
    assert_eq!(sample(0, 1_000_000), [Some(100)]);
    assert_eq!(sample(5, 2_000_000), [], "six seconds after the last sample");
    assert_eq!(sample(4, 2_500_000), [Some(100)], "five seconds after it");
}

#[test]
fn prefers_cgroup_pressure_over_machine() {
    let mut machine = Machine::new(&[("cpu", SignalSource::CpuPressure)], Some(42));
    machine.write("proc/42/cgroup", "0::/app\n");
    machine.write("proc/self/mountinfo", VERSION_2);
    of_machine(&machine, 9_000_000, 0);
    pressure(&machine, "sys/fs/cgroup/app/cpu.pressure", 1_000_000, 0);
    machine.sample();
    pressure(&machine, "sys/fs/cgroup/app/cpu.pressure", 1_500_000, 0);
    assert_eq!(machine.sample(), [Some(500)]);
    // The machine's accounting replaces the group's, and starts anew.
    machine.write("sys/fs/cgroup/app/cpu.pressure", "");
    assert_eq!(machine.sample(), [None]);
    machine.remove("sys/fs/cgroup/app/cpu.pressure");
    assert_eq!(machine.sample(), []);
    of_machine(&machine, 9_100_000, 0);
    assert_eq!(machine.sample(), [Some(100)]);
}

#[test]
fn reads_machine_pressure_without_a_group_of_the_process() {
    // The files of process 43 are hidden.
    for (groups, pid) in
        [("0::/\n", 42), ("2:cpu,cpuacct:/app\n", 42), ("0::/../elsewhere\n", 42), ("0::/app\n", 43)]
    {
        let mut machine = Machine::new(&[("cpu", SignalSource::CpuPressure)], Some(pid));
        machine.write("proc/42/cgroup", groups);
        machine.write("proc/self/mountinfo", VERSION_2);
        machine.write("sys/fs/cgroup/cpu.pressure", "");
        of_machine(&machine, 0, 0);
        machine.sample();
        of_machine(&machine, 40_000, 0);
        assert_eq!(machine.sample(), [Some(40)], "{groups}");
    }
}

#[test]
fn unreadable_pressure_yields_no_sample() {
    let mut machine = Machine::new(&ALL, None);
    assert_eq!(machine.sample(), [None; 3]);
    of_machine(&machine, 0, 0);
    assert_eq!(machine.sample(), []);
    assert_eq!(machine.sample(), [Some(0); 3]);
    machine.write("proc/pressure/memory", "some avg10=0.00\n");
    assert_eq!(machine.sample(), [Some(0), None, Some(0)]);
}
