//! The busiest and the most often refused callers.

use std::collections::HashMap;

use super::bench::{Ask, Bench, S, at};
use crate::rng::Rng;

fn texts(callers: &[tidegate::engine::Caller]) -> Vec<Option<&str>> {
    callers.iter().map(|caller| caller.text.as_deref()).collect()
}

#[test]
fn ranks_refused_callers_and_names_them_if_shown() {
    let rules = "  - {name: shown, key: [user, org], rate: 5/h, show_keys: [org]}\n\
                 \x20 - {name: hidden, key: [user], rate: 1000/s, mode: shadow, candidate: {rate: 1/h}}\n";
    let mut bench = Bench::new(rules);
    for turn in 0..320u64 {
        bench.ask(turn, Ask::hit("user=greedy org=o1", 1));
        bench.ask(turn, Ask::hit(&format!("user=u{turn} org=o2"), 1));
    }
    let shown = bench.engine.top_callers("api", "shown");
    assert_eq!(texts(&shown.refused), [Some("org=o1")]);
    assert_eq!((shown.refused[0].count, shown.refused[0].error), (315, 0));
    assert_eq!(shown.would_refuse, []);
    let hidden = bench.engine.top_callers("api", "hidden");
    assert_eq!((hidden.refused, hidden.would_refuse), (Vec::new(), Vec::new()));
    let candidate = bench.engine.top_callers("api", "hidden@candidate").would_refuse;
    assert_eq!(texts(&candidate)[0], None, "no text without leave");
    assert_eq!(candidate[0].count, 319);
    // One request in 16 is sampled and counts 16: about 640 in all, half of them of `greedy`.
    let seen = hidden.busiest.iter().map(|caller| caller.count).sum::<u64>();
    assert!((600..=680).contains(&seen), "{seen}");
    assert!((280..=360).contains(&hidden.busiest[0].count), "{:?}", hidden.busiest[0]);
    assert_eq!(hidden.busiest[0].digest.len(), 32);
}

#[test]
fn cuts_long_texts_and_names_newcomers() {
    let rules = "  - {name: a, key: [user], rate: 1/h, show_keys: [user]}\n";
    let refuse = |users: &[String]| {
        let mut bench = Bench::new(rules);
        for user in users {
            (0..2).for_each(|_| drop(bench.ask(0, Ask::hit(&format!("user={user}"), 1))));
        }
        bench.engine.top_callers("api", "a").refused
    };
    for (user, kept) in [
        ("a".repeat(59), "a".repeat(59)),
        ("a".repeat(60), "a".repeat(58) + "~"),
        // A character that does not fit is dropped whole.
        ("a".repeat(57) + "éé", "a".repeat(57) + "~"),
    ] {
        assert_eq!(texts(&refuse(&[user])), [Some(&*format!("user={kept}"))]);
    }
    // The 33rd caller takes the place of another.
    let users: Vec<_> = (1..=33).map(|number| number.to_string()).collect();
    assert!(texts(&refuse(&users)).contains(&Some("user=33")));
}

#[test]
fn drops_names_once_hidden_and_halves_counts() {
    let mut bench = Bench::new("  - {name: a, key: [user], rate: 1/h, show_keys: [user]}\n");
    bench.check(&[(0, "user=u", 1, "allow a 0/1"), (0, "user=u", 1, "limit a 0/1 after 3600000000")]);
    assert_eq!(texts(&bench.engine.top_callers("api", "a").refused), [Some("user=u")]);
    bench.install("  - {name: a, key: [user], rate: 1/h}\n");
    assert_eq!(bench.engine.top_callers("api", "a").refused, []);
    bench.check(&[(0, "user=u", 1, "limit a 0/1 after 3600000000")]);
    let count =
        |bench: &Bench| bench.engine.top_callers("api", "a").refused.first().map_or(0, |caller| caller.count);
    for minute in 0..10 {
        bench.engine.sweep(at(minute * 60 * S));
        assert_eq!(count(&bench), 1, "in minute {minute}");
    }
    bench.engine.sweep(at(600 * S));
    assert_eq!(bench.engine.top_callers("api", "a").refused, [], "one, halved, is none");
}

#[test]
fn ranks_no_caller_among_single_requests() {
    let mut bench = Bench::new("  - {name: a, key: [user], rate: 1/s}\n");
    for turn in 0..65_536u64 {
        bench.ask(turn, Ask::hit(&format!("user=u{turn}"), 1));
    }
    assert_eq!(bench.engine.top_callers("api", "a").busiest, []);
    // A caller with a sixteenth of all earlier requests is listed.
    for turn in 0..4_096u64 {
        bench.ask(65_536 + turn, Ask::hit("user=greedy", 1));
    }
    let busiest = bench.engine.top_callers("api", "a").busiest;
    assert_eq!(busiest.len(), 1, "{busiest:?}");
    assert!((3_750..=4_100).contains(&busiest[0].count), "{busiest:?}");
}

/// The promise of space-saving with 32 counters, also where counts were halved.
#[test]
fn every_count_is_within_its_error() {
    for seed in 0..40 {
        let (mut rng, mut exact) = (Rng::new(seed), HashMap::<String, u64>::new());
        let mut bench = Bench::new("  - {name: a, key: [user], rate: 1/h, show_keys: [user]}\n");
        let (mut total, mut halvings) = (0, 0);
        bench.engine.sweep(at(0));
        for _ in 0..rng.below(2_000) {
            if rng.below(200) == 0 {
                halvings += 1;
                bench.engine.sweep(at(halvings * 600 * S));
                exact.values_mut().for_each(|count| *count /= 2);
                total /= 2;
            }
            // The larger the number, the rarer. The cost is above the burst.
            let bits = rng.below(10);
            let user = format!("user=u{}", rng.below(1 << bits));
            let cost = if rng.below(9) == 0 { 2 + rng.below(100) } else { 2 };
            bench.ask(halvings * 600 * S, Ask::hit(&user, u32::try_from(cost).unwrap()));
            *exact.entry(user).or_default() += cost;
            total += cost;
        }
        let shown = bench.engine.top_callers("api", "a").refused;
        for caller in &shown {
            let count = exact[caller.text.as_deref().unwrap()];
            let (least, most) = (caller.count, caller.count + caller.error);
            assert!((least..=most).contains(&count), "{caller:?}: {count}, SEED={seed}");
            assert!(
                caller.error <= total / 32 + u64::from(halvings > 0),
                "{caller:?} of {total}, SEED={seed}"
            );
        }
        // A caller stands out whose certain count is at least its error.
        for (user, count) in exact.iter().filter(|(_, count)| **count > 2 * (total / 32) + 2) {
            assert!(
                shown.iter().any(|caller| caller.text.as_deref() == Some(user)),
                "{user}: {count}, SEED={seed}"
            );
        }
    }
}
