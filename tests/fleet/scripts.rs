//! Tables of what the scripts reply, command by command.

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::Config;
use proptest::{prop_assert, prop_assert_eq, prop_oneof, proptest};
use tidegate::fleet::cell::{
    AMOUNT_MAX, BURST_MAX, CellQuota, CellRate, CellReply, CellReport, CellRequest, DEMAND_MAX,
    GENERATION_US, TOKEN,
};
use tidegate::fleet::command::{KeyPayment, ScriptCommand};
use tidegate::fleet::permits::{PermitCommand, PermitRequest};
use tidegate::fleet::reply::{CostCover, ScriptReply};
use tidegate::fleet::version::VersionCommand;
use tidegate::fleet::window::{CellWindow, WindowRequest, WindowStatus};

use crate::script_commands::{START_US, any_command, ask_of, cost_of, head, payment_of, sync_of};
use crate::store::Store;

const SECOND: u64 = 1_000_000;
const KEY: [u8; 16] = [7; 16];

/// Ten a second, twenty at once.
fn bucket() -> CellRequest {
    ask_of(KEY, CellQuota { version: 1, rate: CellRate::new(10, 1).unwrap(), burst: 20 * TOKEN })
}

/// Ten in three sub-buckets of a second.
fn window() -> CellRequest {
    let window = CellWindow { slots: 3, step: SECOND, origin: 0, ends: None };
    let window = Some(WindowRequest { window, refund: 0, paid_us: None });
    let ask = bucket();
    CellRequest { cell_quota: CellQuota { burst: 10 * TOKEN, ..ask.cell_quota }, window, ..ask }
}

/// One bucket of cells, whose birth hosts know.
#[derive(Default)]
struct Cells(Store, u64);

impl Cells {
    fn sync(&mut self, us: u64, ask: CellRequest) -> CellReply {
        let reply = self.0.execute(&sync_of(head(self.1), vec![ask]), START_US + us);
        let ScriptReply::Sync(reply) = reply else { panic!("{reply:?} to a sync") };
        self.1 = reply.born_us;
        reply.results[0]
    }

    /// Pays this many tokens; returns the level, in millionths of a token, and how long the cost has to wait.
    fn pay(&mut self, us: u64, ask: CellRequest, tokens: u64) -> (i64, CostCover) {
        let window = ask.window.map(|request| request.window);
        let cost = KeyPayment { window, ..cost_of(KEY, ask.cell_quota, tokens * TOKEN) };
        let reply = self.0.execute(&payment_of(head(self.1), vec![cost]), START_US + us);
        let ScriptReply::Exact(reply) = reply else { panic!("{reply:?} to a payment") };
        self.1 = reply.born_us;
        (reply.results[0].level, reply.results[0].wait)
    }

    /// Requests permits of a host, renews and drops some; returns how many were added, and how many there are.
    fn permits(&mut self, us: u64, host: u8, max: u32, numbers: [&[u32]; 3]) -> (Option<u32>, u32) {
        let [wanted, kept, dropped] = numbers.map(<[u32]>::to_vec);
        let request = PermitRequest { key: KEY, max, wanted, kept, dropped, is_whole: true };
        let command = PermitCommand { head: head(self.1), host: [host; 16], requests: vec![request] };
        let reply = self.0.execute(&ScriptCommand::Permits(command), START_US + us);
        let ScriptReply::Permits(reply) = reply else { panic!("{reply:?} to permits") };
        self.1 = reply.born_us;
        (reply.results[0].added, reply.results[0].members)
    }

    fn level(&mut self, us: u64, ask: CellRequest) -> i64 {
        self.pay(us, ask, 0).0
    }
}

#[test]
fn bucket_refills_to_its_burst() {
    let mut cells = Cells::default();
    assert_eq!(cells.pay(0, bucket(), 20), (0, CostCover::No));
    assert_eq!(cells.pay(SECOND / 2, bucket(), 8), (5_000_000, CostCover::Until(300_000)));
    assert_eq!(cells.pay(SECOND / 2, bucket(), 21), (5_000_000, CostCover::Never));
    assert_eq!(cells.level(9 * SECOND, bucket()), 20_000_000);
    // The clock of another server is behind, and the clock is set back.
    cells.pay(9 * SECOND, bucket(), 20);
    assert_eq!(cells.level(7 * SECOND, bucket()), 0);
    assert_eq!(cells.level(10 * SECOND, bucket()), 10_000_000);
    assert_eq!(cells.level(2 * SECOND, bucket()), 10_000_000);
    assert_eq!(cells.level(5 * SECOND / 2, bucket()), 15_000_000);
}

#[test]
fn held_tokens_take_room_for_two_generations() {
    let mut cells = Cells::default();
    cells.pay(0, bucket(), 20);
    cells.sync(0, CellRequest { hold: 15 * TOKEN, ..bucket() });
    assert_eq!(cells.level(3_999_999, bucket()), 5_000_000);
    assert_eq!(cells.level(4_500_000, bucket()), 10_000_000);
}

#[test]
fn newest_version_of_quota_is_in_force() {
    for (ask, is_window) in [(bucket(), false), (window(), true)] {
        let smaller = 4;
        let mut cells = Cells::default();
        let version = |version, tokens: u64| CellRequest {
            cell_quota: CellQuota { version, burst: tokens * TOKEN, ..ask.cell_quota },
            ..ask
        };
        cells.sync(0, ask);
        assert_eq!(cells.level(0, version(2, smaller)), 4_000_000);
        assert_eq!(cells.level(0, version(1, 50)), 4_000_000, "the versions of other hosts are older");
        // Another entry of the same rules: a bucket is not filled by it.
        let reply = cells.sync(0, CellRequest { want: 1, ..version(2, 50) });
        assert_eq!(
            (reply.version, reply.level + reply.grant.cast_signed()),
            (2, if is_window { 50_000_000 } else { 4_000_000 })
        );
        assert_eq!(cells.pay(0, version(1, 4), 60).1, CostCover::Never);
        assert_ne!(cells.pay(0, version(1, 4), 5).1, CostCover::Never, "50 fit");
    }
}

#[test]
fn missing_key_starts_empty_if_redis_lost_it() {
    let known = |ask, known_age_us| CellRequest { known_age_us, ..ask };
    for (age_us, level) in [(None, 20_000_000), (Some(9_000_000), 20_000_000), (Some(8_999_999), 0)] {
        let mut cells = Cells::default();
        cells.sync(0, CellRequest { key: [8; 16], ..bucket() });
        let reply = cells.sync(0, known(bucket(), age_us));
        assert_eq!((reply.level, reply.lost), (level, level == 0), "Redis evicted the key: {age_us:?}");
        let mut cells = Cells(Store::default(), 1);
        assert_eq!(cells.sync(0, known(bucket(), age_us)).lost, age_us.is_some(), "Redis lost its keys");
    }
    let reply = Cells::default().sync(0, known(window(), Some(20_000_000)));
    assert_eq!((reply.level, reply.lost, reply.window.unwrap().stands), (0, true, WindowStatus::SpentOut));
}

#[test]
fn hosts_share_scarce_tokens_by_demand() {
    let of_host = |demand| CellRequest { demand, want: 20 * TOKEN, ..bucket() };
    let mut cells = Cells::default();
    assert_eq!(cells.sync(0, CellRequest { want: 2_500_000, ..bucket() }).grant, 3 * TOKEN, "all of it");
    assert_eq!(cells.sync(0, CellRequest { back: 3 * TOKEN, ..bucket() }).level, 17_000_000, "still held");
    let mut cells = Cells::default();
    cells.sync(0, CellRequest { want: 0, ..of_host(3_000_000) });
    let reply = cells.sync(0, of_host(1_000_000));
    assert_eq!((reply.grant, reply.level, reply.demand, reply.hosts), (5 * TOKEN, 15_000_000, 4_000_000, 2));
    let last = Some(CellReport { hold: 0, demand: 3_000_000, generation: reply.generation });
    let again = |random| CellRequest { last, random, ..of_host(3_000_000) };
    let store = cells.0.clone();
    // Three quarters of 15 tokens.
    for (random, tokens) in [(249_999, 12), (250_000, 11)] {
        cells.0 = store.clone();
        assert_eq!(cells.sync(0, again(random)).grant, tokens * TOKEN);
    }
}

#[test]
fn sliding_window_waits_for_its_oldest_tokens() {
    let mut cells = Cells::default();
    assert_eq!(cells.pay(500_000, window(), 4), (6_000_000, CostCover::No));
    assert_eq!(cells.pay(1_500_000, window(), 4), (2_000_000, CostCover::No));
    for (tokens, wait) in [
        (3, CostCover::Until(1_500_000)),
        (6, CostCover::Until(1_500_000)),
        (7, CostCover::Until(2_500_000)),
        (11, CostCover::Never),
    ] {
        assert_eq!(cells.pay(1_500_000, window(), tokens), (2_000_000, wait));
    }
    // A refund of tokens that were paid in the second sub-bucket takes from the first one.
    let mut refund = window();
    refund.window = refund.window.map(|ask| WindowRequest { refund: 3 * TOKEN, ..ask });
    assert_eq!(cells.sync(1_500_000, refund).level, 2_000_000, "the time of the payment is unknown");
    refund.window = refund.window.map(|ask| WindowRequest { paid_us: Some(START_US + 1_500_000), ..ask });
    assert_eq!(cells.sync(1_500_000, refund).level, 5_000_000);
    assert_eq!(
        [2_999_999, 3_000_000, 4_000_000].map(|us| cells.level(us, window())),
        [5_000_000, 6_000_000, 10_000_000]
    );
}

#[test]
fn foreign_value_counts_as_missing() {
    for ask in [bucket(), window()] {
        let mut cells = Cells::default();
        cells.pay(0, ask, 5);
        let full = cells.0.0.keys.len();
        for entry in cells.0.0.keys.values_mut() {
            let virtual_redis::Value::Text(bytes) = &mut entry.value else { panic!("a text") };
            if bytes.len() > 8 {
                bytes[8..16].fill(0);
            }
        }
        assert_eq!(cells.level(0, ask).cast_unsigned(), ask.cell_quota.burst);
        assert_eq!(cells.0.0.keys.len(), full);
    }
}

#[test]
fn permits_are_added_up_to_the_maximum() {
    let mut cells = Cells::default();
    for (us, host, max, numbers, added, members) in [
        (0, 1, 3, [&[1, 2][..], &[], &[]], 2, 2),
        (0, 2, 3, [&[1, 2], &[], &[]], 1, 3),
        // Renewed permits count above the maximum.
        (0, 2, 1, [&[3], &[1, 2], &[]], 0, 4),
        (0, 2, 4, [&[3], &[], &[1, 2]], 1, 3),
        (1_999_999, 2, 4, [&[], &[3], &[]], 0, 3),
        (3_999_998, 2, 4, [&[], &[3], &[]], 0, 3),
        // Those of the other host expire, and all stay after a silence, once for six seconds.
        (4_000_000, 2, 4, [&[], &[], &[]], 0, 1),
        (8_000_000, 1, 4, [&[], &[], &[]], 0, 1),
        (11_000_000, 1, 4, [&[], &[], &[]], 0, 1),
        (14_000_001, 1, 4, [&[], &[], &[]], 0, 0),
    ] {
        assert_eq!(cells.permits(us, host, max, numbers), (Some(added), members), "{host} at {us} us");
    }
    cells.0.flush();
    assert_eq!(
        cells.permits(14_000_001, 2, 4, [&[4], &[3], &[]]),
        (None, 1),
        "other hosts may not have renewed theirs yet"
    );
}

#[test]
fn numbers_versions_of_a_quota() {
    let mut store = Store::default();
    let mut number = |numbers: &str, before: Option<(&str, u64)>| {
        let before = before.map(|(numbers, known)| (numbers.to_owned(), known));
        let command = VersionCommand { rule: 7, numbers: numbers.to_owned(), before };
        let ScriptReply::Version(number) = store.execute(&ScriptCommand::Version(command), START_US) else {
            panic!("a version")
        };
        number
    };
    assert_eq!(number("a", None), 1);
    assert_eq!(number("a", Some(("a", 1))), 1);
    assert_eq!([(); 2].map(|()| number("b", Some(("a", 1)))), [2, 2], "all hosts get one number");
    assert_eq!(number("a", None), 1, "a host that knows nothing changes nothing");
    assert_eq!(number("a", Some(("b", 2))), 3, "a return is a new version");
    assert_eq!(number("c", Some(("c", 9))), 9, "Redis lost it");
    for edit in 10..90 {
        let before = (edit - 1).to_string();
        assert_eq!(number(&edit.to_string(), Some((&before, edit - 1))), edit);
    }
    assert_eq!(number("27", None), 27);
    assert_eq!(number("26", None), 90, "the last 63 are known");
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    /// `struct.pack` panics at others.
    #[test]
    fn numbers_stay_exact_whatever_hosts_report(
        commands in vec((prop_oneof![0_u64..9_000_000, 0_u64..100_000_000_000_000], any_command()), 1..30),
    ) {
        let mut store = Store::default();
        store.execute(&sync_of(head(0), Vec::new()), START_US);
        commands.iter().for_each(|(us, command)| drop(store.execute(command, START_US + us)));
    }

    /// Any reply is clamped to valid values.
    #[test]
    fn clamps_absurd_replies(bytes in vec(any::<u8>(), 70), is_window in any::<bool>(), length in 0_usize..72) {
        let (ask, expected) = if is_window { (window(), 70) } else { (bucket(), 61) };
        let command = sync_of(head(0), vec![CellRequest { want: AMOUNT_MAX, ..ask }]);
        let length = length.min(bytes.len());
        let received = ScriptReply::decode(&command, &bytes[..length]);
        prop_assert_eq!(received.is_ok(), length == expected);
        let Ok((ScriptReply::Sync(answer), _)) = received else { return Ok(()) };
        let reply = &answer.results[0];
        prop_assert!(reply.level <= BURST_MAX.cast_signed() && reply.level > -AMOUNT_MAX.cast_signed());
        prop_assert!(reply.demand <= 2 * DEMAND_MAX && reply.grant <= AMOUNT_MAX + TOKEN);
        prop_assert!(reply.grant % TOKEN == 0 && reply.hosts <= 1_000_000_000);
        prop_assert!(reply.generation.abs_diff(answer.now_us / GENERATION_US) <= 1);
    }

    /// The number of reads does not affect the refill.
    #[test]
    fn refill_is_independent_of_step_size(
        spent in 0_u64..2_000,
        held in (0_u64..2_000_000_000, 0_u64..2_000_000_000),
        rate in (1_u64..5_000_000, 1_u64..5_000),
        moments in vec(2_000_000_u64..11_000_000, 1..8),
    ) {
        let common = (1..=rate.0.min(rate.1)).rev().find(|by| rate.0 % by == 0 && rate.1 % by == 0).unwrap();
        let rate = CellRate::new(rate.0 / common, rate.1 / common).unwrap();
        let ask = CellRequest { cell_quota: CellQuota { version: 1, rate, burst: 2_000 * TOKEN }, ..bucket() };
        let mut cells = Cells::default();
        cells.pay(0, ask, spent);
        cells.sync(0, CellRequest { hold: held.0, ..ask });
        cells.sync(2_000_000, CellRequest { hold: held.1, ..ask });
        let mut moments = moments;
        moments.sort_unstable();
        let mut often = Cells(cells.0.clone(), cells.1);
        let levels = moments.iter().map(|moment| often.level(*moment, ask)).last();
        prop_assert_eq!(Some(cells.level(moments[moments.len() - 1], ask)), levels);
        prop_assert_eq!(format!("{:?}", cells.0), format!("{:?}", often.0));
    }
}
