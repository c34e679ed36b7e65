//! Tests concurrency over many hosts in virtual time: real engines and sync, leases with durations, and a
//! Redis model that runs the rules of the scripts.

mod figures;
mod host;
mod world;
