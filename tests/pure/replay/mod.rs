//! `tidegate replay`: the real program runs the daemon's engine on small traces, in virtual time.

mod access_lines;
mod combined;
mod lines;
mod records;
mod report;
mod shedding;
mod suggest;
mod support;
