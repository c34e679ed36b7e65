//! RESTARTS: what is kept on disk, so that a restart loses nothing. It decides nothing, and what is wrong here never stops
//! a start.

mod switches;
mod whole;

pub use switches::{Unreadable, read_orders, write_orders};
pub use whole::{Whole, write_whole};
