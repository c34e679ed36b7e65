//! Samples one signal and logs when that fails. A failed sample is no sample, never zero.

use std::path::Path;
use std::time::Duration;

use tracing::{info, warn};

use super::accept_queue::AcceptQueue;
use super::cpu_quota::CpuQuota;
use super::pressure::{Pressure, Resource};
use super::signal_error::SignalError;
use super::sock_diag::SockDiag;
use super::{HostSignals, SignalSink, SignalSource};
use crate::clock::{Now, Timestamp};

/// A wanted signal and its probe.
#[derive(Debug)]
pub(super) struct Sensor {
    wanted: HostSignals,
    probe: Probe,
    /// The error in the last log line.
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

/// The inputs that all sensors share in one round.
pub(super) struct SampleContext<'m> {
    pub(super) root: &'m Path,
    pub(super) sockets: &'m mut SockDiag,
    /// Whether signals other than accept queues are due.
    pub(super) shares_due: bool,
    /// The CPU utilization, if `shares_due`.
    pub(super) cpu: Result<Option<u32>, SignalError>,
}

impl Sensor {
    /// Makes a sensor; `None` for a signal that the application pushes.
    pub(super) fn new(wanted: HostSignals) -> Option<Sensor> {
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
    pub(super) fn matches_and_update(&mut self, wanted: &HostSignals) -> bool {
        let same = self.wanted.pool == wanted.pool
            && self.wanted.signal == wanted.signal
            && self.wanted.source == wanted.source;
        if same {
            self.wanted.pid = wanted.pid;
        }
        same
    }

    pub(super) fn needs_cpu(&self) -> bool {
        matches!(self.probe, Probe::Cpu)
    }

    /// Whether it is sampled every round. The other signals are shares of several seconds.
    pub(super) fn is_accept_queue(&self) -> bool {
        matches!(self.probe, Probe::AcceptQueue(_))
    }

    /// Samples the signal, if it is due, and passes the result to `readings`.
    pub(super) fn sample(&mut self, context: &mut SampleContext<'_>, readings: &dyn SignalSink, now: Now) {
        if !context.shares_due && !self.is_accept_queue() {
            return;
        }
        let pid = self.wanted.pid;
        let sample = match &mut self.probe {
            Probe::AcceptQueue(queue) => queue.read(context.sockets).map(Some),
            Probe::Pressure(pressure) => pressure.read(context.root, pid, now),
            Probe::CpuQuota(quota) => quota.read(context.root, pid, now),
            Probe::Cpu => context.cpu.clone(),
        };
        let (pool, signal) = (&self.wanted.pool, &self.wanted.signal);
        match sample {
            Ok(None) => {}
            Ok(Some(value)) => {
                readings.add_sample(pool, signal, Some(value), now);
                self.log_change(None, now);
            }
            Err(error) => {
                readings.add_sample(pool, signal, None, now);
                self.log_change(Some(error), now);
            }
        }
    }

    /// Logs an error that differs from the last one, or its end.
    fn log_change(&mut self, error: Option<SignalError>, now: Now) {
        let throttled = self.logged_at.is_some_and(|logged| now.at.since(logged) < LOG_INTERVAL_MIN);
        if self.logged == error || throttled {
            return;
        }
        let (pool, signal) = (&self.wanted.pool, &self.wanted.signal);
        match &error {
            Some(error) => warn!(%pool, %signal, "cannot sample this signal: {error}"),
            None => info!(%pool, %signal, "this signal is sampled again"),
        }
        (self.logged, self.logged_at) = (error, Some(now.at));
    }
}

/// Bounds the log of an application that starts and stops all the time.
const LOG_INTERVAL_MIN: Duration = Duration::from_secs(10);
