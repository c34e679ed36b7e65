//! Snapshots of an engine in virtual time, and their files.

mod clocks;
mod damage;
mod fixture;
mod pools;
mod resumed;
