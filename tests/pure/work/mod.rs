//! Leases in virtual time: they begin and end as they should, and free their permits once.

mod ends;
mod model;
mod shedding;
mod totals;
mod views;
