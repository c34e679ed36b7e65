//! `tidegate replay`: the daemon's own engine on a trace, in virtual time. The real program, run on small files.

mod bad_lines;
mod combined;
mod compare;
mod decisions;
mod leases;
mod reload;
mod report;
mod shedding;
mod suggest;
mod summary;
mod support;
