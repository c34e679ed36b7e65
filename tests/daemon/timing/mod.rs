//! Durations compared with those without a fault. These tests run one after another and without others: the
//! stage `timing` of `make test`.

use crate::machine;
use crate::process::tries;
mod fairness;
mod heartbeat;
mod log;
mod many_connections;
mod shares;
mod stops;
