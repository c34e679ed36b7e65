//! A candidate is a shadow rule beside its rule: its refusals are noted under the name of the rule.

use tidegate::rules::{Mode, read_text};

use super::bench::{Bench, S};

#[test]
fn a_candidate_is_charged_for_what_it_passes() {
    let mut bench = Bench::new("  - {name: a, key: [u], rate: 4/min, candidate: {rate: 2/min}}\n");
    bench.check(&[
        (0, "u=1", 1, "allow a 3/4"),
        (0, "u=1", 1, "allow a 2/4"),
        (0, "u=1", 1, "allow a 1/4 [candidate a]"),
        (0, "u=1", 1, "allow a 0/4 [candidate a]"),
        (0, "u=1", 1, "limit a 0/4 after 15000000 [candidate a]"),
        // One has come back to the rule, none to the candidate.
        (15 * S, "u=1", 1, "allow a 0/4 [candidate a]"),
        (30 * S, "u=1", 1, "allow a 0/4"),
    ]);
}

#[test]
fn charges_a_candidate_for_granted_requests_alone() {
    let mut bench = Bench::new("  - {name: a, key: [], rate: 1/min, candidate: {rate: 1/h, burst: 2}}\n");
    bench.check(&[
        (0, "", 1, "allow a 0/1"),
        (0, "", 1, "limit a 0/1 after 60000000"),
        (60 * S, "", 1, "allow a 0/1"),
        (120 * S, "", 1, "allow a 0/1 [candidate a]"),
    ]);
}

#[test]
fn a_candidate_may_be_of_another_algorithm() {
    let rules = "  - {name: a, key: [], rate: 2/min, candidate: {algorithm: sliding_log}}\n";
    let mut bench = Bench::new(rules);
    bench.check(&[
        (0, "", 2, "allow a 0/2"),
        (30 * S, "", 1, "allow a 0/2 [candidate a]"),
        (60 * S, "", 1, "allow a 0/2"),
    ]);
}

#[test]
fn a_candidate_is_a_rule_by_name() {
    let rule = |mode: &str| format!("  - {{name: a, key: [], rate: 9/h, candidate: {{rate: 1/h}}{mode}}}\n");
    for (mode, of_candidate) in
        [("", Mode::Shadow), (", mode: shadow", Mode::Shadow), (", mode: disabled", Mode::Disabled)]
    {
        let loaded = read_text("a.yaml", &format!("domain: api\nlimits:\n{}", rule(mode)));
        let [own, candidate] = loaded.domains[0].rules() else { panic!("{loaded:?}") };
        assert_eq!((&*own.name, &*candidate.name, candidate.mode), ("a", "a@candidate", of_candidate));
        assert!(!candidate.advertise && candidate.key == own.key);
    }
    let taken = "domain: api\nlimits:\n- {name: a@candidate, key: [], rate: 1/s}\n- {name: a, key: [], rate: 2/s, candidate: {rate: 1/s}}\n";
    let loaded = read_text("a.yaml", taken);
    assert!(
        loaded.problems[0].to_string().starts_with("a.yaml:4:44: error: a second rule named `a@candidate`"),
        "{loaded:?}"
    );
}
