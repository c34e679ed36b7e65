//! Tests one budget over real daemons and a real redis-server, with faults between them.

use crate::{certificates, daemon, http, liar, msgpack, redis_cluster, redis_server, wire};
mod faults;
mod hostile;
mod hosts;
mod leaving;
mod lies;
mod overrides;
mod permits;
mod regions;
mod reserve;
mod shards;
mod together;
mod trust;
mod waiting;
mod way;
mod windows;
