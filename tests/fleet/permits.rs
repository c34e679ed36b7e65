//! Work at once over many hosts, in virtual time: real engines and the real talk with Redis of each, work that takes its
//! time, and a Redis that runs the rules of the scripts.

mod figures;
mod host;
mod random_runs;
mod world;
