//! One reading that is wanted: what takes it, and what was last said about it. A reading that cannot be taken is no
//! reading; it is never zero.

use std::path::Path;
use std::time::Duration;

use tracing::{info, warn};

use super::accept_queue::AcceptQueue;
use super::cpu_quota::CpuQuota;
use super::pressure::{Pressure, Resource};
use super::sock_diag::SockDiag;
use super::unreadable::Unreadable;
use super::{Readings, Source, Wanted};
use crate::clock::{Now, Timestamp};

/// A reading that is wanted and what takes it.
#[derive(Debug)]
pub(super) struct Sensor {
    wanted: Wanted,
    taker: Taker,
    /// Why it could not be read, as it was last told.
    told: Option<Unreadable>,
    told_at: Option<Timestamp>,
}

#[derive(Debug)]
enum Taker {
    AcceptQueue(AcceptQueue),
    Pressure(Pressure),
    CpuQuota(CpuQuota),
    Cpu,
}

/// What all sensors share.
pub(super) struct Machine<'m> {
    pub(super) root: &'m Path,
    pub(super) sockets: &'m mut SockDiag,
    /// Whether this is the moment to read shares.
    pub(super) shares_due: bool,
    /// The share of the CPUs, if it is.
    pub(super) cpu: Result<Option<u32>, Unreadable>,
}

impl Sensor {
    /// None: nothing of the machine is to be read.
    pub(super) fn new(wanted: Wanted) -> Option<Sensor> {
        let taker = match &wanted.source {
            Source::AcceptQueue(listen) => Taker::AcceptQueue(AcceptQueue::new(listen.clone())),
            Source::CpuPressure => Taker::Pressure(Pressure::new(Resource::Cpu)),
            Source::MemoryPressure => Taker::Pressure(Pressure::new(Resource::Memory)),
            Source::IoPressure => Taker::Pressure(Pressure::new(Resource::Io)),
            Source::CpuQuota => Taker::CpuQuota(CpuQuota::default()),
            Source::Cpu => Taker::Cpu,
            Source::Pushed => return None,
        };
        Some(Sensor { wanted, taker, told: None, told_at: None })
    }

    /// Whether this is what takes it. If so, it is of this process from now on.
    pub(super) fn takes(&mut self, wanted: &Wanted) -> bool {
        let same = self.wanted.pool == wanted.pool
            && self.wanted.signal == wanted.signal
            && self.wanted.source == wanted.source;
        if same {
            self.wanted.pid = wanted.pid;
        }
        same
    }

    pub(super) fn is_of_cpu(&self) -> bool {
        matches!(self.taker, Taker::Cpu)
    }

    /// Whether it is read each time. The rest are shares of several seconds.
    pub(super) fn is_quick(&self) -> bool {
        matches!(self.taker, Taker::AcceptQueue(_))
    }

    /// Reads it and hands it on, if it is due.
    pub(super) fn take(&mut self, machine: &mut Machine<'_>, readings: &dyn Readings, now: Now) {
        if !machine.shares_due && !self.is_quick() {
            return;
        }
        let pid = self.wanted.pid;
        let reading = match &mut self.taker {
            Taker::AcceptQueue(queue) => queue.read(machine.sockets).map(Some),
            Taker::Pressure(pressure) => pressure.read(machine.root, pid, now),
            Taker::CpuQuota(quota) => quota.read(machine.root, pid, now),
            Taker::Cpu => machine.cpu.clone(),
        };
        let (pool, signal) = (&self.wanted.pool, &self.wanted.signal);
        match reading {
            Ok(None) => {}
            Ok(Some(value)) => {
                readings.observe(pool, signal, Some(value), now);
                self.tell(None, now);
            }
            Err(cause) => {
                readings.observe(pool, signal, None, now);
                self.tell(Some(cause), now);
            }
        }
    }

    /// Says in the log what is different from what was last said there.
    fn tell(&mut self, cause: Option<Unreadable>, now: Now) {
        if self.told == cause || self.told_at.is_some_and(|told| now.at.since(told) < TOLD_APART) {
            return;
        }
        let (pool, signal) = (&self.wanted.pool, &self.wanted.signal);
        match &cause {
            Some(cause) => warn!(%pool, %signal, "no reading: {cause}"),
            None => info!(%pool, %signal, "there are readings again"),
        }
        (self.told, self.told_at) = (cause, Some(now.at));
    }
}

/// An application that starts and stops all the time is no reason to fill the log.
const TOLD_APART: Duration = Duration::from_secs(10);
