//! All readings that the rules ask for, taken when they are due. Time is an argument; no thread is started here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Readings;
use super::cpu::Cpu;
use super::sensor::{Machine, Sensor};
use super::sock_diag::SockDiag;
use crate::clock::{Now, Timestamp};

/// Everything that takes readings.
#[derive(Debug)]
pub struct Sensors {
    root: PathBuf,
    sensors: Vec<Sensor>,
    sockets: SockDiag,
    /// The machine's CPUs, while somebody wants them.
    cpu: Option<Cpu>,
    /// When the shares were last read.
    last: Option<Timestamp>,
}

impl Sensors {
    /// Sensors that look for `proc` and `sys` below `root`, which is `/` but in tests.
    #[must_use]
    pub fn new(root: &Path) -> Sensors {
        Sensors { root: root.into(), sensors: Vec::new(), sockets: SockDiag::new(), cpu: None, last: None }
    }

    /// Takes what is due: accept queues each time, shares once a second, when it is also asked what is wanted.
    pub fn sample(&mut self, readings: &dyn Readings, now: Now) {
        let shares_due = self.last.is_none_or(|last| now.at.since(last) >= SHARES_APART);
        let mut cpu = Ok(None);
        if shares_due {
            self.last = Some(now.at);
            self.provide(readings);
            cpu = self.cpu.as_mut().map_or(Ok(None), |cpu| cpu.read(now));
        }
        let mut machine = Machine { root: &self.root, sockets: &mut self.sockets, shares_due, cpu };
        for sensor in &mut self.sensors {
            sensor.take(&mut machine, readings, now);
        }
    }

    /// How long until there may be something to take.
    #[must_use]
    pub fn pause(&self) -> Duration {
        if self.sensors.iter().any(Sensor::is_quick) { QUEUES_APART } else { IDLE_APART }
    }

    /// Sensors for all that is wanted and no others; those that there are keep what they know.
    fn provide(&mut self, readings: &dyn Readings) {
        let mut before = std::mem::take(&mut self.sensors);
        for wanted in readings.wanted() {
            let known = before.iter_mut().position(|sensor| sensor.takes(&wanted));
            let sensor = known.map(|known| before.swap_remove(known)).or_else(|| Sensor::new(wanted));
            self.sensors.extend(sensor);
        }
        let of_cpu = self.sensors.iter().any(Sensor::is_of_cpu);
        self.cpu = of_cpu.then(|| self.cpu.take().unwrap_or_else(Cpu::new));
    }
}

/// As often as the brake looks at its queue.
const QUEUES_APART: Duration = Duration::from_millis(250);

/// While there is no queue to read.
const IDLE_APART: Duration = Duration::from_secs(1);

/// Once a second, less half of what a thread that is woken four times a second may be early.
const SHARES_APART: Duration = Duration::from_millis(875);
