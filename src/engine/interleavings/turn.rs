//! Keys that are known by another digest, beside whoever tells others of them.

use super::{SECOND, beside, check, engine_without_rules, rules};
use crate::clock::Now;
use crate::engine::{Descriptors, HashKey, Op, Request};
use std::sync::Arc;

#[test]
fn no_key_calls_by_its_new_digest_of_which_it_is_not_told() {
    check(|| {
        let engine = engine_without_rules(1 << 20);
        let standing =
            engine.join_fleet_with([8, 9].map(|secret| HashKey::from_bytes([secret; 16])).to_vec());
        standing.set_hosts(2);
        standing.set_linked(true);
        engine.install(rules(
            "  - {name: a, key: [x], rate: 10/h, burst: 10, scope: fleet, fleet: {on_miss: refuse}}\n",
        ));
        engine.use_secret(1, Some(0));
        let (asking, telling) = (Arc::clone(&engine), Arc::clone(&engine));
        let asks = move || {
            let request = Request::new(Op::Hit, "api", Descriptors::one(&[("x", "1")]));
            asking.decider().decide(&request, Now::at_nanos(SECOND));
            0
        };
        let tells = move || {
            let (mut calls, mut moved) = (Vec::new(), Vec::new());
            telling.take_calls_and_moved(&mut calls, &mut moved);
            assert!(
                calls.iter().all(|key| moved.iter().any(|moved| moved.key == *key)),
                "{calls:?} {moved:?}"
            );
            calls.len()
        };
        let said: usize = beside(vec![Box::new(asks), Box::new(tells)]).into_iter().sum();
        let mut calls = Vec::new();
        engine.take_calls(&mut calls);
        assert_eq!(said + calls.len(), 1, "it calls once");
    });
}
