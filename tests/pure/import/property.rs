//! Random trees, random requests, virtual time: what was made of a tree decides what the tree decided.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{Answer, Cost, Decider, Descriptors, Engine, HashKey, Op, Options, Request, Verdict};
use tidegate::rules::native::{Native, native};
use tidegate::rules::{Mode, RuleSet, read};

use super::tree::{Attributes, Dice, Tree, attributes, descriptors};

/// The verdict, the wait, and what is left of each limit, by its number and window.
type Seen = (Verdict, Option<u64>, Vec<(u64, u64, u64)>);

fn decider(rules: &Path) -> Decider {
    let loaded = read(rules);
    assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
    let key = HashKey::from_bytes([7; 16]);
    let engine =
        Arc::new(Engine::new(Options { hash_key: key, mode: Mode::Enforce, memory_bytes_max: 64 << 20 }));
    engine.install(RuleSet::new(loaded.domains));
    engine.decider()
}

fn ask(decider: &mut Decider, sent: &[Vec<(&str, &str)>], cost: u32, now: Now) -> Seen {
    let mut pairs = Vec::new();
    let mut ends = Vec::new();
    for descriptor in sent {
        pairs.extend_from_slice(descriptor);
        ends.push(u8::try_from(pairs.len()).unwrap());
    }
    let descriptors = Descriptors { attributes: &pairs, ends: &ends };
    let request =
        Request { cost: Cost::Requests(cost), all: true, ..Request::new(Op::Hit, "api", descriptors) };
    let Answer::Decided(decision) = decider.decide(&request, now) else { panic!("not decided") };
    let mut levels: Vec<_> =
        decision.all().map(|view| (view.level.limit, view.level.window.0, view.level.remaining)).collect();
    levels.sort_unstable();
    (decision.verdict, decision.retry.map(|retry| retry.0), levels)
}

/// What the runs had in them: a test in which nothing is refused says nothing.
#[derive(Debug, Default)]
struct Met {
    rules: usize,
    left: usize,
    whole: usize,
    requests: usize,
    refused: usize,
}

fn made(tree: &Tree, into: &Path) -> Option<Native> {
    fs::write(into.join("old.yaml"), &tree.text).unwrap();
    let (mut made, _) =
        native(&into.join("old.yaml")).unwrap_or_else(|problems| panic!("{problems:#?}\n{}", tree.text));
    let made = made.pop()?;
    fs::create_dir_all(into.join("new")).unwrap();
    for (name, text) in [("limits", &made.rules), ("descriptors", &made.tree)] {
        if let Some(text) = text {
            fs::write(into.join(format!("new/api.{name}.yaml")), text).unwrap();
        }
    }
    Some(made)
}

fn run(seed: u64, met: &mut Met) {
    let mut dice = Dice::new(seed);
    let directory = tempfile::tempdir().unwrap();
    let tree = Tree::random(&mut dice);
    let Some(native) = made(&tree, directory.path()) else { return };
    met.rules += native.rules_count;
    met.left += native.left.len();
    met.whole += usize::from(native.left.is_empty());
    if native.rules.is_none() && native.tree.is_none() {
        return;
    }
    let mut old = decider(&directory.path().join("old.yaml"));
    let mut new = decider(&directory.path().join("new"));
    let mut flat = native.left.is_empty().then(|| decider(&directory.path().join("new")));
    let mut at = dice.below(1 << 50);
    for step in 0..120 {
        at += match dice.below(20) {
            0 => dice.below(40 * 86_400) * 1_000_000_000,
            1..3 => dice.below(4_000) * 1_000_000_000,
            _ => dice.below(900_000_000),
        };
        let now = Now { at: Timestamp::from_nanos(at), utc: 1_700_000_000_000_000_000 };
        let about: Attributes = attributes(&mut dice);
        let sent = descriptors(&tree.lists, &about);
        if sent.len() > 8 || sent.is_empty() {
            continue;
        }
        let cost = if dice.one_in(6) { 2 } else { 1 };
        let expected = ask(&mut old, &sent, cost, now);
        met.requests += 1;
        met.refused += usize::from(expected.0 == Verdict::Limit);
        let context = || format!("SEED={seed} step {step}: {sent:?} cost {cost}\n{}\n{native:#?}", tree.text);
        assert_eq!(ask(&mut new, &sent, cost, now), expected, "{}", context());
        if let Some(flat) = &mut flat {
            let attributes = vec![about.into_iter().collect::<Vec<_>>()];
            assert_eq!(
                ask(flat, &attributes, cost, now),
                expected,
                "one descriptor of all attributes: {}",
                context()
            );
        }
    }
}

#[test]
fn what_was_made_of_a_tree_decides_what_the_tree_decided() {
    let runs: u64 = std::env::var("TREES").map_or(200, |runs| runs.parse().unwrap());
    let first: u64 = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut met = Met::default();
    for seed in first..first + runs {
        run(seed, &mut met);
    }
    println!("SEED={first} TREES={runs}: {met:?}");
    if runs >= 100 {
        let Met { rules, left, whole, requests, refused } = met;
        assert!(rules > 100 && left > 100 && whole > 10, "{rules} rules, {left} left, {whole} without");
        assert!(refused * 10 > requests && refused * 10 < requests * 9, "{refused} of {requests} refused");
    }
}
