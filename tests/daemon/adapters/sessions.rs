//! Named sessions: leases end by release or with their session.

use super::{connect, exchange, post, with_http};
use crate::prelude::*;

fn acquire(daemon: &Daemon, session: &str) -> Value {
    let head = format!("tidegate-session: {session}");
    post(daemon, "/v1/acquire", &[&head], &json!({"domain": "shop", "attributes": {"job": "j"}})).json()
}

fn release(daemon: &Daemon, session: &str, lease: &Value) -> Value {
    let head = format!("tidegate-session: {session}");
    post(daemon, "/v1/release", &[&head], &json!({"lease": lease, "outcome": "error"})).json()["ok"].clone()
}

#[test]
fn keeps_leases_between_connections_of_a_session() {
    let daemon = with_http("");
    let granted = acquire(&daemon, "one");
    assert_eq!(granted["verdict"], "allow", "{granted}");
    let lease = &granted["lease"];
    assert!(lease.as_str().is_some_and(|lease| lease.parse::<u64>().is_ok()), "{granted}");
    for session in ["one", "two"] {
        assert_eq!(acquire(&daemon, session)["verdict"], "limit", "{session}");
    }
    assert_eq!(release(&daemon, "two", lease), false, "another session's");
    assert_eq!([release(&daemon, "one", lease), release(&daemon, "one", lease)], [true, false]);
    assert_eq!(acquire(&daemon, "two")["verdict"], "allow");
    assert_eq!(metric(&daemon, "tidegate_http_sessions"), Some(2.0));
    // One connection may carry several sessions.
    let mut http = connect(&daemon);
    let body = json!({"domain": "shop", "attributes": {"job": "other"}}).to_string();
    for (session, verdict) in [("a", "allow"), ("b", "limit"), ("a", "limit")] {
        let head = format!("tidegate-session: {session}");
        assert_eq!(
            exchange(&mut http, "POST /v1/acquire", &[&head], &body).json()["verdict"],
            verdict,
            "{session}"
        );
    }
}

#[test]
#[cfg(debug_assertions)]
fn ends_leases_of_sessions_that_are_not_used() {
    let plan = Plan::new().shell("TIDEGATE_DEBUG_SESSION_MS=1500 TIDEGATE_DEBUG_PATIENT=1 exec \"$@\"");
    let daemon = super::start(plan, "");
    assert_eq!(acquire(&daemon, "one")["verdict"], "allow");
    wait_until("the session is forgotten", || metric(&daemon, "tidegate_http_sessions") == Some(0.0));
    wait_until("its lease ends", || acquire(&daemon, "two")["verdict"] == "allow");
    assert_eq!(metric(&daemon, "tidegate_lease_ended_total{reason=\"session\"}"), Some(1.0));
}

#[test]
fn limits_the_sessions_of_a_user() {
    let daemon = with_http("");
    let mut http = connect(&daemon);
    let body = json!({"domain": "shop"}).to_string();
    let mut hit = |session: usize| {
        let head = format!("tidegate-session: {session}");
        exchange(&mut http, "POST /v1/hit", &[&head], &body)
    };
    for session in 0..256 {
        assert_eq!(hit(session).status, 200, "{session}");
    }
    let refused = hit(256);
    assert_eq!((refused.status, refused.error().contains("too many sessions")), (503, true), "{refused:?}");
    assert_eq!(hit(0).json()["degraded"], false);
}
