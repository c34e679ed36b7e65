//! The promises of the algorithms, a module each: tables for what a reader wants to see, properties against an exact
//! reference for the rest. A failing property prints its seed and its smallest case.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot be set up has failed")]

mod fixed_window;
mod fixed_window_calendar;
mod fixed_window_traces;
mod leaky_bucket;
mod token_bucket_moves;
