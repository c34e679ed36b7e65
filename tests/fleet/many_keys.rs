//! Tests a bucket with more keys to sync than fit in flight: each key is synced in turn.

use std::collections::HashMap;

use tidegate::fleet::command::ScriptCommand;

use crate::host::Host;
use crate::network::{Event, Network, To};
use crate::plan::{Plan, Shape, runs, seed};
use crate::random::Random;
use crate::store::Store;

/// A host, Redis and the network.
struct Exchange {
    host: Host,
    store: Store,
    network: Network,
    random: Random,
    /// Longest round trip beyond the shortest, µs.
    slow_us: u32,
    us: u64,
    /// Command in which each key is in flight, and since when.
    on_way: HashMap<[u8; 16], (u64, u64)>,
    /// Number of requests for each key.
    asked: HashMap<[u8; 16], u64>,
}

const TO: To = To { host: 0, epoch: 1 };

impl Exchange {
    fn new(seed: u64) -> Exchange {
        let plan = Plan { seed, ..plan() };
        let (host, network, random) = (Host::new(&plan), Network::new(&plan), Random::new(seed, 41));
        let (store, on_way, asked) = (Store::default(), HashMap::new(), HashMap::new());
        let mut exchange = Exchange { host, store, network, random, slow_us: 0, us: 0, on_way, asked };
        exchange.go_on(20, |_, _| {});
        exchange
    }

    /// Runs for `ms` with a host tick every 2 ms; `requests` issues requests before each tick.
    fn go_on(&mut self, ms: u64, mut requests: impl FnMut(&mut Host, u64)) {
        for _ in 0..ms / 2 {
            self.us += 2_000;
            while let Some((at, to, event)) = self.network.next(self.us) {
                match event {
                    Event::AtStore { number, command } => {
                        let reply = self.store.execute(&command, 1_700_000_000_000_000 + at);
                        self.network.reply(to, number, command, reply, at);
                    }
                    Event::AtHost { number, command, reply } => {
                        self.on_way.retain(|_, (sent, _)| *sent != number);
                        self.host.answered(number, &command, reply, self.us);
                    }
                    Event::TimedOut { number } => {
                        self.on_way.retain(|_, (sent, _)| *sent != number);
                        self.host.timed_out(number, self.us);
                    }
                }
            }
            requests(&mut self.host, self.us);
            for command in std::mem::take(self.host.tick(self.us)) {
                self.send(command);
            }
        }
    }

    fn send(&mut self, command: ScriptCommand) {
        self.network.round_trip_us = 1_000 + u64::from(self.random.below(self.slow_us + 1));
        let number = self.network.send(TO, command.clone(), self.us, 250_000);
        if let ScriptCommand::Sync(batch) = &command {
            for ask in &batch.asks {
                let before = self.on_way.insert(ask.key, (number, self.us));
                assert!(before.is_none(), "a key in two commands at once");
                *self.asked.entry(ask.key).or_default() += 1;
            }
        }
        self.host.sent(number, command, self.us);
    }
}

fn tenants(count: usize) -> Vec<String> {
    (0..count).map(|tenant| format!("t{tenant}")).collect()
}

/// One bucket for all keys.
fn plan() -> Plan {
    let plan = Plan { rate: 10, burst: 10, credit: 0, buckets: 1, ..Plan::cell(1, Shape::Even, 0) };
    Plan { tenants: KEYS as u32, ..plan }
}

/// All keys are in demand for longer than one round of syncs: each is synced about equally often.
#[test]
fn syncs_excess_keys_equally_often() {
    let mut exchange = Exchange::new(seed());
    let tenants = tenants(KEYS);
    // The limit of commands in flight is too low to sync each key as often as it is due.
    exchange.slow_us = 100_000;
    let demand = |host: &mut Host, us: u64| {
        for (number, tenant) in tenants.iter().enumerate() {
            if us / 2_000 % 25 == number as u64 % 25 {
                host.hit(tenant, us);
            }
        }
    };
    exchange.go_on(1_000, demand);
    let before = exchange.asked.clone();
    exchange.go_on(3_000, demand);
    let since: Vec<u64> =
        exchange.asked.iter().map(|(key, now)| now - before.get(key).copied().unwrap_or(0)).collect();
    let (least, most) = (since.iter().min().unwrap(), since.iter().max().unwrap());
    assert!(since.len() == KEYS && *least >= 9, "asked about {least} to {most} times each");
    assert!(*most <= 4 * least, "asked about {least} to {most} times each");
}

/// After lost and late replies every key is synced again.
#[test]
fn syncs_every_key_after_lost_and_late_replies() {
    for seed in seed()..seed() + runs().div_ceil(100) {
        let mut exchange = Exchange::new(seed);
        let tenants = tenants(KEYS);
        let mut random = Random::new(seed, 42);
        for _ in 0..6 {
            exchange.network.lost = [0, 30, 300][random.below(3) as usize];
            exchange.slow_us = [0, 20_000, 900_000][random.below(3) as usize];
            let of_thousand = [0, 1, 20, 1_000][random.below(4) as usize];
            let every_us = [2_000, 100_000, 700_000][random.below(3) as usize];
            // All keys at each tick would only take time: a key that waits does not wait more.
            let every_us = if of_thousand == 1_000 { every_us.max(20_000) } else { every_us };
            exchange.go_on(700, |host, us| {
                if us.is_multiple_of(every_us) {
                    tenants.iter().filter(|_| random.below(1_000) < of_thousand).for_each(|tenant| {
                        host.hit(tenant, us);
                    });
                }
            });
        }
        (exchange.network.lost, exchange.slow_us) = (0, 0);
        exchange.go_on(2_000, |_, _| {});
        // Some commands may have just been sent.
        let longest = exchange.on_way.values().map(|(_, since)| exchange.us - since).max();
        assert!(longest < Some(10_000), "SEED={seed}: keys that are on their way for ever");
        let mut passed = vec![false; KEYS];
        exchange.go_on(3_000, |host, us| {
            if us.is_multiple_of(100_000) {
                for (tenant, passed) in tenants.iter().zip(&mut passed).filter(|(_, passed)| !**passed) {
                    *passed = host.hit(tenant, us);
                }
            }
        });
        let forgotten = passed.iter().filter(|passed| !**passed).count();
        assert_eq!(forgotten, 0, "SEED={seed} RUNS=1: keys that are never spoken of again");
    }
}

/// The rule is removed while keys wait: none of them is synced any more.
#[test]
fn drops_waiting_keys_of_removed_rule() {
    let mut exchange = Exchange::new(seed());
    exchange.slow_us = 20_000;
    let mut is_first = true;
    exchange.go_on(4, |host, us| {
        if std::mem::take(&mut is_first) {
            tenants(KEYS).iter().for_each(|tenant| {
                host.hit(tenant, us);
            });
        }
    });
    assert!(exchange.asked.len() < KEYS, "they fit on the way at once");
    exchange.host.forget_rules();
    assert!(exchange.host.member.sync.keys() > 0);
    exchange.go_on(1_000, |_, _| {});
    assert_eq!(exchange.host.member.sync.keys(), 0, "keys that wait for ever");
}

/// Three times what fits in flight.
const KEYS: usize = 1_500;
