//! THE MACHINE: accept queues, pressure and CPU time into readings. Nothing here decides, nor does a decision wait
//! for anything here.

mod accept_queue;
mod control_group;
mod cpu;
mod cpu_quota;
mod machine;
pub mod netlink;
mod pressure;
mod process;
mod pseudofile;
mod resident;
mod sampler;
mod sensor;
mod sensors;
mod sock_diag;
mod unreadable;
mod window;

pub use machine::machine_marks;
pub use resident::resident_bytes;
pub use sampler::Sampler;
pub use sensors::Sensors;

pub use crate::engine::{Listen, Source, Wanted};

use crate::clock::Now;
use crate::engine::Engine;

/// Who wants readings and is told them.
pub trait Readings: Send + Sync {
    /// What is to be read, as of now.
    fn wanted(&self) -> Vec<Wanted>;

    /// A reading: connections that wait for an accept queue, else thousandths; none: it cannot be read.
    fn observe(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now);
}

impl Readings for Engine {
    fn wanted(&self) -> Vec<Wanted> {
        self.wanted_readings()
    }

    fn observe(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now) {
        Engine::observe(self, pool, signal, reading, now);
    }
}
