//! THE KERNEL: the few calls no crate offers safely. The only `unsafe`, each with its proof.
#![allow(unsafe_code)]

mod readable;
mod scheduler;

pub use readable::register;
pub use scheduler::ask_for_short_slice;
