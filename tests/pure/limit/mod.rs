//! The promises of the algorithms: tables for what a reader wants to see, properties against exact references for the
//! rest. A failing property prints its seed and its smallest case.

mod concurrency;
mod error;
mod fixed_window;
mod fixed_window_calendar;
mod fixed_window_traces;
mod folded;
mod leaky_bucket;
mod log_traces;
mod permits;
mod quota;
mod share;
mod sliding_log;
mod sliding_window;
mod token_bucket_moves;
