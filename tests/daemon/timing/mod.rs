//! How long something takes beside the same without a fault. These run one after another, and beside nothing else: the
//! stage `timing` of `make test`.

use crate::process::{metric, tries};
use crate::{daemon, http, machine, msgpack, wire};
mod crowds;
mod fairness;
mod heartbeat;
mod log;
mod shares;
pub(crate) mod stops;
