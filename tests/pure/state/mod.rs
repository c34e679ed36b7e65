//! Snapshots of an engine in virtual time, and their files.

mod beside;
mod clocks;
mod damage;
mod fixture;
mod pools;
mod twins;
mod whole;
