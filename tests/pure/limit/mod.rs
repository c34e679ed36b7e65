//! Properties of the algorithms: those of all against one exact definition, then those of each. The known
//! examples are in `literature/examples.yaml`. A failing property prints its seed and its smallest case.

mod error;
mod fixed_window;
mod folded;
mod key;
mod leaky_bucket;
mod permits;
mod properties;
mod quota;
mod share;
mod sliding_log;
mod token_bucket;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const DAY: u64 = 86_400 * SECOND;
