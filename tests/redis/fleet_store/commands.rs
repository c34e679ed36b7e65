//! Generates random commands: hosts, numbers, amounts up to Lua's exact range, and times around generation
//! edges.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::{option, prop_oneof};
use tidegate::clock::Timestamp;
use tidegate::engine::PoolLoad;
use tidegate::fleet::cell::{
    AMOUNT_MAX, BURST_MAX, CellQuota, CellRate, CellReport, CellRequest, GENERATION_US, TOKEN,
};
use tidegate::fleet::command::{Bucket, CommandHead, KeyPayment, ScriptCommand, SyncBatch};
use tidegate::fleet::permits::PermitRequest;
use tidegate::fleet::window::{CellWindow, WindowRequest};

/// The next action, and its delay after the last.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) time: Time,
    pub(crate) act: Act,
}

#[derive(Clone, Debug)]
pub(crate) enum Time {
    On(u64),
    ToEdge(u64),
    Back(u64),
}

pub(crate) type PoolStep = (u8, PoolLoad);

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Sync { host: u8, birth: Birth, asks: Vec<Asking> },
    Exact { birth: Birth, costs: Vec<KeyPayment> },
    Permits { host: u8, birth: Birth, requests: Vec<PermitRequest> },
    Heartbeat { host: u8, number: Number, pools: Vec<PoolStep>, secret: u8 },
    Version { rule: u8, cell_quota: u8, before: Option<(u8, u64)> },
    Evict { key: u8 },
    Garbage { key: u8, bytes: Vec<u8> },
    Flush,
}

/// Number of a heartbeat relative to those of its host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Next,
    Again,
    Before,
    NewEpoch,
    OldEpoch,
}

/// Birth of the bucket known to a host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Birth {
    /// That of the last reply.
    Last,
    None,
    Another,
}

/// A sync request, and whether its previous report is the one that this host sent.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    pub(crate) ask: CellRequest,
    pub(crate) honest: bool,
}

pub(crate) fn any_step() -> impl Strategy<Value = Step> {
    let sync = (0_u8..3, any_birth(), vec(any_asking(), 1..4)).prop_map(|(host, birth, asks)| Act::Sync {
        host,
        birth,
        asks,
    });
    let exact = (any_birth(), vec(any_cost(), 1..4)).prop_map(|(birth, costs)| Act::Exact { birth, costs });
    let permits = (0_u8..3, any_birth(), vec(any_permits(), 1..4))
        .prop_map(|(host, birth, requests)| Act::Permits { host, birth, requests });
    let version = (0_u8..2, 0_u8..6, option::of((0_u8..6, 0_u64..9)))
        .prop_map(|(rule, cell_quota, before)| Act::Version { rule, cell_quota, before });
    let act = prop_oneof![
        24 => sync,
        10 => exact,
        10 => permits,
        4 => any_heartbeat(),
        4 => version,
        2 => (0_u8..4).prop_map(|key| Act::Evict { key }),
        1 => (0_u8..4, vec(0_u8..2, 80..86)).prop_map(|(key, bytes)| Act::Garbage { key, bytes }),
        1 => Just(Act::Flush),
    ];
    (any_time(), act).prop_map(|(time, act)| Step { time, act })
}

pub(crate) fn any_heartbeat_step() -> impl Strategy<Value = Step> {
    let act = prop_oneof![30 => any_heartbeat(), 1 => Just(Act::Flush)];
    (any_time(), act).prop_map(|(time, act)| Step { time, act })
}

fn any_heartbeat() -> impl Strategy<Value = Act> {
    let number = prop_oneof![
        6 => Just(Number::Next),
        1 => Just(Number::Again),
        1 => Just(Number::Before),
        1 => Just(Number::NewEpoch),
        1 => Just(Number::OldEpoch),
    ];
    (0_u8..4, number, vec((0_u8..2, any_load()), 0..3), 1_u8..3)
        .prop_map(|(host, number, pools, secret)| Act::Heartbeat { host, number, pools, secret })
}

fn any_time() -> impl Strategy<Value = Time> {
    prop_oneof![
        20 => (0_u64..300_000).prop_map(Time::On),
        4 => Just(Time::On(0)),
        2 => (0_u64..5_000_000).prop_map(Time::On),
        1 => (0_u64..100_000_000_000_000).prop_map(Time::On),
        2 => (9_000_000_u64..12_000_000).prop_map(Time::On),
        8 => (0_u64..3).prop_map(Time::ToEdge),
        1 => (0_u64..2_500_000).prop_map(Time::Back),
        1 => (0_u64..10_000_000_000).prop_map(Time::Back),
    ]
}

fn any_birth() -> impl Strategy<Value = Birth> {
    prop_oneof![20 => Just(Birth::Last), 2 => Just(Birth::None), 1 => Just(Birth::Another)]
}

fn any_terms() -> impl Strategy<Value = CellQuota> {
    let rates = [
        (1_000, 1),
        (1, 360),
        (1, 31_536_000),
        (999_999_937, 4_000_000),
        (1, 4_000_000_000),
        (1_000_000_000, 1),
        (999_983, 4_000_000_000),
        (7, 3),
    ];
    let rate = (0..rates.len()).prop_map(move |which| CellRate::new(rates[which].0, rates[which].1).unwrap());
    let burst = prop_oneof![
        4 => (1_u64..2_000).prop_map(|tokens| tokens * TOKEN),
        1 => 1_u64..3_000_000,
        1 => (0_u64..3).prop_map(|less| BURST_MAX - less),
        1 => 1_u64..BURST_MAX,
    ];
    (rate, burst, 1_u64..4).prop_map(|(rate, burst, version)| CellQuota { version, rate, burst })
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

fn any_demand() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0_u64..500_000,
        1 => Just(0),
        1 => (1_u64 << 25)..(1 << 28),
        1 => 0_u64..20_000_000_000_000,
    ]
}

fn any_age() -> impl Strategy<Value = Option<u64>> {
    option::of(prop_oneof![3 => 0_u64..20_000_000, 1 => 8_999_998_u64..9_000_002, 1 => any::<u64>()])
}

pub(crate) fn any_ask() -> impl Strategy<Value = CellRequest> {
    let amounts = (any_amount(), any_amount(), any_amount(), any_amount());
    let report = (any_amount(), any_demand(), 0_u64..3);
    let last =
        option::of(report.prop_map(|(hold, demand, generation)| CellReport { hold, demand, generation }));
    let window = option::of(
        (any_window(), any_amount(), any_age()).prop_map(|(window, refund, paid_us)| WindowRequest {
            window,
            refund,
            paid_us,
        }),
    );
    let rest = (any_demand(), any_amount(), 0_u32..1_000_000, any_age(), window);
    (0_u8..4, any_terms(), last, amounts, rest).prop_map(|(key, cell_quota, last, amounts, rest)| {
        let (hold, back, owed, want) = amounts;
        let (demand, waited_us, dice, known_age_us, window) = rest;
        let ask = ask_of(key_of(key), cell_quota);
        let ask = CellRequest { last, hold, back, owed, want, demand, waited_us, ..ask };
        CellRequest { random: dice, known_age_us, window, ..ask }
    })
}

fn any_asking() -> impl Strategy<Value = Asking> {
    (any_ask(), proptest::bool::weighted(0.7)).prop_map(|(ask, honest)| Asking { ask, honest })
}

fn any_cost() -> impl Strategy<Value = KeyPayment> {
    (0_u8..4, any_terms(), any_amount(), any_age(), option::of(any_window())).prop_map(
        |(key, quota, cost, known_age_us, window)| KeyPayment {
            known_age_us,
            window,
            ..cost_of(key_of(key), quota, cost)
        },
    )
}

/// Generates periodic windows, and those of a calendar with edges as ages: [`dated`] places them around a
/// moment.
fn any_window() -> impl Strategy<Value = CellWindow> {
    let spans = [100_000, 1_000_000, 7_000_000, 86_400_000_000, 31_622_400_000_000];
    let every = (0_usize..5, 0_u64..2_000_000, prop_oneof![3 => Just(1_u32), 2 => Just(11), 1 => 2_u32..62])
        .prop_map(move |(span, origin, slots)| CellWindow { slots, step: spans[span], origin, ends: None });
    // Age of the first, its length, and that of the next.
    let calendar = (0_u64..9_000_000, 1_u64..6_000_000, 1_u64..6_000_000).prop_map(|(ago, first, next)| {
        CellWindow { slots: 1, step: 0, origin: ago, ends: Some((first, next)) }
    });
    prop_oneof![3 => every, 2 => calendar]
}

/// Returns the window that a host sends at this moment: calendar edges mostly agree between hosts.
pub(crate) fn dated(window: CellWindow, now_us: u64) -> CellWindow {
    let Some((first, next)) = window.ends else { return window };
    let origin = now_us.saturating_sub(window.origin) / 3_000_000 * 3_000_000;
    let turn = origin + if first < 5_000_000 { 3_000_000 } else { first };
    CellWindow { slots: 1, step: 0, origin, ends: Some((turn, turn + next)) }
}

fn any_permits() -> impl Strategy<Value = PermitRequest> {
    let numbers = || vec(0_u32..12, 0..6);
    let max = prop_oneof![5 => 1_u32..20, 1 => any::<u32>()];
    (0_u8..4, max, numbers(), numbers(), numbers()).prop_map(|(key, max, wanted, kept, dropped)| {
        PermitRequest {
            key: key_of(key),
            max,
            // A host requests members that it does not have.
            wanted: wanted.iter().enumerate().map(|(at, number)| number + 100 * (at as u32 + 1)).collect(),
            kept,
            dropped,
            is_whole: false,
        }
    })
}

fn any_load() -> impl Strategy<Value = PoolLoad> {
    let count = || prop_oneof![5 => 0_u64..100, 1 => 0_u64..1_000_000_000_001];
    let load = (count(), count(), count()).prop_map(|(slots, critical, noncritical)| PoolLoad {
        slots,
        critical,
        noncritical,
    });
    prop_oneof![5 => load, 1 => Just(PoolLoad::default())]
}

pub(crate) fn key_of(key: u8) -> [u8; 16] {
    [0x21 + 16 * key; 16]
}

pub(crate) fn host_of(host: u8) -> [u8; 16] {
    [host; 16]
}

/// All keys of these tests share one bucket.
pub(crate) fn bucket() -> Bucket {
    Bucket(key_of(0)[0] % 16)
}

/// Returns a sync of one cell.
pub(crate) fn sync_of(ask: CellRequest) -> ScriptCommand {
    ScriptCommand::Sync(SyncBatch { head: head(0), asks: vec![ask], numbers: vec![0] })
}

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

pub(crate) fn head(born_us: u64) -> CommandHead {
    CommandHead { bucket: bucket(), born_us, sent_at: Timestamp::ORIGIN }
}

/// Returns the next moment on the Redis clock.
pub(crate) fn after(now_us: u64, time: &Time) -> u64 {
    match time {
        Time::On(us) => now_us + us,
        Time::ToEdge(offset) => (now_us / GENERATION_US + 1) * GENERATION_US + offset - 1,
        Time::Back(us) => now_us.saturating_sub(*us),
    }
}
