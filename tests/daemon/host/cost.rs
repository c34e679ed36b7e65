//! The cost of sampling in CPU time, which does not vary with the load of the machine as elapsed time does.

use std::net::TcpListener;

use rustix::time::{ClockId, clock_gettime};
use tidegate::clock::Now;
use tidegate::host::{Listen, SignalSensors, SignalSource};

use super::machine::FakeClient;
use crate::prelude::*;

fn everything(port: u16) -> FakeClient {
    let wanted = [
        ("accept_queue", SignalSource::AcceptQueue(Listen::Port(port))),
        ("cpu_pressure", SignalSource::CpuPressure),
        ("memory_pressure", SignalSource::MemoryPressure),
        ("io_pressure", SignalSource::IoPressure),
        ("cpu_quota", SignalSource::CpuQuota),
        ("cpu", SignalSource::Cpu),
    ];
    FakeClient::new(&wanted, Some(std::process::id()))
}

#[allow(clippy::disallowed_methods, reason = "a measurement, not a decision")]
fn cpu_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[test]
fn bounds_cpu_time_of_samples() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = everything(listener.local_addr().unwrap().port());
    let mut sensors = SignalSensors::new(Path::new("/"));
    let sample =
        |sensors: &mut SignalSensors, tick: u64| sensors.sample(&client, Now::at_nanos(tick * 250_000_000));
    // The first samples open files and count CPUs.
    (0..8).for_each(|tick| sample(&mut sensors, tick));
    let before = cpu_nanos();
    (8..48).for_each(|tick| sample(&mut sensors, tick));
    let spent = cpu_nanos() - before;
    println!("{} µs of CPU time for 10 s", spent / 1_000);
    assert!(spent <= 20_000_000, "{spent} ns");
}
