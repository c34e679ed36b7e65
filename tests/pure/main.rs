//! Tests without a daemon or Redis: the libraries of the rooms, the commands that read files, and the sources
//! themselves.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    clippy::cast_lossless,
    reason = "a test fails by panicking, prints its figures, and counts what fits"
)]

#[path = "../support/bench.rs"]
#[allow(dead_code, reason = "shared by the test programs")]
mod bench;
#[path = "../support/completions.rs"]
mod completions;
#[path = "../support/definition.rs"]
mod definition;
#[path = "../support/docs.rs"]
mod docs;
#[path = "../support/engines.rs"]
mod engines;
#[path = "../support/golden.rs"]
mod golden;
#[path = "../support/problems.rs"]
mod problems;
#[path = "../support/rng.rs"]
mod rng;

mod architecture;
mod check;
mod console;
mod descriptors;
mod diagnostics;
mod docs_snippets;
mod doctor;
mod engine;
mod fair_queue;
mod fleet;
mod fuzz;
mod generate;
mod help;
mod limit;
mod memory_max;
mod page;
mod replay;
mod rules;
mod select;
mod settings;
mod shed;
mod state;
mod switches;
mod vectors;
mod views;
mod work;
