//! Budgets whose requests may wait for a call: what passes on all hosts together, whatever becomes of the calls.

use std::sync::Arc;

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{
    Decider, Descriptors, Engine, EngineAnswer, EngineOptions, FleetStatus, HashKey, Mode, Op,
    RemoteCheckResult, Request, Shortfalls, Verdict,
};
use tidegate::fleet::cell::TOKEN;
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::member::HostMember;
use tidegate::fleet::reply::ScriptReply;
use tidegate::fleet::sync;
use tidegate::limit::share::{self, Fallback, RemoteCheckWait};
use tidegate::limit::{Quota, Rate, token_bucket};
use tidegate::rules::{Domain, KeyPart, Limit, Position, Rule};

use crate::plan::{draws, is_short, seed};
use crate::random::Random;
use crate::store::Store;
use crate::waiting::Waiting;
use crate::windows::{Kind, like};

/// What is shared, and what goes wrong.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    hosts: u32,
    rate: u32,
    period_s: u64,
    burst: u32,
    asks: RemoteCheckWait,
    /// Requests in a second on all hosts together.
    per_second: u32,
    seconds: u64,
    round_trip_us: u32,
    /// Replies of a thousand that are lost.
    lost: u32,
    /// Of a thousand that take twenty milliseconds more.
    late: u32,
    /// Requests of a thousand that their own host refuses, too.
    own: u32,
    when_down: Fallback,
    /// Windows of `burst` each, where it is no bucket.
    window: Option<Kind>,
}

struct Host {
    decider: Decider,
    member: HostMember,
    /// Whether their own host is to refuse them, too.
    waiting: Waiting<bool>,
}

#[derive(Debug, Default)]
struct Seen {
    admitted_us: Vec<u64>,
    asked: u64,
    missed: u64,
    refused: u64,
    /// What the store has left once nobody asks any more.
    left: i64,
}

impl Host {
    fn new(plan: &Plan, number: u32) -> Host {
        let options = EngineOptions {
            hash_key: HashKey::from_bytes([number as u8; 16]),
            mode: Mode::Enforce,
            memory_bytes_max: 64 << 20,
        };
        let engine = Arc::new(Engine::new(options));
        let standing: Arc<FleetStatus> = engine.join_fleet(HashKey::from_bytes([9; 16]));
        engine.install_rules(vec![Domain::new("api", vec![rule(plan), own_rule()])]);
        standing.set_hosts(plan.hosts);
        let mut name = [0; 16];
        name[..4].copy_from_slice(&(number + 1).to_le_bytes());
        let seed = crate::random::mixed(plan.seed ^ (u64::from(number) << 32));
        let options = sync::SyncOptions { host: name, buckets: sync::BUCKETS, seed };
        let mut member = HostMember::new(Arc::clone(&engine), standing, options);
        member.set_heard(true, at(0).at);
        Host { decider: engine.decider(), member, waiting: Waiting::new() }
    }

    /// Judges a request, or goes on with one; whether it may start, once that is known.
    fn judge(
        &mut self,
        held: bool,
        result: Option<RemoteCheckResult<'_>>,
        may_wait: bool,
        us: u64,
    ) -> Result<bool, Arc<Shortfalls>> {
        // One that its own host refuses has an attribute more.
        let attributes = [("tenant", "t"), ("job", "j")];
        let attributes = if held { &attributes[..] } else { &attributes[..1] };
        let request =
            Request { may_wait, ..Request::new(Op::Hit, "api", Descriptors::from_attributes(attributes)) };
        let answer = match result {
            None => self.decider.decide(&request, at(us)),
            Some(result) => self.decider.resume(&request, result, at(us)),
        };
        match answer {
            EngineAnswer::Decided(decision) => Ok(decision.verdict == Verdict::Allow),
            EngineAnswer::RemoteCheck(shortfalls) => Err(shortfalls),
            other => panic!("{other:?}"),
        }
    }

    fn park(
        &mut self,
        shortfalls: Arc<Shortfalls>,
        is_held: bool,
        is_second: bool,
        us: u64,
        out: &mut Vec<ScriptCommand>,
    ) {
        self.waiting.park((shortfalls, is_held, is_second), &mut self.member, at(us), out);
    }

    /// Goes on with what waits for nothing any more.
    fn resume(&mut self, us: u64, seen: &mut Seen, out: &mut Vec<ScriptCommand>) {
        for (parked, brought) in self.waiting.take_ready(at(us)) {
            let (result, may_wait) = match brought {
                Some(brought) => (RemoteCheckResult::Borrowed(brought), !parked.is_second),
                None => {
                    seen.missed += 1;
                    // What comes after this finds nobody.
                    (RemoteCheckResult::TimedOut(&parked.shortfalls), false)
                }
            };
            match self.judge(parked.what, Some(result), may_wait, us) {
                Ok(true) => seen.admitted_us.push(us),
                Ok(false) => seen.refused += 1,
                Err(shortfalls) => self.park(shortfalls, parked.what, true, us, out),
            }
        }
    }

    fn answered(&mut self, call: &ScriptCommand, reply: ScriptReply, us: u64, out: &mut Vec<ScriptCommand>) {
        match (call, reply) {
            (ScriptCommand::Sync(_), reply @ ScriptReply::Sync(_))
            | (ScriptCommand::Exact(_), reply @ ScriptReply::Exact(_)) => {
                self.member.answered(call, reply, at(us), out);
            }
            (call, reply) => panic!("{reply:?} to {call:?}"),
        }
    }

    fn failed(&mut self, call: &ScriptCommand, us: u64) {
        match call {
            ScriptCommand::Sync(_) | ScriptCommand::Exact(_) => self.member.failed(call, at(us).at),
            other => panic!("{other:?}"),
        }
    }
}

/// On its way: to the store, back, or nowhere.
enum Event {
    There(ScriptCommand),
    Back(ScriptCommand, ScriptReply),
    Lost(ScriptCommand),
}

fn run(plan: &Plan) -> Seen {
    let mut random = Random::new(plan.seed, 7);
    let mut hosts: Vec<Host> = (0..plan.hosts).map(|number| Host::new(plan, number)).collect();
    let mut store = Store::default();
    let mut seen = Seen::default();
    let mut events: std::collections::BTreeMap<(u64, u64), (usize, Event)> =
        std::collections::BTreeMap::new();
    let (mut number, store_us) = (0, 1_700_000_000_000_000);
    let mut out = Vec::new();
    let mut key = None;
    let (ends_us, quiet_us) = (plan.seconds * 1_000_000, QUIET_S * 1_000_000);
    for us in (0..ends_us + quiet_us).step_by(500) {
        let is_over = us >= ends_us;
        while let Some(entry) = events.first_entry().filter(|entry| entry.key().0 <= us) {
            let (when, (host, event)) = (entry.key().0, entry.remove());
            number += 1;
            let one_way = u64::from(plan.round_trip_us / 2);
            match event {
                Event::There(call) => {
                    let reply = store.call(&call, store_us + when);
                    if let ScriptCommand::Exact(payment) = &call {
                        key = Some((payment.head.bucket.number(), payment.costs[0].key));
                    }
                    let drawn = if is_over { 1_000 } else { random.below(1_000) };
                    let late = if random.below(1_000) < plan.late { 20_000 } else { 0 };
                    let back = match drawn < plan.lost {
                        true => (when + 300_000, Event::Lost(call)),
                        false => (when + one_way + late, Event::Back(call, reply)),
                    };
                    events.insert((back.0, number), (host, back.1));
                }
                Event::Back(call, reply) => hosts[host].answered(&call, reply, us, &mut out),
                Event::Lost(call) => hosts[host].failed(&call, us),
            }
        }
        assert!(out.is_empty(), "no answer makes a host ask at once");
        let arrivals = plan.per_second / 2_000 + u32::from(random.below(2_000) < plan.per_second % 2_000);
        let arrivals = if is_over { 0 } else { arrivals };
        let asked_by: Vec<usize> = (0..arrivals).map(|_| random.below(plan.hosts) as usize).collect();
        for (at_host, host) in hosts.iter_mut().enumerate() {
            host.resume(us, &mut seen, &mut out);
            for _ in asked_by.iter().filter(|asked| **asked == at_host) {
                let held = random.below(1_000) < plan.own;
                match host.judge(held, None, true, us) {
                    Ok(true) => seen.admitted_us.push(us),
                    Ok(false) => seen.refused += 1,
                    Err(shortfalls) => {
                        seen.asked += 1;
                        host.park(shortfalls, held, false, us, &mut out);
                    }
                }
            }
            if us % 10_000 == (at_host as u64 * 500) % 10_000 {
                host.member.tick(at(us), &mut out);
            }
            for call in out.drain(..) {
                number += 1;
                events
                    .insert((us + u64::from(plan.round_trip_us / 2), number), (at_host, Event::There(call)));
            }
        }
    }
    let counts = hosts.iter().map(|host| host.member.remote_checks().counts());
    assert_eq!(counts.map(|counts| counts.missed + counts.declined).sum::<u64>(), seen.missed, "{plan:?}");
    let end_us = store_us + ends_us + quiet_us;
    let level = key.and_then(|(bucket, key)| match plan.window {
        None => store.cell_at(bucket, key, end_us).map(|cell| cell.level),
        Some(_) => store.window_at(bucket, key, end_us).map(|cell| cell.level()),
    });
    seen.left = level.map_or(i64::from(plan.burst), |level| level.div_euclid(TOKEN.cast_signed()));
    seen
}

/// The most that passed in any window beyond what the rate gives in it.
fn most_at_once(plan: &Plan, admitted_us: &[u64]) -> f64 {
    let rate = f64::from(plan.rate) / plan.period_s as f64;
    let (mut full, mut most, mut last) = (0.0_f64, 0.0_f64, 0);
    for us in admitted_us {
        full = (full - (us - last) as f64 / 1e6 * rate).max(0.0) + 1.0;
        most = most.max(full);
        last = *us;
    }
    most
}

fn at(us: u64) -> Now {
    Now { at: Timestamp::from_nanos(us * 1_000 + 1_000_000_000), utc_offset_nanos: 0 }
}

fn position() -> Position {
    Position { file: "simulation".into(), line: 1, column: 1 }
}

fn rule(plan: &Plan) -> Rule {
    let rate = Rate::new(plan.rate, plan.period_s * 1_000_000_000).unwrap();
    let bucket = token_bucket::TokenBucketQuota::new(rate, plan.burst).unwrap();
    let quota = match plan.window {
        None => share::ShareQuota::new(bucket, 0, plan.when_down),
        Some(kind) => {
            share::ShareQuota::for_window(like(plan.burst, plan.period_s, kind), 0, plan.when_down).unwrap()
        }
    };
    let quota = quota.with_remote_checks(plan.asks);
    Rule {
        key: vec![KeyPart::plain("tenant")],
        ..Rule::new("shared", position(), Limit::new(Quota::FleetBudget(Box::new(quota))))
    }
}

/// One an hour on each host: of those that ask for it nearly all are refused, after a call or before.
fn own_rule() -> Rule {
    let bucket = token_bucket::TokenBucketQuota::new(Rate::new(1, 3_600_000_000_000).unwrap(), 1).unwrap();
    Rule {
        key: vec![KeyPart::plain("job")],
        ..Rule::new("own", position(), Limit::new(Quota::TokenBucket(bucket)))
    }
}

const TINY: Plan = Plan {
    seed: 1,
    hosts: 100,
    rate: 10,
    period_s: 3_600,
    burst: 10,
    asks: RemoteCheckWait::OnMiss,
    per_second: 100,
    seconds: 20,
    round_trip_us: 1_000,
    lost: 0,
    late: 0,
    own: 0,
    when_down: Fallback::Refuse,
    window: None,
};

/// Until all that was said is answered, and what was held has lapsed.
const QUIET_S: u64 = 3;

#[test]
fn ten_an_hour_over_a_hundred_hosts_is_ten_and_then_ten_an_hour() {
    for asks in [RemoteCheckWait::OnMiss, RemoteCheckWait::BelowUnitCredit, RemoteCheckWait::Always] {
        let plan = Plan { asks, seed: seed(), ..TINY };
        let seen = run(&plan);
        assert_eq!(seen.admitted_us.len(), 10, "{plan:?}");
        assert_eq!(seen.missed, 0, "{plan:?}");
        // Each host is told once until when to wait.
        assert!(seen.asked <= 10 + 3 * u64::from(plan.hosts), "{} asked", seen.asked);
    }
    // Two hours, one request every five seconds: two more each twelve minutes.
    let plan = Plan { seed: seed(), hosts: 10, rate: 600, per_second: 4, seconds: 120, burst: 5, ..TINY };
    let seen = run(&plan);
    let might = 5 + 120 * 600 / 3_600;
    assert!((might - 1..=might).contains(&(seen.admitted_us.len() as u64)), "{}", seen.admitted_us.len());
}

#[test]
fn a_host_leaves_once_its_payments_are_answered() {
    let mut host = Host::new(&TINY, 0);
    let mut out = Vec::new();
    let shortfalls = host.judge(false, None, true, 0).expect_err("a tiny budget is asked for");
    host.park(shortfalls, false, false, 0, &mut out);
    let [payment] = &out[..] else { panic!("{out:?}") };
    assert!(host.member.leave(at(1_000), &mut Vec::new()), "the payment is unanswered");
    host.failed(payment, 2_000);
    assert!(!host.member.leave(at(2_000), &mut Vec::new()));
}

#[test]
fn counts_reply_to_closed_connection_as_late_and_keeps_breaker_closed() {
    let mut host = Host::new(&Plan { burst: 100, ..TINY }, 0);
    let mut store = Store::default();
    for closed in 1..20 {
        let (mut out, us) = (Vec::new(), closed * 10_000);
        let shortfalls = host.judge(false, None, true, us).expect_err("no token is here");
        host.park(shortfalls, false, false, us, &mut out);
        host.waiting.forget(|| true);
        for call in out {
            let reply = store.call(&call, 1_700_000_000_000_000 + us);
            host.answered(&call, reply, us + 1_000, &mut Vec::new());
        }
        let counts = host.member.remote_checks().counts();
        assert_eq!((counts.answered, counts.missed, counts.declined, counts.stopped), (0, closed, 0, 0));
    }
}

/// Drawn from a seed alone.
fn drawn(seed: u64) -> Plan {
    let mut draw = draws(seed, 8);
    let rate = draw(1, 200);
    Plan {
        seed,
        hosts: [1, 2, 5, 20][draw(0, 3) as usize],
        rate,
        period_s: [1, 10][draw(0, 1) as usize],
        burst: draw(1, 100),
        asks: [RemoteCheckWait::OnMiss, RemoteCheckWait::Always][draw(0, 1) as usize],
        per_second: draw(10, 1_000),
        seconds: 5,
        round_trip_us: [500, 2_000, 4_000, 7_000][draw(0, 3) as usize],
        lost: [0, 10, 300][draw(0, 2) as usize],
        late: [0, 50, 500][draw(0, 2) as usize],
        own: [0, 300][draw(0, 1) as usize],
        // Where nobody answers nothing passes: what is admitted was paid for.
        when_down: Fallback::Refuse,
        window: None,
    }
}

#[test]
fn what_passes_was_paid_for_whatever_becomes_of_the_calls() {
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(30);
    let mut used = (0.0, 0.0);
    for seed in seed()..seed() + runs {
        let plan = drawn(seed);
        let seen = run(&plan);
        let rate = f64::from(plan.rate) / plan.period_s as f64;
        // What was paid for is spent a call's patience later, what was borrowed ahead within three round trips, or, where
        // its own request could not use it, when a batch would have taken it back.
        let round_trips = 3.0 * f64::from(plan.round_trip_us) / 1e6;
        let slack = rate * (0.005 + round_trips)
            + if plan.own > 0 || plan.late + plan.lost > 0 { rate * 2.0 } else { 0.0 };
        let most = most_at_once(&plan, &seen.admitted_us);
        assert!(most <= f64::from(plan.burst) + slack + 1e-6, "{most}: SEED={seed} RUNS=1 {plan:?}");
        if plan.lost + plan.late + plan.own == 0 && plan.round_trip_us < 5_000 {
            let might = (f64::from(plan.burst) + rate * 5.0).min(f64::from(plan.per_second) * 5.0 * 0.9);
            used = (used.0 + seen.admitted_us.len() as f64, used.1 + might);
        }
    }
    println!("used {:.3} of what might have passed", used.0 / used.1);
    assert!(used.0 >= 0.9 * used.1, "{used:?}");
}

#[test]
fn ten_a_day_over_a_hundred_hosts_is_ten() {
    let kinds: &[Kind] =
        if is_short() { &[Kind::Sliding] } else { &[Kind::Fixed, Kind::Sliding, Kind::Calendar] };
    for &kind in kinds {
        for asks in [RemoteCheckWait::OnMiss, RemoteCheckWait::BelowUnitCredit, RemoteCheckWait::Always] {
            let plan = Plan { asks, seed: seed(), period_s: 86_400, window: Some(kind), ..TINY };
            let seen = run(&plan);
            assert_eq!(seen.admitted_us.len(), 10, "{plan:?}");
            // Each host is told once until when to wait.
            assert!(seen.asked <= 10 + 3 * u64::from(plan.hosts), "{} asked", seen.asked);
        }
    }
}

/// Of a budget that earns nothing meanwhile, whatever is lost, late, given up or refused by another rule.
#[test]
fn admitted_tokens_are_charged_and_unused_ones_return() {
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(30);
    let (mut missed, mut admitted) = (0, 0);
    for seed in seed()..seed() + runs {
        let plan = drawn(seed);
        let mut random = Random::new(seed, 9);
        let asks = if random.below(3) > 0 { RemoteCheckWait::Always } else { RemoteCheckWait::OnMiss };
        let when_down = if random.below(2) > 0 { Fallback::Share } else { Fallback::Refuse };
        let burst = 50 + random.below(2_000);
        let window = [None, Some(Kind::Fixed), Some(Kind::Sliding), Some(Kind::Calendar)][seed as usize % 4];
        let plan = Plan { rate: 1, period_s: 86_400, burst, asks, when_down, seconds: 3, window, ..plan };
        let seen = run(&plan);
        let charged = i64::from(burst) - seen.left;
        let passed = i64::try_from(seen.admitted_us.len()).unwrap();
        // Tokens that were borrowed ahead may lapse: charged, and of no use to anybody.
        // So may what passed unpaid for a while and another rule refused: a window takes back what was paid, and no more.
        // A payment whose reply is lost is charged, and its request is refused or passes unpaid.
        let is_exact = asks == RemoteCheckWait::Always
            && plan.lost == 0
            && (window.is_none() || when_down == Fallback::Refuse);
        // With `share`, what passes while checks come too late can exceed the budget, and a window that takes back late
        // payments is left uncharged for some of it: at most one in twenty, in these runs.
        let is_late =
            asks == RemoteCheckWait::OnMiss && when_down == Fallback::Share && plan.round_trip_us > 5_000;
        let owed = if is_late { passed.min(i64::from(burst)) * 19 / 20 } else { passed };
        let fits = if is_exact {
            charged == passed
        } else {
            charged >= owed && (!is_late || passed <= 3 * charged / 2)
        };
        assert!(fits, "{passed} passed, {charged} charged: SEED={seed} RUNS=1 {plan:?}");
        (missed, admitted) = (missed + seen.missed, admitted + passed);
    }
    println!("{admitted} passed, {missed} calls were not answered in time");
    assert!(missed > 0 && admitted > 0);
}

/// Ten hosts at six tenths of 1 000/s.
const BUSY: Plan = Plan {
    hosts: 10,
    rate: 1_000,
    period_s: 1,
    burst: 1_000,
    per_second: 600,
    when_down: Fallback::Share,
    ..TINY
};

#[test]
fn borrows_ahead_for_a_key_in_use() {
    let seen = run(&Plan { seed: seed(), ..BUSY });
    assert_eq!((seen.refused, seen.missed), (0, 0));
    assert!(seen.asked * 20 < seen.admitted_us.len() as u64, "{} asked", seen.asked);
}

#[test]
fn admits_what_fits_where_redis_is_farther_away_than_the_wait() {
    for round_trip_us in [20_000, 100_000] {
        let seen = run(&Plan { seed: seed(), round_trip_us, ..BUSY });
        let offered = seen.admitted_us.len() as u64 + seen.refused;
        assert!(seen.refused * 50 < offered, "{} of {offered} refused", seen.refused);
    }
}
