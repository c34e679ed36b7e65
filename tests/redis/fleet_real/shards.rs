//! Tests several servers: keys over all of them, and a region, with its own server and a portion of every budget.

use super::hosts::{CUT_OFF, LINKED, plan, rules};
use super::redis_cluster::Three;
use crate::prelude::*;

/// One server is down for a while: an outage for all keys. `redis` names all of the servers.
fn loses_one(redis: &str, servers: &mut [Redis; 3]) {
    let plan = Plan::new().rules("api.yaml", &rules("100/s", 100, ""));
    fs::write(plan.path("secret"), [7; 32]).unwrap();
    let host = plan.settings(&format!("redis: {{{redis}, fleet_secret_files: [secret]}}")).start();
    host.await_log(&[LINKED]);
    servers[1].kill();
    host.await_log(&[CUT_OFF, "down"]);
    servers[1].restart(None);
    host.await_log(&["Redis answers again"]);
}

/// The other masters go on serving their slots.
#[test]
fn loss_of_one_master_of_a_cluster_is_an_outage() {
    let mut cluster = Three::start();
    for server in &cluster.0 {
        server.order("CONFIG SET cluster-require-full-coverage no");
    }
    let url = format!("url: \"redis://127.0.0.1:{}\", cluster: true", cluster.0[0].port);
    loses_one(&url, &mut cluster.0);
}

#[test]
fn loss_of_one_of_three_servers_is_an_outage() {
    let mut servers: [Redis; 3] = std::array::from_fn(|_| Redis::start(&[]));
    let urls = servers.each_ref().map(|server| format!("\"{}\"", server.url())).join(", ");
    loses_one(&format!("urls: [{urls}]"), &mut servers);
}

#[test]
fn region_has_its_part_of_the_budget() {
    let redis = Redis::start(&[]);
    let rules = rules("1/h", 40, "wait: 50ms, on_redis_down: refuse");
    let host = plan(&redis.url(), &rules, ", region_weight: 25%").start();
    host.await_log(&[LINKED]);
    assert!((1..=10).contains(&host.greeted().allowed("u1", 60)));
}
