//! Signals of one pool, by name: read by the host or pushed by applications, valid for [`FRESH`].

use std::time::Duration;

use super::gate::PoolShedding;
use super::pool::SignalView;
use crate::clock::Timestamp;
use crate::rules::shed::{SignalRule, SignalSource};
use crate::shed::mapping;

#[derive(Debug, Default)]
pub(super) struct SignalReadings {
    readings: Vec<SignalReading>,
}

#[derive(Debug)]
struct SignalReading {
    name: Box<str>,
    /// The session that pushed it; `None`: the host reads it.
    session: Option<u64>,
    /// `None`: the host cannot read it.
    value: Option<u32>,
    at: Timestamp,
}

impl SignalReadings {
    /// Records a reading of the host, or of a session in thousandths; drops a new one beyond the bounds.
    pub(super) fn record(&mut self, name: &str, session: Option<u64>, value: Option<u32>, at: Timestamp) {
        let is_it = |known: &&mut SignalReading| known.session == session && *known.name == *name;
        if let Some(known) = self.readings.iter_mut().find(is_it) {
            (known.value, known.at) = (value, at);
            return;
        }
        self.forget_old(at);
        let of_source = self.readings.iter().filter(|known| known.session == session).count();
        let has_room = match session {
            None => of_source < READ_MAX,
            Some(_) => of_source < SESSION_PUSHED_MAX && self.readings.len() < PUSHED_MAX,
        };
        if has_room {
            self.readings.push(SignalReading { name: name.into(), session, value, at });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.readings.is_empty()
    }

    pub(super) fn forget_old(&mut self, at: Timestamp) {
        self.readings.retain(|reading| at.since(reading.at) < FRESH);
    }

    /// The length of the accept queue, in connections.
    pub(super) fn queue(&self, at: Timestamp) -> Option<u32> {
        self.read(ACCEPT_QUEUE, false, at)
    }

    /// The highest utilization among the signals that count.
    pub(super) fn counted(&self, watch: &PoolShedding, at: Timestamp) -> Option<f64> {
        let counted = watch.shed.signals.iter().filter(|signal| signal.counts);
        counted.filter_map(|signal| self.utilization(signal, at)).reduce(f64::max)
    }

    pub(super) fn view(&self, watch: &PoolShedding, at: Timestamp) -> Vec<SignalView> {
        let view = |signal: &SignalRule| {
            let (name, utilization) = (signal.name.clone(), self.utilization(signal, at));
            SignalView { name, utilization, readable: utilization.is_some(), counts: signal.counts }
        };
        watch.shed.signals.iter().map(view).collect()
    }

    fn utilization(&self, signal: &SignalRule, at: Timestamp) -> Option<f64> {
        let reading = self.read(&signal.name, signal.source == SignalSource::Pushed, at);
        reading.map(|reading| mapping::utilization(&signal.map, reading))
    }

    /// A reading of the host, or the mean over the sessions that push a signal, so that one hanging process does not stand
    /// for the pool.
    fn read(&self, name: &str, is_pushed: bool, at: Timestamp) -> Option<u32> {
        let is_it = |reading: &&SignalReading| {
            reading.session.is_some() == is_pushed && *reading.name == *name && at.since(reading.at) < FRESH
        };
        let values = self.readings.iter().filter(is_it).filter_map(|reading| reading.value);
        let (count, sum) = values.fold((0, 0), |(count, sum), value| (count + 1, sum + value));
        sum.checked_div(count)
    }
}

/// The signal that the brake reads.
pub(super) const ACCEPT_QUEUE: &str = "accept_queue";

const FRESH: Duration = Duration::from_secs(3);

/// Maximum signals that the host reads for one pool: more than there are kinds.
const READ_MAX: usize = 32;

/// Maximum names that one session may push within 3 s, far more than an application measures. It bounds
/// memory; `PUSHED_MAX` does not, because each pool has its own list.
const SESSION_PUSHED_MAX: usize = 16;

const PUSHED_MAX: usize = 4_096;
