//! Samples all signals that the rules use, when they are due. Time is an argument; no thread is started here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::SignalSink;
use super::cpu::Cpu;
use super::sensor::{SampleContext, Sensor};
use super::sock_diag::SockDiag;
use crate::clock::{Now, Timestamp};

/// The sensors of all wanted signals.
#[derive(Debug)]
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
    #[must_use]
    pub fn new(root: &Path) -> SignalSensors {
        SignalSensors {
            root: root.into(),
            sensors: Vec::new(),
            sockets: SockDiag::new(),
            cpu: None,
            last: None,
        }
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
        let mut context = SampleContext { root: &self.root, sockets: &mut self.sockets, shares_due, cpu };
        for sensor in &mut self.sensors {
            sensor.sample(&mut context, readings, now);
        }
    }

    /// Returns the time to wait before the next call of [`SignalSensors::sample`].
    #[must_use]
    pub fn next_pause(&self) -> Duration {
        if self.sensors.iter().any(Sensor::is_accept_queue) { QUEUE_INTERVAL } else { IDLE_INTERVAL }
    }

    /// Creates and drops sensors to match the wanted signals. Existing sensors keep their state.
    fn update_sensors(&mut self, readings: &dyn SignalSink) {
        let mut before = std::mem::take(&mut self.sensors);
        for wanted in readings.wanted_signals() {
            let known = before.iter_mut().position(|sensor| sensor.matches_and_update(&wanted));
            let sensor = known.map(|known| before.swap_remove(known)).or_else(|| Sensor::new(wanted));
            self.sensors.extend(sensor);
        }
        let needs_cpu = self.sensors.iter().any(Sensor::needs_cpu);
        self.cpu = needs_cpu.then(|| self.cpu.take().unwrap_or_else(Cpu::new));
    }
}

/// The interval at which the brake evaluates its queue.
const QUEUE_INTERVAL: Duration = Duration::from_millis(250);

/// The interval without an accept queue to sample.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// One second, less half of a queue interval, so that a wake-up that is early does not skip a second.
const SHARE_INTERVAL: Duration = Duration::from_millis(875);
