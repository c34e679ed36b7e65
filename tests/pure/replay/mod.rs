//! `tidegate replay`: the real program runs the daemon's engine on small traces, in virtual time.

mod combined;
mod compare;
mod reload;
mod report;
mod shedding;
mod suggest;
mod summary;
mod support;
