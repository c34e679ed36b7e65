//! More rules in succession than there are counter slots by name.

use std::collections::BTreeMap;

use tidegate::engine::{Descriptors, Op, Request, RuleTotals, Totals};

use super::bench::{Bench, S, at};
use super::engines::domains;

/// More names than slots, so that some slots are reused twice.
const NAMES: u64 = 600;

fn rule(number: u64) -> String {
    format!("  - {{name: n{number}, key: [], rate: 100/s}}\n")
}

/// Requests to a rule; they differ for neighbours.
fn hits(number: u64) -> u64 {
    number % 3 + 1
}

fn ask(bench: &mut Bench, number: u64) {
    bench.install(&rule(number));
    for _ in 0..hits(number) {
        assert!(bench.peek(number * S, "", 1).starts_with(&format!("allow n{number} ")));
        bench.check(&[(number * S, "", 0, &format!("allow n{number} 100/100"))]);
    }
}

fn passed(totals: &Totals) -> BTreeMap<&str, u64> {
    totals.rules.iter().map(|rule| (&*rule.rule, rule.pass)).collect()
}

#[test]
fn new_rule_gets_its_own_series() {
    let mut bench = Bench::new(&rule(0));
    let mut others = 0;
    for number in 0..NAMES {
        ask(&mut bench, number);
        let totals = bench.engine.totals();
        let passed = passed(&totals);
        // Its own count, and nothing of the slot's previous owner.
        assert_eq!(passed.get(&*format!("n{number}")), Some(&hits(number)), "n{number}");
        assert!(passed["other"] >= others, "{passed:?}");
        others = passed["other"];
        // Nothing is lost or counted twice.
        assert_eq!(passed.values().sum::<u64>(), (0..=number).map(hits).sum::<u64>(), "n{number}");
        assert_eq!(totals.verdicts.allow, (0..=number).map(hits).sum::<u64>(), "n{number}");
        // Each slot is given away once in some hundred steps.
        if number % 16 != 15 {
            continue;
        }
        for (name, count) in passed.iter().filter(|(name, _)| **name != "other") {
            let number: u64 = name.strip_prefix('n').unwrap().parse().unwrap();
            assert_eq!(*count, hits(number), "{name} has its own count or no series");
        }
    }
    assert_eq!(bench.engine.totals().rules.len(), 513);
    // A returning rule starts at zero; its earlier counts stay in `other`.
    ask(&mut bench, 0);
    let totals = bench.engine.totals();
    let passed = passed(&totals);
    assert!(passed["n0"] == hits(0) && passed["other"] >= others, "{passed:?}");
}

#[test]
fn keeps_slot_while_a_rule_set_uses_it() {
    let mut bench = Bench::new(&rule(0));
    ask(&mut bench, 0);
    let looked_at = bench.engine.in_force();
    for number in 1..NAMES {
        ask(&mut bench, number);
    }
    let count = |bench: &Bench, name: &str| {
        bench.engine.totals().rules.iter().find(|rule| *rule.rule == *name).map(|rule| rule.pass)
    };
    assert_eq!(count(&bench, "n0"), Some(hits(0)), "it may still count there");
    assert_eq!(count(&bench, "n1"), None, "those after it were given away");
    drop(looked_at);
    ask(&mut bench, NAMES);
    assert_eq!(count(&bench, "n0"), None);
}

#[test]
fn current_rules_keep_slots_and_excess_rules_share_one() {
    let all: String = (0..NAMES).map(rule).collect();
    let mut bench = Bench::new(&all);
    bench.check(&[(0, "", 1, "allow n0 99/100")]);
    let with_name = |totals: &Totals| totals.rules.iter().filter(|rule| rule.pass > 0).count();
    assert_eq!(with_name(&bench.engine.totals()), 513);
    let of = |totals: &Totals, name: &str| -> RuleTotals {
        totals.rules.iter().find(|rule| *rule.rule == *name).cloned().unwrap_or_default()
    };
    assert_eq!(of(&bench.engine.totals(), "other").pass, NAMES - 512);
    // Rules without a slot get one at the next reload after others are removed; the rest keep theirs.
    for second in 1..3 {
        bench.install(&(100..NAMES).map(rule).collect::<String>());
        bench.check(&[(second * S, "", 1, "allow n100 99/100")]);
    }
    let totals = bench.engine.totals();
    assert_eq!((of(&totals, "n100").pass, of(&totals, "n599").pass), (3, 1));
    assert_eq!(totals.rules.iter().map(|rule| rule.pass).sum::<u64>(), NAMES + 2 * (NAMES - 100));
}

/// A decision that matches no rule of its domain counts for the domain, beside the counts of rules.
#[test]
fn counts_first_domains_by_name_and_further_ones_with_other_rules() {
    let mut bench = Bench::new(&rule(0));
    let of_number = |number: u64| {
        domains(&format!("domain: d{number}\nlimits:\n- {{name: a, key: [user], rate: 1/s}}\n"))
    };
    bench.engine.install_rules((0..100).flat_map(of_number));
    let mut hit = |domain: &str| {
        let request = Request::new(Op::Hit, domain, Descriptors::from_attributes(&[]));
        drop(bench.decider.decide(&request, at(0)));
    };
    for number in 0..100 {
        (0..hits(number)).for_each(|_| hit(&format!("d{number}")));
    }
    hit("nowhere");
    let totals = bench.engine.totals();
    let named: BTreeMap<&str, u64> =
        totals.unnamed.iter().map(|(domain, verdicts)| (&**domain, verdicts.allow)).collect();
    // With `api` they are 64.
    for number in 0..63 {
        assert_eq!(named[&*format!("d{number}")], hits(number), "d{number}");
    }
    assert_eq!((named.len(), named[""]), (65, 1), "no domain is apart");
    let others = totals.rules.last().map(|others| others.verdicts.allow);
    assert_eq!(others, Some((63..100).map(hits).sum()));
}
