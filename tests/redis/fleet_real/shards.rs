//! Tests several servers: keys over all of them, and regions, each with its own and a portion of every budget.

use super::hosts::{
    CUT_OFF, LINKED, ask_all, await_counted, most_at_once, passed, passed_between, plan, rules,
};
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

const RATE: f64 = 400.0;
const BURST: u32 = 200;
const LASTS: Duration = Duration::from_secs(3);

#[test]
fn regions_admit_their_share_of_the_budget() {
    let servers = [Redis::start(&[]), Redis::start(&[])];
    let start = |redis: &Redis, weight: &str| -> Daemon {
        let rules = rules("400/s", BURST, "on_miss: refuse");
        plan(&redis.url(), &rules, &format!(", region_weight: {weight}")).start()
    };
    let hosts = [start(&servers[0], "75%"), start(&servers[0], "75%"), start(&servers[1], "25%")];
    await_counted(&hosts[..2], 2);
    await_counted(&hosts[2..], 1);
    let asked = ask_all(&hosts, 4, Duration::from_millis(10), LASTS);
    let end = asked.iter().flatten().map(|asked| asked.at).max().unwrap();
    let began = asked.iter().flatten().map(|asked| asked.at).min().unwrap();
    let seconds = (end - began) as f64 / 1e9;
    // Replies are stamped on arrival: up to 50 ms late.
    for (part, of, what) in [(&asked[..2], 0.75, "a"), (&asked[2..], 0.25, "b"), (&asked[..], 1.0, "both")] {
        let at = passed(part);
        let most = most_at_once(&at, RATE * of);
        let used = passed_between(&at, began, end + 1) as f64 / (of * (f64::from(BURST) + RATE * seconds));
        eprintln!("{what}: {} passed, {most:.0} at once, {:.1} % used", at.len(), used * 100.0);
        assert!(most <= of * (f64::from(BURST) + RATE / 20.0) + 1.0, "{what}: {most} at once");
        assert!(used > 0.0, "{what}: {used}");
    }
}
