//! Signals of one pool, by name: read by the host or pushed by applications, valid for [`FRESH`].

use std::time::Duration;

use super::gate::PoolShedding;
use super::pool::SignalView;
use crate::clock::Timestamp;
use crate::rules::shed::SignalRule;
use crate::shed::mapping;

#[derive(Debug, Default)]
pub(super) struct SignalReadings {
    read: Vec<HostSignalReading>,
    pushed: Vec<PushedSignal>,
}

/// A signal that the host reads; without a value if it cannot be read.
#[derive(Debug)]
struct HostSignalReading {
    name: Box<str>,
    value: Option<u32>,
    at: Timestamp,
}

#[derive(Debug)]
struct PushedSignal {
    name: Box<str>,
    session: u64,
    permille: u16,
    at: Timestamp,
}

impl SignalReadings {
    /// Records a reading of the host; `None`: the reading failed.
    pub(super) fn observe(&mut self, name: &str, value: Option<u32>, at: Timestamp) {
        if let Some(read) = self.read.iter_mut().find(|read| *read.name == *name) {
            (read.value, read.at) = (value, at);
        } else if self.read.len() < READ_MAX {
            self.read.push(HostSignalReading { name: name.into(), value, at });
        }
    }

    /// Records a pushed signal; drops a new one beyond the bounds.
    pub(super) fn push(&mut self, name: &str, session: u64, permille: u16, at: Timestamp) {
        let is_it = |pushed: &&mut PushedSignal| pushed.session == session && *pushed.name == *name;
        if let Some(pushed) = self.pushed.iter_mut().find(is_it) {
            (pushed.permille, pushed.at) = (permille, at);
            return;
        }
        self.pushed.retain(|pushed| at.since(pushed.at) < FRESH);
        let of_session = self.pushed.iter().filter(|pushed| pushed.session == session).count();
        if self.pushed.len() < PUSHED_MAX && of_session < SESSION_PUSHED_MAX {
            self.pushed.push(PushedSignal { name: name.into(), session, permille, at });
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.read.is_empty() && self.pushed.is_empty()
    }

    pub(super) fn forget_old(&mut self, at: Timestamp) {
        self.read.retain(|read| at.since(read.at) < FRESH);
        self.pushed.retain(|pushed| at.since(pushed.at) < FRESH);
    }

    /// The length of the accept queue, in connections.
    pub(super) fn queue(&self, at: Timestamp) -> Option<u32> {
        self.read(ACCEPT_QUEUE, at)
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
        let reading = match signal.source {
            crate::rules::shed::SignalSource::Pushed => self.pushed(&signal.name, at),
            _ => self.read(&signal.name, at),
        };
        reading.map(|reading| mapping::utilization(&signal.map, reading))
    }

    fn read(&self, name: &str, at: Timestamp) -> Option<u32> {
        let read = self.read.iter().find(|read| *read.name == *name)?;
        read.value.filter(|_| at.since(read.at) < FRESH)
    }

    /// The mean over the sessions that push it, so that one hanging process does not stand for the pool.
    fn pushed(&self, name: &str, at: Timestamp) -> Option<u32> {
        let fresh = self.pushed.iter().filter(|pushed| *pushed.name == *name && at.since(pushed.at) < FRESH);
        let (count, sum) =
            fresh.fold((0, 0), |(count, sum), pushed| (count + 1, sum + u32::from(pushed.permille)));
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

#[cfg(test)]
mod tests {
    use super::{SESSION_PUSHED_MAX, SignalReadings};
    use crate::clock::Timestamp;

    #[test]
    fn bounds_names_pushed_by_one_session() {
        let mut signals = SignalReadings::default();
        for name in 0..1_000 {
            signals.push(&format!("s{name}"), 1, 500, Timestamp::ORIGIN);
        }
        assert_eq!(signals.pushed.len(), SESSION_PUSHED_MAX);
        signals.push("lag", 2, 500, Timestamp::ORIGIN);
        assert_eq!(signals.pushed("lag", Timestamp::ORIGIN), Some(500), "another session has its own names");
    }
}
