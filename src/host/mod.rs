//! THE MACHINE: samples accept queues, pressure and CPU time as signals. This room decides nothing, and no decision waits
//! for it.

mod accept_queue;
mod control_group;
mod cpu;
mod cpu_quota;
mod machine;
pub mod netlink;
mod pressure;
mod process_groups;
mod pseudofile;
mod resident;
mod sampler;
mod sensor;
mod sensors;
mod signal_error;
mod sock_diag;
mod usage_window;

pub use machine::machine_marks;
pub use resident::resident_bytes;
pub use sampler::Sampler;
pub use sensors::Sensors;

pub use crate::engine::{HostSignals, Listen, SignalSource};

use crate::clock::Now;
use crate::engine::Engine;

/// The receiver of samples, which also selects the signals to sample.
pub trait Readings: Send + Sync {
    /// Returns the signals to sample now.
    fn wanted(&self) -> Vec<HostSignals>;

    /// Takes a sample: waiting connections for an accept queue, else thousandths; `None` if it cannot be read.
    fn observe(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now);
}

impl Readings for Engine {
    fn wanted(&self) -> Vec<HostSignals> {
        self.wanted_readings()
    }

    fn observe(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now) {
        Engine::observe(self, pool, signal, reading, now);
    }
}
