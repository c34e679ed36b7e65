//! Work in progress, in virtual time: leases begin and end as they should, and what they hold goes back, each once.

use crate::engines;
mod ends;
mod limits;
mod model;
mod office;
mod repeats;
mod reserve;
mod shedding;
mod totals;
mod views;
