//! When a key needs a command, and what it says: one key of a host, its state set by hand.

use super::{KeySync, NextAction, Pace, cell_quota};
use crate::clock::{Now, Timestamp};
use crate::engine::{
    self, Descriptors, Engine, FleetBudget, HashKey, Mode, NextIncrease, Op, Request, ShareReport, SharedKey,
};
use crate::fleet::cell::{CellReply, CellReport, CellRequest, LastReply, TOKEN};
use crate::fleet::command::Bucket;
use crate::rules::read_text;
use std::sync::Arc;
use std::time::Duration;

/// A rule without remote checks: hosts pass what they hold.
const BORROWS: &str = "rate: 1000/s, fleet: {on_miss: refuse}";

/// The same with credit: a request passes where a host holds too few tokens.
const ADMITS: &str = "rate: 1000/s, fleet: {on_miss: admit}";

/// The default: such a request waits for Redis.
const ASKS: &str = "rate: 1000/s";

/// A host of a fleet with this rule, linked to Redis.
fn engine(rule: &str) -> Arc<Engine> {
    let rules = format!("domain: api\nlimits: [{{name: r, key: [user], scope: fleet, {rule}}}]\n");
    let loaded = read_text("rules.yaml", &rules);
    assert!(!loaded.has_errors(), "{:?}", loaded.problems);
    let hash_key = HashKey::from_bytes([1; 16]);
    let options = engine::EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 20 };
    let engine = Arc::new(Engine::new(options));
    let status = engine.join_fleet(HashKey::from_bytes([2; 16]));
    engine.install_rules(loaded.domains);
    status.set_redis_reachable(true);
    engine
}

/// The key of a caller.
fn key() -> SharedKey {
    let engine = engine(BORROWS);
    let request = Request::new(Op::Hit, "api", Descriptors::from_attributes(&[("user", "u")]));
    let _ = engine.decider().decide(&request, Now::at_nanos(0));
    let mut keys: Vec<SharedKey> = Vec::new();
    engine.take_due_share_keys(&mut keys);
    let [key] = keys[..] else { panic!("{keys:?}") };
    key
}

/// A key in use, of a budget of 1 000 a second and a burst of 1 000 that two hosts share: here 100 requests a second came of
/// late, there as many. The last command was sent 50 ms ago.
struct Case {
    sync: KeySync,
    there: ShareReport,
    budget: FleetBudget,
    pace: Pace,
}

impl Case {
    /// Makes it with changes, such as `borrowed 7, asked 250`: times are in milliseconds, before or after now.
    fn new(rule: &str, changes: &str) -> Case {
        let budget = engine(rule).fleet_budgets().values().next().unwrap().clone();
        let there = ShareReport { borrowed: 15, requested: 5, ..ShareReport::default() };
        let pace = Pace { now: NOW, hosts: 2, round_trip: ms(1), others_are_away: false };
        let mut sync = KeySync {
            last: Some(CellReport { hold: 15 * TOKEN, demand: 100_000, generation: 1 }),
            sent_at: Some(ago(50)),
            demand: 100_000,
            level: 100 * TOKEN.cast_signed(),
            fleet_demand: 200_000,
            users: 2,
            requests_sent: 5,
            measured: (5, NOW),
            ..KeySync::new(key(), &budget, Bucket(0), NOW)
        };
        if rule == ADMITS {
            sync.level = 500 * TOKEN.cast_signed();
        }
        let mut case = Case { sync, there, budget, pace };
        changes.split(", ").filter(|change| !change.is_empty()).for_each(|change| case.change(change));
        case
    }

    fn change(&mut self, change: &str) {
        let Case { sync, there, pace, .. } = self;
        let (name, number) = change.split_once(' ').unwrap_or((change, "0"));
        let number: u32 = number.parse().unwrap();
        let millis = u64::from(number);
        match name {
            "borrowed" => there.borrowed = number,
            "debt" => there.debt = number,
            "since" => there.since = ago(millis),
            "requested" => there.requested = number,
            "measured" => sync.measured = (0, ago(millis)),
            "rising" => sync.is_rising = true,
            "lacked" => there.missing_max = number,
            "asked" => sync.sent_at = Some(ago(millis)),
            "never-asked" => sync.sent_at = None,
            "silent" => (sync.busy, sync.requests_sent, there.requested) = (ago(millis), 0, 0),
            "calls" => sync.calls = true,
            "answered" => sync.last_reply = Some(LastReply { at: ago(millis), kept: ms(10_000) }),
            "heavy" => sync.heaviest = (number, NOW),
            "short" => sync.is_short = true,
            "unknown" => sync.last = None,
            "spent-out-for" => {
                sync.more = Some(NextIncrease { at: NOW.after(ms(millis)), is_exhausted: true });
            }
            "more-after" => sync.more = Some(NextIncrease { at: NOW.after(ms(millis)), is_exhausted: false }),
            "level" => sync.level = i64::from(number) * TOKEN.cast_signed(),
            "demand" => sync.demand = millis,
            "fleet-demand" => sync.fleet_demand = millis,
            "round-trip" => pace.round_trip = ms(millis),
            "others-are-away" => pace.others_are_away = true,
            unknown => panic!("{unknown}"),
        }
    }

    fn next(mut self) -> String {
        match self.sync.next(&self.there, &self.budget, &self.pace) {
            NextAction::Ask(back) => format!("ask {back}"),
            NextAction::Look(at) => format!("look {}", at.since(NOW).as_millis()),
            NextAction::LetGo => "let go".into(),
        }
    }

    /// What the next command wants, in tokens.
    fn wants(mut self) -> String {
        (self.ask().want / TOKEN).to_string()
    }

    fn ask(&mut self) -> CellRequest {
        let cell_quota = cell_quota(&self.budget, 1).unwrap();
        self.sync.ask(&self.there, 0, cell_quota, (&self.budget, None), &self.pace, 0)
    }

    /// When the key is looked at again after a reply.
    fn after(self) -> String {
        self.sync.after(&self.budget, NOW).since(NOW).as_millis().to_string()
    }
}

const NOW: Timestamp = Timestamp::from_nanos(100_000_000_000);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn ago(millis: u64) -> Timestamp {
    Timestamp::from_nanos(NOW.as_nanos() - millis * 1_000_000)
}

/// Each row: the changes, what comes of them, and why.
#[track_caller]
fn check(rule: &str, result: fn(Case) -> String, rows: &[(&str, &str, &str)]) {
    let seen = rows.iter().map(|(changes, ..)| result(Case::new(rule, changes)));
    let wrong: Vec<_> = rows.iter().zip(seen).filter(|((_, expected, _), seen)| seen != expected).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[rustfmt::skip]
#[test]
fn commands_renew_tokens_and_follow_windows_and_growth() {
    check(BORROWS, Case::next, &[
        ("calls, spent-out-for 1, answered 1899", "look 80", "the window has none"),
        ("calls, spent-out-for 1, answered 1900", "ask 0", "another host may have returned some"),
        ("calls, spent-out-for 0", "ask 0", "the window has turned"),
        ("calls, more-after 1", "ask 0", "the window has some"),
        ("asked 900", "ask 0", "what is held is reported before it expires"),
        ("asked 899", "look 1", "not earlier"),
        // The demand of a key that is asked for far more than before is not known yet.
        ("rising, borrowed 6", "ask 0", "half of what was held is used"),
        ("rising, borrowed 7", "look 80", ""),
        ("silent 80", "ask 15", "the demand is over"),
        ("silent 249, heavy 30", "look 1", "the retry of a heavy cost may still come"),
        ("silent 250, heavy 30", "ask 15", ""),
        ("borrowed 0, never-asked, debt 1", "ask 0", "a debt of an outage is charged"),
        ("borrowed 0, never-asked", "let go", "it was earned meanwhile"),
    ]);
}

#[rustfmt::skip]
#[test]
fn a_command_wants_the_demand_until_the_next_one() {
    check(BORROWS, Case::wants, &[
        ("borrowed 0", "13", "100 a second for 101 ms, and a quarter more"),
        ("borrowed 10", "3", "but what is here"),
        ("borrowed 0, round-trip 50", "19", "a longer round trip needs more"),
        ("borrowed 0, level 500", "62", "an eighth of what is free, if that is more"),
        ("borrowed 0, level 500, short", "13", "not where less was granted than was wanted"),
        ("borrowed 0, requested 50, measured 50", "64", "the demand has grown tenfold: half an interval of the new one"),
        ("borrowed 0, requested 10, measured 50", "14", "twice: some of that counts"),
        ("borrowed 0, requested 3, measured 5", "38", "three requests are a sign"),
        ("borrowed 0, requested 2, measured 5", "13", "two are not"),
        ("borrowed 0, level 0, calls, never-asked, since 10, requested 21", "126", "twenty more within some 20 ms, of a new key"),
        ("borrowed 0, level 0, calls, never-asked, since 10, requested 2", "0", "one more says nothing"),
        ("borrowed 0, demand 0, never-asked, debt 9, since 10, requested 21", "0", "a debt of an outage is no demand"),
        ("lacked 90", "75", "what the largest refused request lacked"),
        ("borrowed 0, demand 0, lacked 1", "1", ""),
        ("borrowed 0, demand 100000000", "1000", "no more than the burst"),
        ("borrowed 0, demand 1000000, others-are-away", "25", "its own part while others may count for themselves"),
        ("borrowed 0, demand 1000000, others-are-away, level 600", "125", "and what is free beyond the part of the others"),
        ("borrowed 0, demand 1000000, others-are-away, level 600, debt 30", "95", "less what it owes"),
    ]);
    check(ASKS, Case::wants, &[
        ("borrowed 0, level 500", "13", "no free ones where requests wait for Redis"),
        ("lacked 90", "0", "a remote check brings what a request lacks"),
        ("lacked 90, round-trip 6", "75", "not where Redis is farther away than a request waits"),
    ]);
    check(ADMITS, Case::wants, &[("borrowed 0, demand 0, level 0, lacked 1", "0", "one passes on credit")]);
    // Where the fleet needs four times what is earned, of 50 free tokens.
    let crowded = "borrowed 0, demand 1000000, fleet-demand 4000000, level";
    for (changes, expected, why) in [
        ("50", "6", "a share of what was earned since the last command, by demand, and half of that as half is free"),
        ("50, debt 5", "1", "less what it owes"),
        ("50, debt 500", "0", ""),
        ("50, round-trip 101", "250", "all where the last reply is of another time"),
        ("200", "126", "all where enough is free"),
        ("50, requested 500, measured 50", "330", "no share while the demand grows: three times what comes until a reply"),
    ] {
        check(BORROWS, Case::wants, &[(&format!("{crowded} {changes}"), expected, why)]);
    }
}

#[rustfmt::skip]
#[test]
fn a_key_is_looked_at_again_when_its_window_turns() {
    check(BORROWS, Case::after, &[
        ("spent-out-for 500, unknown", "500", "the window turns"),
        ("spent-out-for 20000, unknown", "10000", "the state is dropped before it does"),
        ("spent-out-for 500", "30", "some tokens of it are held"),
    ]);
}

#[test]
fn a_reply_counts_for_its_own_command_alone() {
    let mut case = Case::new(BORROWS, "borrowed 3");
    let ask = case.ask();
    let reply = CellReply {
        level: -5 * TOKEN.cast_signed(),
        demand: 4 * ask.demand,
        grant: 2 * TOKEN,
        hosts: 3,
        lost: false,
        version: 1,
        generation: 7,
        window: None,
    };
    assert!(!case.sync.apply_reply((&ask, &reply), ago(1), &case.pace), "an earlier one");
    assert!(case.sync.apply_reply((&ask, &reply), NOW, &case.pace));
    let (hold, demand) = (5 * TOKEN, ask.demand);
    assert_eq!(case.sync.last, Some(CellReport { hold, demand, generation: 7 }));
    assert_eq!((case.sync.level, case.sync.fleet_demand, case.sync.users), (reply.level, reply.demand, 3));
    assert!(case.sync.is_short, "ten were wanted");
    assert_eq!(case.sync.token_takes, ms(4), "of a thousand a second it has a quarter");
    assert!(!case.sync.apply_reply((&ask, &reply), NOW, &case.pace), "the same once more");
}
