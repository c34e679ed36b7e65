//! The arithmetic of shedding: the tables of the controller, absurd readings, and reserved shares. A failing
//! property prints its seed and its smallest case.

mod brake;
mod draw;
mod heavy;
mod law;
mod simple;
mod window;

use std::time::Duration;

use tidegate::clock::Timestamp;

fn at_millis(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis * 1_000_000)
}

const SECOND: Duration = Duration::from_secs(1);
