//! THE MACHINE: accept queues, pressure and CPU time into readings. Nothing here decides, nor does a decision wait
//! for anything here.

mod accept_queue;
mod control_group;
mod cpu;
mod cpu_quota;
pub mod netlink;
mod pressure;
mod process;
mod pseudofile;
mod sampler;
mod sensor;
mod sensors;
mod sock_diag;
mod unreadable;
mod window;

pub use sampler::Sampler;
pub use sensors::Sensors;

pub use crate::engine::{Listen, Source};

use crate::clock::Now;

/// One reading that the rules in force ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Whose reading it is.
    pub pool: Box<str>,
    /// The signal's name.
    pub signal: Box<str>,
    /// What is read.
    pub source: Source,
    /// A live process of the pool: its control group is the application's.
    pub pid: Option<u32>,
}

/// Who wants readings and is told them.
pub trait Readings: Send + Sync {
    /// What is to be read, as of now.
    fn wanted(&self) -> Vec<Wanted>;

    /// A reading: connections that wait for an accept queue, else thousandths; none: it cannot be read.
    fn observe(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now);
}
