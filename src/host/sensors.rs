//! Samples all signals that the rules use, when they are due, and logs failures. A failed sample is no sample, never zero.
//! Time is an argument, except for the sampling thread, which no other thread waits for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use sysinfo::{CpuRefreshKind, System};
use tracing::{info, warn};

use super::SignalError;
use super::accept_queue::{AcceptQueue, SockDiag};
use super::cpu_quota::CpuQuota;
use super::pressure::{Pressure, Resource};
use super::usage_window::UsageWindow;
use super::{HostSignals, SignalSink, SignalSource};
use crate::clock::{Clock, Now, Timestamp};

/// The sensors of all wanted signals.
#[derive(Debug, Default)]
pub struct SignalSensors {
    root: PathBuf,
    sensors: Vec<Sensor>,
    sockets: SockDiag,
    /// The machine's CPUs, while a signal needs them.
    cpu: Option<Cpu>,
    /// When the shares were last sampled.
    last: Option<Timestamp>,
}

impl SignalSensors {
    /// Makes sensors that read `proc` and `sys` below `root`, which is `/` except in tests.
    pub fn new(root: &Path) -> SignalSensors {
        SignalSensors { root: root.into(), ..SignalSensors::default() }
    }

    /// Samples the signals that are due: accept queues on each call, shares once a second. Once a second it also updates
    /// the set of wanted signals.
    pub fn sample(&mut self, readings: &dyn SignalSink, now: Now) {
        let shares_due = self.last.is_none_or(|last| now.at.since(last) >= SHARE_INTERVAL);
        let mut cpu = Ok(None);
        if shares_due {
            self.last = Some(now.at);
            self.update_sensors(readings);
            cpu = self.cpu.as_mut().map_or(Ok(None), |cpu| cpu.read(now));
        }
        for sensor in &mut self.sensors {
            let pid = sensor.wanted.pid;
            let sample = match &mut sensor.probe {
                Probe::AcceptQueue(queue) => queue.read(&mut self.sockets).map(Some),
                _ if !shares_due => continue,
                Probe::Pressure(pressure) => pressure.read(&self.root, pid, now),
                Probe::CpuQuota(quota) => quota.read(&self.root, pid, now),
                Probe::Cpu => cpu.clone(),
            };
            sensor.report(sample, readings, now);
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
    fn update_sensors(&mut self, readings: &dyn SignalSink) {
        let mut before = std::mem::take(&mut self.sensors);
        for wanted in readings.wanted_signals() {
            let known = before.iter_mut().position(|sensor| sensor.matches_and_update(&wanted));
            let sensor = known.map(|known| before.swap_remove(known)).or_else(|| Sensor::new(wanted));
            self.sensors.extend(sensor);
        }
        let needs_cpu = self.sensors.iter().any(|sensor| matches!(sensor.probe, Probe::Cpu));
        self.cpu = needs_cpu.then(|| self.cpu.take().unwrap_or_else(Cpu::new));
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
    Cpu,
}

impl Sensor {
    /// Makes a sensor; `None` for a signal that the application pushes.
    fn new(wanted: HostSignals) -> Option<Sensor> {
        let probe = match &wanted.source {
            SignalSource::AcceptQueue(listen) => Probe::AcceptQueue(AcceptQueue::new(listen.clone())),
            SignalSource::CpuPressure => Probe::Pressure(Pressure::new(Resource::Cpu)),
            SignalSource::MemoryPressure => Probe::Pressure(Pressure::new(Resource::Memory)),
            SignalSource::IoPressure => Probe::Pressure(Pressure::new(Resource::Io)),
            SignalSource::CpuQuota => Probe::CpuQuota(CpuQuota::default()),
            SignalSource::Cpu => Probe::Cpu,
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

    /// Passes a sample to `readings`, and logs an error that differs from the last one, or its end.
    fn report(&mut self, sample: Result<Option<u32>, SignalError>, readings: &dyn SignalSink, now: Now) {
        let (pool, signal) = (&self.wanted.pool, &self.wanted.signal);
        let (value, error) = match sample {
            Ok(None) => return,
            Ok(value) => (value, None),
            Err(error) => (None, Some(error)),
        };
        readings.add_sample(pool, signal, value, now);
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

/// The CPUs of the machine, all together.
#[derive(Debug)]
pub(super) struct Cpu {
    system: Option<System>,
    /// Busy time since the first sample, in nanoseconds, averaged over the CPUs.
    busy_nanos: u64,
    last: Option<Timestamp>,
    window: UsageWindow,
}

impl Cpu {
    pub(super) fn new() -> Cpu {
        Cpu { system: System::new().ok(), busy_nanos: 0, last: None, window: UsageWindow::default() }
    }

    /// Returns the busy share of the time in thousandths; `None` until there are two samples.
    pub(super) fn read(&mut self, now: Now) -> Result<Option<u32>, SignalError> {
        let system = self.system.as_mut().ok_or(SignalError::NoCpuTime)?;
        system.refresh_cpu_specifics(CpuRefreshKind::nothing().with_usage());
        let percent = system.global_cpu_usage();
        if system.cpus().is_empty() || !percent.is_finite() {
            return Err(SignalError::NoCpuTime);
        }
        // The first figure is the average since boot.
        if let Some(last) = self.last.replace(now.at) {
            let span = u64::try_from(now.at.since(last).as_nanos()).unwrap_or(u64::MAX);
            let busy = (span / 1_000).saturating_mul(u64::from(to_thousandths(percent)));
            self.busy_nanos = self.busy_nanos.saturating_add(busy);
        }
        Ok(self.window.push(now.at, self.busy_nanos).map(|share| share.thousandths_of(1, 1)))
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1 000")]
fn to_thousandths(percent: f32) -> u32 {
    (percent.clamp(0.0, 100.0) * 10.0).round() as u32
}

/// Samples signals until it is dropped.
#[derive(Debug)]
pub struct SignalSampler {
    _stop: SyncSender<()>,
}

impl SignalSampler {
    /// Makes a sampler and the work of its thread. The work ends after the sampler is dropped and the sample in progress,
    /// whose duration is up to the kernel, is complete.
    pub fn new(
        readings: Arc<dyn SignalSink>,
        clock: Arc<Clock>,
    ) -> (SignalSampler, impl FnMut() + Send + 'static) {
        let (stop, stopped) = sync_channel(0);
        (SignalSampler { _stop: stop }, move || run(&*readings, &clock, &stopped))
    }
}

fn run(readings: &dyn SignalSink, clock: &Clock, stopped: &Receiver<()>) {
    let mut sensors = SignalSensors::new(Path::new("/"));
    loop {
        sensors.sample(readings, clock.now());
        if stopped.recv_timeout(sensors.next_pause()) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
