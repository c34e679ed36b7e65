//! Snapshots of an engine in virtual time, and their files.

mod beside;
mod clocks;
mod damage;
mod office;
mod pools;
mod twins;
mod whole;
