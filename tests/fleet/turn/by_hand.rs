//! Turns by hand: each millisecond every host says what is due, and is answered at once, but for what a test keeps back.

use tidegate::fleet::call::Call;
use tidegate::fleet::reply::Reply;
use tidegate::fleet::secrets::{Agreed, Mark};
use tidegate::limit::share::Asks;

use super::{NEW, OLD, START_US};
use crate::host::Host;
use crate::plan::{Faults, Plan, Rollout, Shape};
use crate::store::Store;

/// So many a day for all hosts, of which nothing is earned again while a test lasts.
fn of_a_day(burst: u32, asks: Asks) -> Plan {
    // That hosts say which secrets they have.
    let rollouts = vec![Rollout { host: 0, at_ms: 0, secrets: vec![OLD, NEW] }];
    let faults = Faults { alone_refuses: true, rollouts, ..Faults::default() };
    Plan {
        rate: burst,
        burst,
        period_s: 86_400,
        credit: 0,
        asks,
        faults,
        ..Plan::cell(2, Shape::Even, 1_000)
    }
}

struct Fleet {
    hosts: Vec<Host>,
    store: Store,
    agreed: Agreed,
    ms: u64,
    said: u64,
    /// Calls that were done, and of which the host has not heard yet.
    kept_back: Vec<(usize, u64, Call, Reply)>,
}

impl Fleet {
    /// Hosts with these secrets, which all go by the old one.
    fn new(plan: &Plan, secrets: &[&[u8]]) -> Fleet {
        let host = |(secrets, number): (&&[u8], u32)| Host::with_secrets(secrets, plan, (number, 1), 0, 0);
        let hosts = secrets.iter().zip(0..).map(host).collect();
        let agreed = Agreed { before: None, uses: mark(OLD), from_us: START_US, lacking: 0, who: Vec::new() };
        let mut fleet =
            Fleet { hosts, store: Store::default(), agreed, ms: 0, said: 0, kept_back: Vec::new() };
        fleet.go_on(1_000);
        fleet
    }

    fn us(&self) -> u64 {
        self.ms * 1_000
    }

    /// All are told that they turn to another secret in three seconds.
    fn agree_on(&mut self, secret: u8) {
        let (before, from_us) = (Some(self.agreed.uses), START_US + self.us() + 3_000_000);
        self.agreed = Agreed { before, uses: mark(secret), from_us, ..self.agreed.clone() };
    }

    /// All turn to another secret.
    fn turn_to(&mut self, secret: u8) {
        self.agree_on(secret);
        self.go_on(3_000);
    }

    fn go_on(&mut self, ms: u64) {
        self.for_but(ms, |_, _| false);
    }

    /// What is kept back is done, and its answer is on its way.
    fn for_but(&mut self, ms: u64, is_kept_back: impl Fn(usize, &Call) -> bool) {
        for _ in 0..ms {
            self.ms += 1;
            (0..self.hosts.len()).for_each(|host| self.talk(host, &is_kept_back));
        }
    }

    fn talk(&mut self, host: usize, is_kept_back: &impl Fn(usize, &Call) -> bool) {
        let us = self.us();
        loop {
            let calls = std::mem::take(self.hosts[host].tick(us));
            if calls.is_empty() {
                return;
            }
            for call in calls {
                self.said += 1;
                let mut reply = self.store.call(&call, START_US + us);
                if let Reply::Beat(beaten) = &mut reply {
                    beaten.agreed = Some(self.agreed.clone());
                }
                self.hosts[host].sent(self.said, call.clone(), us);
                if is_kept_back(host, &call) {
                    self.kept_back.push((host, self.said, call, reply));
                } else {
                    self.hosts[host].answered(self.said, &call, reply, us);
                }
            }
        }
    }

    /// A host gives back what it has in hand.
    fn leave(&mut self, host: usize) {
        let (us, mut calls) = (self.us(), Vec::new());
        let now = self.hosts[host].now(us);
        while self.hosts[host].member.leave(now, &mut calls) {
            assert!(!calls.is_empty(), "all is answered at once");
            for call in std::mem::take(&mut calls) {
                let reply = self.store.call(&call, START_US + us);
                self.hosts[host].member.answered(&call, reply, now, &mut calls);
            }
        }
    }

    /// The first of the answers that were kept back comes.
    fn hear_first(&mut self) {
        let us = self.us();
        let (host, number, call, reply) = self.kept_back.remove(0);
        self.hosts[host].answered(number, &call, reply, us);
    }

    /// Whether a request passes, which may wait.
    fn passes(&mut self, host: usize) -> bool {
        let tenants = ["t0".to_owned()];
        let us = self.us();
        let mut passed = self.hosts[host].ask(0, &tenants, us);
        while passed.is_none() {
            self.go_on(1);
            let us = self.us();
            passed = self.hosts[host].answers(&tenants, us).pop().map(|(_, passed)| passed);
        }
        passed == Some(true)
    }

    /// A request comes, and its client does not wait for what becomes of it.
    fn asks(&mut self, host: usize) {
        let us = self.us();
        assert_eq!(self.hosts[host].ask(0, &["t0".to_owned()], us), None, "it waits");
    }

    /// How many of a hundred requests pass, which come so many milliseconds apart and wait for nothing.
    fn hits(&mut self, host: usize, apart_ms: u64) -> u32 {
        (0..100).map(|_| self.hit(host, "t0", apart_ms)).sum()
    }

    /// Whether a request passes, after so long: one, or none.
    fn hit(&mut self, host: usize, tenant: &str, after_ms: u64) -> u32 {
        self.go_on(after_ms);
        let us = self.us();
        self.hosts[host].hit(tenant, us).into()
    }
}

fn mark(secret: u8) -> Mark {
    Mark::of_digest([secret; 8])
}

fn is_lift(call: &Call) -> bool {
    matches!(call, Call::Lift(_))
}

fn is_plant(call: &Call) -> bool {
    matches!(call, Call::Plant(_))
}

#[test]
fn a_cell_on_its_way_when_all_turn_once_more_keeps_no_request_waiting() {
    for is_on_way in [true, false] {
        let mut fleet = Fleet::new(&of_a_day(3, Asks::Always), &[&[OLD, NEW]]);
        assert!(fleet.passes(0));
        fleet.turn_to(NEW);
        fleet.asks(0);
        fleet.for_but(100, |_, call| is_lift(call));
        if !is_on_way {
            let us = fleet.us();
            fleet.hosts[0].timed_out(fleet.kept_back[0].1, us);
        }
        fleet.agree_on(OLD);
        fleet.for_but(3_000, |_, call| is_lift(call));
        let passed = [(); 4].map(|()| fleet.passes(0));
        assert_eq!(passed, [true, true, false, false], "two are left, on its way: {is_on_way}");
    }
}

#[test]
fn a_key_that_moves_once_more_while_its_cell_is_written_is_asked_about_once_that_is_done() {
    let mut fleet = Fleet::new(&of_a_day(4, Asks::Always), &[&[OLD, NEW], &[OLD, NEW]]);
    assert!(fleet.passes(1));
    fleet.turn_to(NEW);
    fleet.asks(0);
    fleet.for_but(1, |_, call| is_plant(call));
    // What this host knew of the key was nothing yet, and went.
    for second in 0..200 {
        let now = fleet.hosts[0].now(fleet.us() + second * 1_000_000);
        fleet.hosts[0].engine.sweep(now);
    }
    assert_eq!(fleet.hosts[0].engine.keys(), 0);
    fleet.asks(0);
    fleet.go_on(1);
    fleet.hear_first();
    let passed = [(); 3].map(|()| fleet.passes(0));
    assert_eq!(passed, [true, false, false], "the two that went before paid as well");
}

/// Of the two names of a key one is asked about after the other, and then the first again.
#[test]
fn what_was_asked_of_cells_before_another_turn_is_not_heard_after_it() {
    let kinds: [fn(&Call) -> bool; 2] = [is_lift, is_plant];
    for (before, since) in [(kinds[0], kinds[1]), (kinds[1], kinds[0])] {
        let mut fleet = Fleet::new(&of_a_day(4, Asks::Always), &[&[OLD, NEW], &[OLD, NEW]]);
        assert!(fleet.passes(1));
        fleet.turn_to(NEW);
        fleet.asks(0);
        fleet.for_but(1, |host, call| host == 0 && before(call));
        assert_eq!(fleet.kept_back.len(), 1);
        assert!(fleet.passes(1) && fleet.passes(1));
        fleet.turn_to(OLD);
        fleet.asks(0);
        fleet.for_but(1, |_, call| since(call));
        assert_eq!(fleet.kept_back.len(), 2);
        // What it asked before is answered, and then what it has asked since.
        fleet.hear_first();
        fleet.go_on(20);
        fleet.hear_first();
        let passed = [(); 4].map(|()| fleet.passes(0));
        assert_eq!(passed, [true, false, false, false], "three were spent elsewhere");
    }
}

#[test]
fn what_a_decision_that_began_before_the_turn_asks_for_by_the_old_name_is_not_had() {
    for is_in_touch in [true, false] {
        let mut fleet = Fleet::new(&of_a_day(20, Asks::Never), &[&[OLD, NEW], &[OLD, NEW]]);
        if is_in_touch {
            assert_eq!(fleet.hit(0, "t1", 1), 0, "nothing is in hand");
        }
        fleet.turn_to(NEW);
        let mut passed = fleet.hits(1, 1);
        // It goes by the name that the key had when it began.
        fleet.hosts[0].engine.use_secret(0, None);
        assert_eq!(fleet.hit(0, "t0", 0), 0, "nothing is in hand");
        fleet.hosts[0].engine.use_secret(1, Some(0));
        passed += fleet.hits(0, 1) + fleet.hits(1, 10);
        assert_eq!(passed, 20, "in touch about another key: {is_in_touch}");
    }
}

/// It was told of by the old name, and is told of by the new one: what comes back of it finds room.
#[test]
fn what_a_host_holds_over_the_turn_is_not_counted_twice() {
    let mut fleet = Fleet::new(&of_a_day(100, Asks::Never), &[&[OLD, NEW], &[OLD, NEW]]);
    fleet.agree_on(NEW);
    fleet.go_on(2_800);
    let mut passed: u32 = (0..10).map(|_| fleet.hit(0, "t0", 20)).sum();
    fleet.go_on(1);
    let (held, _) = fleet.hosts[0].has(fleet.us());
    assert!(held > 2, "{held} in hand");
    passed += fleet.hit(0, "t0", 0);
    fleet.go_on(20);
    fleet.leave(0);
    passed += fleet.hits(1, 1) + fleet.hits(1, 10);
    assert_eq!(passed, 100);
}

#[test]
fn a_host_without_the_secret_that_the_others_turn_to_goes_on_with_its_budget() {
    for secrets in [&[OLD][..], &[OLD, NEW + 1]] {
        let plan = Plan { rate: 1_000, burst: 1_000, period_s: 1, ..of_a_day(1, Asks::Never) };
        let mut fleet = Fleet::new(&plan, &[secrets]);
        fleet.hits(0, 1);
        fleet.agree_on(NEW);
        for tenths in 0..100 {
            let passed = fleet.hits(0, 1);
            assert!(passed > 90, "{passed} of a hundred, {tenths} tenths of a second on");
        }
    }
}

#[test]
fn a_key_that_nobody_asked_for_between_two_turns_is_asked_about_as_before() {
    let mut fleet = Fleet::new(&of_a_day(1_000, Asks::Never), &[&[OLD, NEW]]);
    assert!(fleet.hits(0, 1) > 50);
    fleet.turn_to(NEW);
    fleet.go_on(4_100);
    assert_eq!(fleet.hosts[0].member.sync().keys(), 0, "nothing is said of it any more");
    fleet.turn_to(OLD);
    fleet.go_on(1_000);
    let passed = fleet.hits(0, 1);
    assert!(passed > 50, "{passed}");
}
