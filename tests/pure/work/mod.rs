//! Leases in virtual time: they begin and end as they should, and free their permits once.

mod ends;
mod fixture;
mod limits;
mod model;
mod repeats;
mod reserve;
mod shedding;
mod totals;
mod views;
