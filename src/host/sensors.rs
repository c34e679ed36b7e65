//! Samples all signals that the rules use, when they are due, and logs failures. A failed sample is no sample, never zero.
//! Time is an argument, except for the sampling thread, which no other thread waits for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::SignalError;
use super::accept_queue::{AcceptQueue, SockDiag};
use super::cpu_quota::CpuQuota;
use super::pressure::{Pressure, Resource};
use super::{HostSignals, SignalSource};
use crate::clock::{Clock, Now, Timestamp};
use crate::engine::Engine;

/// The sensors of all wanted signals.
#[derive(Debug, Default)]
pub struct SignalSensors {
    root: PathBuf,
    sensors: Vec<Sensor>,
    sockets: SockDiag,
    /// When the shares were last sampled.
    last: Option<Timestamp>,
}

impl SignalSensors {
    /// Makes sensors that read `proc` and `sys` below `root`, which is `/` except in tests.
    pub fn new(root: &Path) -> SignalSensors {
        SignalSensors { root: root.into(), ..SignalSensors::default() }
    }

    /// Samples the signals that are due: accept queues on each call, shares once a second, as often as it also gets the `wanted`
    /// signals. `add` takes a pool, a signal, and its sample: waiting connections for an accept queue, else thousandths; `None` if
    /// it cannot be read.
    pub fn sample(
        &mut self,
        wanted: impl FnOnce() -> Vec<HostSignals>,
        now: Now,
        mut add: impl FnMut(&str, &str, Option<u32>),
    ) {
        let shares_due = self.last.is_none_or(|last| now.at.since(last) >= SHARE_INTERVAL);
        if shares_due {
            self.last = Some(now.at);
            self.update_sensors(wanted());
        }
        for sensor in &mut self.sensors {
            let pid = sensor.wanted.pid;
            let sample = match &mut sensor.probe {
                Probe::AcceptQueue(queue) => queue.read(&mut self.sockets).map(Some),
                _ if !shares_due => continue,
                Probe::Pressure(pressure) => pressure.read(&self.root, pid, now),
                Probe::CpuQuota(quota) => quota.read(&self.root, pid, now),
                Probe::Cpu(cpu) => cpu.read_highest_share(now).map_err(|_| SignalError::NoCpuTime),
            };
            if let Some(sample) = sample.transpose() {
                add(&sensor.wanted.pool, &sensor.wanted.signal, sample.as_ref().ok().copied());
                sensor.log(sample.err(), now);
            }
        }
    }

    /// Returns the time to wait before the next call of [`SignalSensors::sample`].
    pub fn next_pause(&self) -> Duration {
        if self.sensors.iter().any(|sensor| matches!(sensor.probe, Probe::AcceptQueue(_))) {
            QUEUE_INTERVAL
        } else {
            IDLE_INTERVAL
        }
    }

    /// Creates and drops sensors to match the wanted signals. Existing sensors keep their state.
    fn update_sensors(&mut self, wanted: Vec<HostSignals>) {
        let mut before = std::mem::take(&mut self.sensors);
        for wanted in wanted {
            let known = before.iter_mut().position(|sensor| sensor.matches_and_update(&wanted));
            let known = known.map(|known| before.swap_remove(known));
            self.sensors.extend(known.or_else(|| Sensor::new(wanted, &self.root)));
        }
    }
}

#[derive(Debug)]
struct Sensor {
    wanted: HostSignals,
    probe: Probe,
    logged: Option<SignalError>,
    logged_at: Option<Timestamp>,
}

#[derive(Debug)]
enum Probe {
    AcceptQueue(AcceptQueue),
    Pressure(Pressure),
    CpuQuota(CpuQuota),
    Cpu(CpuQuota),
}

impl Sensor {
    /// Makes a sensor; `None` for a signal that the application pushes.
    fn new(wanted: HostSignals, root: &Path) -> Option<Sensor> {
        let probe = match &wanted.source {
            SignalSource::AcceptQueue(listen) => Probe::AcceptQueue(AcceptQueue::new(listen.clone())),
            SignalSource::CpuPressure => Probe::Pressure(Pressure::new(Resource::Cpu)),
            SignalSource::MemoryPressure => Probe::Pressure(Pressure::new(Resource::Memory)),
            SignalSource::IoPressure => Probe::Pressure(Pressure::new(Resource::Io)),
            SignalSource::CpuQuota => Probe::CpuQuota(CpuQuota::default()),
            SignalSource::Cpu => Probe::Cpu(CpuQuota::of_machine(root)),
            SignalSource::Pushed => return None,
        };
        Some(Sensor { wanted, probe, logged: None, logged_at: None })
    }

    /// Whether this sensor samples what is `wanted`; if so, takes over its process.
    fn matches_and_update(&mut self, wanted: &HostSignals) -> bool {
        let same = self.wanted.pool == wanted.pool
            && self.wanted.signal == wanted.signal
            && self.wanted.source == wanted.source;
        if same {
            self.wanted.pid = wanted.pid;
        }
        same
    }

    /// Logs an error that differs from the last one, or its end.
    fn log(&mut self, error: Option<SignalError>, now: Now) {
        let (pool, signal) = (&self.wanted.pool, &self.wanted.signal);
        let throttled = self.logged_at.is_some_and(|logged| now.at.since(logged) < LOG_INTERVAL_MIN);
        if self.logged == error || throttled {
            return;
        }
        match &error {
            Some(error) => warn!(%pool, %signal, "cannot sample this signal: {error}"),
            None => info!(%pool, %signal, "this signal is sampled again"),
        }
        (self.logged, self.logged_at) = (error, Some(now.at));
    }
}

/// The interval at which the brake evaluates its queue.
const QUEUE_INTERVAL: Duration = Duration::from_millis(250);

/// The interval without an accept queue to sample.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// One second, less half of a queue interval, so that a wake-up that is early does not skip a second.
const SHARE_INTERVAL: Duration = Duration::from_millis(875);

/// Bounds the log of an application that starts and stops all the time.
const LOG_INTERVAL_MIN: Duration = Duration::from_secs(10);

/// Returns the work of the sampling thread: it samples the signals of the engine's rules forever.
pub fn work(engine: Arc<Engine>, clock: Arc<Clock>) -> impl FnMut() + Send + 'static {
    move || {
        let mut sensors = SignalSensors::new(Path::new("/"));
        loop {
            let now = clock.now();
            let add = |pool: &str, signal: &str, sample| engine.record_host_signal(pool, signal, sample, now);
            sensors.sample(|| engine.required_host_signals(), now, add);
            std::thread::sleep(sensors.next_pause());
        }
    }
}
