//! RESTARTS: what is kept on disk, so that a restart loses nothing. It decides nothing, and what is wrong here never stops
//! a start.

mod whole;

pub use whole::{Whole, write_whole};
