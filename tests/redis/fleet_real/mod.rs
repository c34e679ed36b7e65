//! Tests one budget over real daemons and a real redis-server, with faults between them.

use crate::{certificates, http, liar, redis_cluster};
mod faults;
mod forged_replies;
mod hosts;
mod leaving;
mod numbers;
mod overrides;
mod permits;
pub(crate) mod proxy;
mod remote_checks;
mod reserve;
mod secrets;
mod shards;
