//! The cost of sampling in CPU time, which does not vary with the load of the machine as elapsed time does.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidegate::clock::{Clock, Now};
use tidegate::host::{Listen, SignalSampler, SignalSensors, SignalSource};

use super::machine::Asker;

fn everything(port: u16) -> Asker {
    let wanted = [
        ("accept_queue", SignalSource::AcceptQueue(Listen::Port(port))),
        ("cpu_pressure", SignalSource::CpuPressure),
        ("memory_pressure", SignalSource::MemoryPressure),
        ("io_pressure", SignalSource::IoPressure),
        ("cpu_quota", SignalSource::CpuQuota),
        ("cpu", SignalSource::Cpu),
    ];
    Asker::new(&wanted, Some(std::process::id()))
}

#[allow(clippy::disallowed_methods, reason = "a measurement, not a decision")]
fn cpu_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// CPU time of another thread at its last switch.
fn cpu_nanos_of(task: &Path) -> u64 {
    let text = fs::read_to_string(task.join("schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn bounds_cpu_time_of_samples() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let asker = everything(listener.local_addr().unwrap().port());
    let mut sensors = SignalSensors::new(Path::new("/"));
    let sample =
        |sensors: &mut SignalSensors, tick: u64| sensors.sample(&asker, Now::at_nanos(tick * 250_000_000));
    // The first samples open files and count CPUs.
    (0..8).for_each(|tick| sample(&mut sensors, tick));
    let before = cpu_nanos();
    (8..48).for_each(|tick| sample(&mut sensors, tick));
    let spent = cpu_nanos() - before;
    println!("{} µs of CPU time for 10 s", spent / 1_000);
    assert!(spent <= 20_000_000, "{spent} ns");
}

#[test]
#[ignore = "takes ten seconds: what the thread really costs, waking up and all"]
fn bounds_cpu_time_of_sampler_thread() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let asker = Arc::new(everything(listener.local_addr().unwrap().port()));
    let _sampler = SignalSampler::start(asker, Arc::new(Clock::start())).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_it = |task: &std::path::PathBuf| fs::read_to_string(task.join("comm")).unwrap() == "readings\n";
    let task = tasks.into_iter().find(is_it).unwrap();
    let before = cpu_nanos_of(&task);
    std::thread::sleep(Duration::from_secs(10));
    let spent = cpu_nanos_of(&task) - before;
    println!("{} µs of CPU time in 10 s", spent / 1_000);
    assert!(spent <= 20_000_000, "{spent} ns");
}
