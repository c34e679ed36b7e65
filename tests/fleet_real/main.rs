//! One budget over real daemons and a real redis-server, with faults between them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says its figures"
)]

mod asking;
mod calm;
#[path = "../support/certificates.rs"]
mod certificates;
#[path = "../server/daemon.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod daemon;
mod faults;
mod fitting;
mod hostile;
mod hosts;
#[path = "../admin/http.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod http;
mod leaving;
#[path = "../support/liar.rs"]
mod liar;
mod lies;
#[path = "../server/msgpack.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod msgpack;
mod overrides;
mod places;
mod proxy;
#[path = "../support/cluster.rs"]
mod redis_cluster;
#[path = "../support/redis.rs"]
mod redis_server;
mod regions;
mod reserve;
mod shards;
mod together;
mod trust;
mod turn;
mod twenty;
mod waiting;
mod way;
mod windows;
#[path = "../server/wire.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod wire;
