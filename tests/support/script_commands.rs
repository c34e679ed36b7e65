//! Script commands for tests of the scripts.

use std::collections::HashSet;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::sample::select;
use proptest::{option, prop_oneof};
use tidegate::clock::Timestamp;
use tidegate::engine::PoolLoad;
use tidegate::fleet::cell::{
    AMOUNT_MAX, BURST_MAX, CellQuota, CellRate, CellReport, CellRequest, GENERATION_US, TOKEN,
};
use tidegate::fleet::command::{
    Bucket, CheckPayment, CommandHead, KeyPayment, Payment, ScriptCommand, SyncBatch,
};
use tidegate::fleet::heartbeat::{Heartbeat, PoolReport};
use tidegate::fleet::permits::{PermitCommand, PermitRequest};
use tidegate::fleet::secrets::SecretDigest;
use tidegate::fleet::version::VersionCommand;
use tidegate::fleet::window::{CellWindow, WindowRequest};

/// The start of a generation, in microseconds of the clock of Redis.
pub(crate) const START_US: u64 = 1_700_000_000_000_000;

/// Returns a request that reports and wants nothing.
pub(crate) fn ask_of(key: [u8; 16], cell_quota: CellQuota) -> CellRequest {
    let [hold, back, owed, want, demand, waited_us] = [0; 6];
    let (random, last, known_age_us, window) = (0, None, None, None);
    CellRequest {
        key,
        cell_quota,
        last,
        hold,
        back,
        owed,
        want,
        demand,
        waited_us,
        random,
        known_age_us,
        window,
    }
}

/// Returns a payment of a key that this host has not paid before.
pub(crate) fn cost_of(key: [u8; 16], cell_quota: CellQuota, cost: u64) -> KeyPayment {
    KeyPayment { key, cell_quota, cost, known_age_us: None, window: None }
}

pub(crate) fn sync_of(head: CommandHead, asks: Vec<CellRequest>) -> ScriptCommand {
    let numbers = vec![0; asks.len()];
    ScriptCommand::Sync(SyncBatch { head, asks, numbers })
}

/// Returns a payment of all these costs or of none.
pub(crate) fn payment_of(head: CommandHead, costs: Vec<KeyPayment>) -> ScriptCommand {
    ScriptCommand::Exact(Payment { head, checks: vec![CheckPayment { number: 0, costs, needs: Vec::new() }] })
}

/// The head of a command to the bucket of all keys of these tests.
pub(crate) fn head(born_us: u64) -> CommandHead {
    CommandHead { bucket: Bucket(0), born_us, sent_at: Timestamp::ORIGIN }
}

/// Returns any command at a time close to [`START_US`], with amounts up to the largest.
pub(crate) fn any_command() -> impl Strategy<Value = ScriptCommand> {
    let head = || prop_oneof![5 => Just(START_US), 1 => Just(0)].prop_map(head);
    let sync =
        (head(), vec(any_ask(), 1..4)).prop_map(|(head, asks)| sync_of(head, distinct(asks, |ask| ask.key)));
    let payment = (head(), vec(any_cost(), 1..4))
        .prop_map(|(head, costs)| payment_of(head, distinct(costs, |cost| cost.key)));
    let permits = (head(), 0_u8..3, vec(any_permits(), 1..4)).prop_map(|(head, host, requests)| {
        let requests = distinct(requests, |request| request.key);
        ScriptCommand::Permits(PermitCommand { head, host: [host; 16], requests })
    });
    let version = (0_u64..2, 0_u8..6, option::of((0_u8..6, 0_u64..9))).prop_map(|(rule, numbers, before)| {
        let before = before.map(|(numbers, known)| (numbers.to_string(), known));
        ScriptCommand::Version(VersionCommand { rule, numbers: numbers.to_string(), before })
    });
    prop_oneof![4 => sync, 2 => payment, 2 => permits, 2 => any_heartbeat(), 1 => version]
}

/// Returns the first part about each key.
fn distinct<T>(mut parts: Vec<T>, key: impl Fn(&T) -> [u8; 16]) -> Vec<T> {
    let mut keys = HashSet::new();
    parts.retain(|part| keys.insert(key(part)));
    parts
}

fn any_ask() -> impl Strategy<Value = CellRequest> {
    let amounts = (any_amount(), any_amount(), any_amount(), any_amount());
    let last = option::of((any_amount(), any_amount(), 0_u64..3));
    let window = option::of((any_window(), any_amount(), any_age()));
    let rest = (any_amount(), any_amount(), 0_u32..1_000_000, any_age(), window);
    (0_u8..4, any_quota(), last, amounts, rest).prop_map(|(key, cell_quota, last, amounts, rest)| {
        let (hold, back, owed, want) = amounts;
        let (demand, waited_us, random, known_age_us, window) = rest;
        let last = last.map(|(hold, demand, number)| CellReport {
            hold,
            demand,
            generation: START_US / GENERATION_US + number,
        });
        let window = window.map(|(window, refund, paid_us)| WindowRequest {
            window,
            refund,
            paid_us: paid_us.map(|us: u64| us.saturating_add(START_US)),
        });
        let ask = ask_of([key; 16], cell_quota);
        CellRequest { last, hold, back, owed, want, demand, waited_us, random, known_age_us, window, ..ask }
    })
}

fn any_cost() -> impl Strategy<Value = KeyPayment> {
    let window = option::of(any_window());
    (0_u8..4, any_quota(), any_amount(), any_age(), window).prop_map(
        |(key, quota, cost, known_age_us, window)| KeyPayment {
            known_age_us,
            window,
            ..cost_of([key; 16], quota, cost)
        },
    )
}

fn any_quota() -> impl Strategy<Value = CellQuota> {
    let rates = vec![(1_000, 1), (999_999_937, 4_000_000), (1, 4_000_000_000), (7, 3)];
    let burst = prop_oneof![
        4 => (1_u64..2_000).prop_map(|tokens| tokens * TOKEN),
        1 => 1_u64..3_000_000,
        1 => (0_u64..3).prop_map(|less| BURST_MAX - less),
        1 => 1_u64..BURST_MAX,
    ];
    (select(rates), burst, 1_u64..4).prop_map(|((num, den), burst, version)| CellQuota {
        version,
        rate: CellRate::new(num, den).unwrap(),
        burst,
    })
}

fn any_amount() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => Just(0),
        8 => 0_u64..30_000_000,
        4 => (0_u64..300).prop_map(|tokens| tokens * TOKEN),
        1 => 0_u64..AMOUNT_MAX,
        1 => (0_u64..3).prop_map(|less| AMOUNT_MAX - less),
        1 => any::<u64>(),
    ]
}

fn any_age() -> impl Strategy<Value = Option<u64>> {
    option::of(prop_oneof![3 => 0_u64..20_000_000, 1 => any::<u64>()])
}

/// Returns windows of equal length, and those of a calendar.
fn any_window() -> impl Strategy<Value = CellWindow> {
    let step = prop_oneof![Just(100_000_u64), Just(7_000_000), Just(31_622_400_000_000)];
    let every = (step, 0_u64..2_000_000, 1_u32..62).prop_map(|(step, origin, slots)| CellWindow {
        slots,
        step,
        origin,
        ends: None,
    });
    let calendar = (0_u64..9_000_000, 1_u64..6_000_000, 1_u64..6_000_000).prop_map(|(start, first, next)| {
        let origin = START_US + start - 3_000_000;
        CellWindow { slots: 1, step: 0, origin, ends: Some((origin + first, origin + first + next)) }
    });
    prop_oneof![3 => every, 2 => calendar]
}

fn any_permits() -> impl Strategy<Value = PermitRequest> {
    let numbers = || vec(0_u32..12, 0..6);
    let max = prop_oneof![5 => 1_u32..20, 1 => any::<u32>()];
    (0_u8..4, max, numbers(), numbers(), numbers()).prop_map(|(key, max, wanted, kept, dropped)| {
        PermitRequest { key: [key; 16], max, wanted, kept, dropped, is_whole: false }
    })
}

fn any_heartbeat() -> impl Strategy<Value = ScriptCommand> {
    let count = || prop_oneof![2 => Just(0), 5 => 0_u64..100, 1 => 0_u64..1_000_000_000_001];
    let load = (count(), count(), count());
    let pools = vec(option::of(load), 2);
    (0_u8..4, 1_u64..3, 1_u64..9, pools, 1_u8..3).prop_map(|(host, epoch, seq, pools, secret)| {
        let pools = pools.into_iter().enumerate().filter_map(|(pool, load)| {
            let (slots, critical, noncritical) = load?;
            let load = PoolLoad { slots, critical, noncritical };
            Some(PoolReport { pool: format!("api/{pool}"), load })
        });
        let (pools, secret) = (pools.collect(), SecretDigest::of_secret(&[secret]));
        ScriptCommand::Heartbeat(Heartbeat { host: [host; 16], epoch, seq, pools, secret, rules: epoch })
    })
}
