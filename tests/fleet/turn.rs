//! All hosts turn to another secret, while they are asked for twice what there is: there is one budget at every moment.

use tidegate::fleet::secrets::Mark;

use crate::plan::{Crash, Faults, Plan, Rollout, Shape, runs, seed};
use crate::random::Random;
use crate::world::{SECRET, World, run};

const OLD: u8 = SECRET;
const NEW: u8 = 77;

/// Hosts are started anew one by one with these secrets, each so long after the one before.
fn rollout(hosts: u32, from_ms: u64, apart_ms: u64, secrets: &[u8]) -> impl Iterator<Item = Rollout> {
    let one = move |host: u32| (host, from_ms + u64::from(host) * apart_ms);
    let secrets = secrets.to_vec();
    (0..hosts).map(one).map(move |(host, at_ms)| Rollout { host, at_ms, secrets: secrets.clone() })
}

/// Both secrets everywhere, the new one first; and, when all have turned, the old one away.
fn plan(hosts: u32, faults: Faults) -> Plan {
    let mut faults = Faults { alone_refuses: true, ..faults };
    faults.rollouts.extend(rollout(hosts, 2_000, 700, &[NEW, OLD]));
    let turned_ms = 2_000 + u64::from(hosts) * 700 + 5_000;
    faults.rollouts.extend(rollout(hosts, turned_ms + 3_000, 700, &[NEW]));
    let ms = turned_ms + 3_000 + u64::from(hosts) * 700 + 3_000;
    Plan { ms, credit: 0, faults, ..Plan::cell(hosts, Shape::Even, 2_000) }
}

fn uses(world: &World<'_>, secret: u8) -> bool {
    let mark = Mark::of_digest([secret; 8]);
    let at = tidegate::clock::Now::default();
    world.hosts().all(|host| host.turning.view(at).uses == Some(mark))
}

fn check(plan: &Plan) {
    let world = run(plan);
    let seen = world.measure.seen();
    println!("{seen}");
    assert!(seen.excess <= 0.001, "{} tokens beyond one budget: {plan:#?}", seen.excess);
    assert!(uses(&world, NEW), "all have come to it: {plan:#?}");
}

#[test]
fn hosts_turn_together_and_there_is_one_budget_throughout() {
    for hosts in [2, 5] {
        let plan = plan(hosts, Faults::default());
        check(&plan);
    }
}
