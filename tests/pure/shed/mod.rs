//! The promises of shedding as arithmetic: the tables of the law, what absurd readings do, and shares that are kept. A
//! failing property prints its seed and its smallest case.

mod brake;
mod draw;
mod heavy;
mod hint;
mod law_properties;
mod simple;
mod slow_law;
mod window;

use std::time::Duration;

use tidegate::clock::Timestamp;

fn at_millis(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis * 1_000_000)
}

const SECOND: Duration = Duration::from_secs(1);
