//! THE MACHINE: samples accept queues, pressure and CPU time as signals. This room decides nothing, and no decision waits
//! for it.

mod accept_queue;
mod control_group;
mod cpu_quota;
mod machine;
pub mod netlink;
mod pressure;
mod pseudofile;
mod sensors;
mod signal_error;
mod usage_window;

pub use machine::{read_machine_marks, read_resident_bytes};
pub use sensors::{SignalSampler, SignalSensors};

pub use crate::engine::{HostSignals, Listen, SignalSource};

use crate::clock::Now;
use crate::engine::Engine;

/// The receiver of samples, which also selects the signals to sample.
pub trait SignalSink: Send + Sync {
    /// Returns the signals to sample now.
    fn wanted_signals(&self) -> Vec<HostSignals>;

    /// Takes a sample: waiting connections for an accept queue, else thousandths; `None` if it cannot be read.
    fn add_sample(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now);
}

impl SignalSink for Engine {
    fn wanted_signals(&self) -> Vec<HostSignals> {
        self.required_host_signals()
    }

    fn add_sample(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now) {
        Engine::record_host_signal(self, pool, signal, reading, now);
    }
}
