//! Envoy's rate limit service: the real binary, asked over gRPC.

use crate::prelude::*;

mod access;
mod client;
mod decisions;
mod limits;

/// Native rules, and a tree. Windows of a year hardly end during a test.
const RULES: &str = "\
domain: shop
deny: [{name: bots, match: {agent: bot}}]
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 2}
  - {name: hidden, key: [card], rate: 1/h, burst: 1, advertise: false}
descriptors:
  - {key: plan, value: free, rate_limit: {unit: year, requests_per_unit: 3, name: free}}
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: beta, shadow_mode: true, rate_limit: {unit: week, requests_per_unit: 1}}
  - {key: staff, rate_limit: {unlimited: true, replaces: [{name: free}]}}
  - {key: closed, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: file, value: \"a*\", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 4}}
  - key: tenant
    descriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 1}}]
";

/// A patient daemon with the service on a socket.
fn with_envoy() -> Daemon {
    start(super::patient(RULES))
}

fn start(plan: Plan) -> Daemon {
    let daemon = plan.rules("shop.yaml", RULES).settings("adapters: {envoy: {socket: envoy.sock}}").start();
    daemon.await_log(&["Envoy's rate limit service is served", "socket="]);
    daemon
}
