//! What operators say to all hosts, as bytes: what one host writes another reads, and what could not be meant is left out.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::{prop_assert, prop_assert_eq, proptest};
use tidegate::clock::Timestamp;
use tidegate::engine::{Blocked, By, FleetOrders, FleetWord, Mode, RuleName, Switch, Target};
use tidegate::fleet::orders::{ENTRIES_MAX, LIST_BYTES_MAX, Moment, list_of, read};

const HOST: [u8; 16] = [0xab; 16];
const BY: By = By::Fleet { uid: 7, host: [0xab; 4] };

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(seconds * 1_000_000_000)
}

/// Two hosts whose clocks have nothing in common.
fn here() -> Moment {
    Moment { redis_us: 1_700_000_000_000_000, at: at(5_000) }
}

fn there() -> Moment {
    Moment { redis_us: 1_700_000_003_000_000, at: at(90_000) }
}

fn name(rule: &str) -> RuleName {
    RuleName { domain: "api".into(), rule: rule.into() }
}

fn switch(rule: &str, mode: Mode, until: Option<u64>) -> Switch {
    Switch { target: Target::Rule(name(rule)), mode, until: until.map(at), said: at(4_990), by: By::User(7) }
}

fn block(key: u64, until: u64) -> Blocked {
    Blocked {
        rule: name("r"),
        key: [key, 9],
        text: Some("user=ann".into()),
        until: at(until),
        by: By::User(7),
    }
}

#[test]
fn what_one_host_says_another_hears_by_its_own_clock() {
    let orders = FleetOrders {
        stamp: [1; 32],
        switches: vec![
            switch("a", Mode::Enforce, Some(5_060)),
            switch("b", Mode::Shadow, None),
            switch("over", Mode::Disabled, Some(5_002)),
        ],
        blocks: vec![block(1, 5_100), block(2, 5_001)],
    };
    let list = list_of(&orders, &HOST, here()).unwrap();
    assert!(!String::from_utf8_lossy(&list).contains("ann"), "no value goes to Redis");
    let heard = read(&list, there());
    assert_eq!(heard.refused, 0);
    // Three seconds have passed: 57 are left, and it was said 13 s ago.
    let first = &heard.orders.switches[0];
    assert_eq!((first.until, first.said, first.by), (Some(at(90_057)), at(89_987), BY));
    let targets: Vec<_> = heard.orders.switches.iter().map(|switch| switch.target.to_string()).collect();
    assert_eq!(targets, ["api/a", "api/b"], "what is over is over");
    let blocks: Vec<_> = heard.orders.blocks.iter().map(|block| (block.key, block.until)).collect();
    assert_eq!(blocks, [([1, 9], at(90_097))]);
}

#[test]
fn the_last_word_takes_the_place_of_the_one_before() {
    let mut orders = FleetOrders::default();
    let everything = |mode| Switch { target: Target::Everything, ..switch("", mode, None) };
    let steps = [
        (FleetWord::Switch(switch("a", Mode::Shadow, None)), true, (1, 0)),
        (FleetWord::Switch(switch("a", Mode::Disabled, None)), true, (1, 0)),
        (FleetWord::Switch(everything(Mode::Shadow)), true, (2, 0)),
        (FleetWord::Switch(everything(Mode::Enforce)), true, (1, 0)),
        (FleetWord::Clear(Target::Everything), false, (1, 0)),
        (FleetWord::Block(block(1, 9_000)), true, (1, 1)),
        (FleetWord::Block(block(1, 8_000)), true, (1, 1)),
        (FleetWord::Free(name("other"), [1, 9]), false, (1, 1)),
        (FleetWord::Free(name("r"), [1, 9]), true, (1, 0)),
        (FleetWord::Clear(Target::Rule(name("a"))), true, (0, 0)),
    ];
    for (word, is_change, left) in steps {
        let (after, changed) = orders.after(&word);
        assert_eq!((changed, (after.switches.len(), after.blocks.len())), (is_change, left), "{word:?}");
        orders = after;
    }
}

#[test]
fn more_than_fits_is_refused_and_not_written() {
    let many = |count: usize, rule: &str| FleetOrders {
        switches: (0..count).map(|number| switch(&format!("{rule}{number}"), Mode::Shadow, None)).collect(),
        ..FleetOrders::default()
    };
    assert!(list_of(&many(ENTRIES_MAX, "r"), &HOST, here()).unwrap().len() <= LIST_BYTES_MAX);
    assert!(list_of(&many(ENTRIES_MAX + 1, "r"), &HOST, here()).is_err());
    assert!(list_of(&many(200, &"r".repeat(400)), &HOST, here()).is_err());
}

/// An entry as anybody might write it.
fn entry(kind: u8, mode: u8, said: u64, until: u64, domain: &[u8], rule: &[u8], key: &[u8]) -> Vec<u8> {
    let mut entry = vec![kind, mode, 7, 0, 0, 0, 1, 2, 3, 4];
    entry.extend(said.to_le_bytes());
    entry.extend(until.to_le_bytes());
    entry.push(u8::try_from(domain.len()).unwrap());
    entry.extend(domain);
    entry.extend(u16::try_from(rule.len()).unwrap().to_le_bytes());
    entry.extend(rule);
    entry.extend(key);
    [&u16::try_from(entry.len()).unwrap().to_le_bytes()[..], &entry].concat()
}

#[test]
fn what_no_operator_could_say_is_left_out_and_the_rest_holds() {
    let now = here().redis_us;
    let good = entry(1, 1, now, 0, b"api", b"r", b"");
    let cases: [(&str, Vec<u8>); 10] = [
        ("a kind that nobody knows", entry(3, 0, now, 0, b"api", b"x", b"")),
        ("a mode that nobody knows", entry(1, 3, now, 0, b"api", b"x", b"")),
        ("everything switched to enforce", entry(1, 0, now, 0, b"", b"", b"")),
        ("half a name", entry(1, 0, now, 0, b"api", b"", b"")),
        ("a name that moves the cursor", entry(1, 0, now, 0, b"api", b"\x1b[2J", b"")),
        ("a name that is no text", entry(1, 0, now, 0, b"api", b"\xff", b"")),
        ("a switch with something behind it", entry(1, 0, now, 0, b"api", b"x", b"more")),
        ("a block without an end", entry(2, 0, now, 0, b"api", b"x", &[1; 16])),
        ("a block with half a key", entry(2, 0, now, now + 1_000_000, b"api", b"x", &[1; 8])),
        ("the same a second time", good.clone()),
    ];
    for (what, bad) in cases {
        let heard = read(&[&good[..], &bad, &entry(1, 2, now, 0, b"api", b"s", b"")].concat(), here());
        assert_eq!(
            (heard.orders.switches.len(), heard.orders.blocks.len(), heard.refused),
            (2, 0, 1),
            "{what}"
        );
    }
    // An end in a thousand years is the last that can be said, and a word from the future was said now.
    let far = entry(2, 0, now + 9_000_000_000, u64::MAX, b"api", b"x", &[1; 16]);
    let heard = read(&far, here());
    assert_eq!(heard.orders.blocks[0].until, here().at.after(Duration::from_secs(366 * 86_400)));
    let early = read(&entry(1, 0, now + 9_000_000_000, 0, b"api", b"x", b""), here());
    assert_eq!(early.orders.switches[0].said, here().at);
    // One more than there may be.
    let many: Vec<u8> = (0..=ENTRIES_MAX)
        .flat_map(|number| entry(1, 2, now, 0, b"api", number.to_string().as_bytes(), b""))
        .collect();
    let heard = read(&many, here());
    assert_eq!((heard.orders.switches.len(), heard.refused), (ENTRIES_MAX, 1));
}

proptest! {
    /// Whatever stands there: nothing panics, every block ends, and what is read is read so again.
    #[test]
    fn any_bytes_are_read(bytes in vec(any::<u8>(), 0..300), cut in 0_usize..400, flip in any::<usize>()) {
        let now = here().redis_us;
        let mut list = [entry(1, 0, now, now + 5_000_000, b"api", b"r", b""), entry(2, 0, now, now + 9, b"a", b"b", &[3; 16]), bytes].concat();
        list.truncate(cut);
        if !list.is_empty() {
            let place = flip % list.len();
            list[place] ^= 1 << (flip % 8);
        }
        let heard = read(&list, here());
        let latest = here().at.after(Duration::from_secs(366 * 86_400));
        prop_assert!(heard.orders.blocks.iter().all(|block| block.until <= latest && block.until > here().at));
        prop_assert!(heard.orders.switches.iter().all(|switch| switch.said <= here().at));
        let again = read(&list_of(&heard.orders, &HOST, here()).unwrap(), here());
        prop_assert_eq!(again.refused, 0);
        prop_assert_eq!(again.orders.switches.len(), heard.orders.switches.len());
    }
}
