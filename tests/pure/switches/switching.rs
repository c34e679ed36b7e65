//! Switches, blocks by hand and the guard: their bounds, their restore, every algorithm under them, and the sample of
//! callers. `engine/scenarios/` has the rest.

use tidegate::clock::Timestamp;
use tidegate::engine::{
    BlockedKey, ControlEvent, HostOverrides, RuleName, Switch, SwitchError, SwitchOrigin, SwitchView, Target,
};
use tidegate::rules::Mode;

use super::bench::{Ask, Bench, S, at};

const LIMITS: &str = "  - {name: a, key: [user], rate: 1/h, burst: 1}\n";

pub(crate) fn name(rule: &str) -> RuleName {
    RuleName { domain: "api".into(), rule: rule.into() }
}

fn switch_of(target: Target, mode: Mode, until: Option<u64>) -> Switch {
    let until = until.map(|micros| Timestamp::from_nanos(micros * 1_000));
    Switch { target, mode, until, set_at: Timestamp::ORIGIN, by: SwitchOrigin::User(0) }
}

#[track_caller]
pub(crate) fn switch(bench: &Bench, rule: &str, mode: Mode, until: Option<u64>) -> SwitchView {
    bench.engine.set_switch(&switch_of(Target::Rule(name(rule)), mode, until)).unwrap()
}

#[test]
fn restores_switches_before_rules_load() {
    let before = Bench::new(LIMITS);
    switch(&before, "a", Mode::Disabled, Some(100 * S));
    let overrides = before.engine.operator_overrides();
    let mut after = Bench::of(Mode::Enforce, "domain: other\n");
    after.engine.restore_operator_overrides(overrides.clone());
    assert_eq!(after.engine.operator_overrides(), overrides);
    after.install(LIMITS);
    after.check(&[(0, "user=u", 9, "allow")]);
    after.engine.tick(at(100 * S));
    assert_eq!(after.engine.operator_overrides(), HostOverrides::default());
    after.check(&[(100 * S, "user=u", 9, "limit a 1/1 never")]);
}

#[test]
fn bounds_number_of_switches() {
    let rules: String = (0..513).map(|n| format!("  - {{name: r{n}, key: [x{n}], rate: 1/h}}\n")).collect();
    let bench = Bench::new(&rules);
    let rules = (0..512).map(|n| Target::Rule(name(&format!("r{n}"))));
    let switches = rules.map(|rule| switch_of(rule, Mode::Shadow, None)).collect();
    bench.engine.restore_operator_overrides(HostOverrides { switches, ..HostOverrides::default() });
    let one_more = switch_of(Target::Rule(name("r512")), Mode::Shadow, None);
    assert_eq!(bench.engine.set_switch(&one_more), Err(SwitchError::TooMany));
    switch(&bench, "r0", Mode::Disabled, None);
}

#[track_caller]
fn block(bench: &Bench, rule: &str, attributes: &[(&str, &str)], ends: u64) -> BlockedKey {
    bench.engine.block_key(&name(rule), attributes, at(ends).at, SwitchOrigin::User(7)).unwrap()
}

/// Rules of every algorithm, and the level of a new key.
const RULES: &[(&str, &str)] = &[
    ("rate: 10/h, burst: 10", "10/10"),
    ("rate: 10/h, algorithm: leaky_bucket, queue: 9", "10/10"),
    ("rate: 10/h, algorithm: fixed_window, align: first", "10/10"),
    ("rate: 10/h, algorithm: sliding_log", "10/10"),
    ("rate: 10/h, algorithm: sliding_window", "10/10"),
    ("rate: unlimited", "0/0"),
    ("rate: 10/h, block: 5s", "10/10"),
    ("rate: 10/h, over: {soft: 50%}", "10/10"),
    ("rate: 10/h, algorithm: fixed_window, refused: counted, align: first", "10/10"),
];

#[test]
fn refuses_blocked_key_until_deadline_for_any_algorithm() {
    for (rule, level) in RULES {
        let mut bench = Bench::new(&format!("  - {{name: a, key: [user], {rule}}}\n"));
        let blocked = block(&bench, "a", &[("user", "u")], 60 * S);
        assert_eq!((blocked.text.clone(), blocked.format_digest().len()), (None, 32));
        let level = if rule.contains("counted") { "9/10" } else { *level };
        let seen = bench.ask(0, Ask::hit("user=u", 1));
        assert_eq!(seen, format!("limit a {level} after 60000000"), "{rule}");
        assert!(bench.ask(0, Ask::hit("user=v", 1)).starts_with("allow"), "{rule}: another key");
        assert!(bench.peek(0, "user=u", 1).starts_with("limit"), "{rule}");
        // Exact to 1 µs: only the event needs a tick.
        let seen = bench.ask(60 * S - 1, Ask::hit("user=u", 1));
        assert!(seen.starts_with("limit") && seen.ends_with("after 1"), "{rule}: {seen}");
        assert!(bench.ask(60 * S, Ask::hit("user=u", 1)).starts_with("allow"), "{rule}: it has ended");
        assert_eq!(bench.engine.blocked_keys().len(), 1);
        bench.engine.tick(at(60 * S));
        assert!(bench.engine.blocked_keys().is_empty());
        assert_eq!(bench.engine.take_control_events(), [ControlEvent::BlockEnded(blocked)]);
    }
}

#[test]
fn reset_key_is_fresh() {
    for (rule, _) in RULES {
        let text = format!("  - {{name: a, key: [user], {rule}}}\n");
        let mut bench = Bench::new(&text);
        let fresh: Vec<String> = trial(&mut Bench::new(&text));
        assert_eq!(trial(&mut bench), fresh, "{rule}");
        if *rule != "rate: unlimited" {
            assert!(bench.engine.reset_key(&name("a"), &[("user", "u")]).unwrap(), "{rule}");
        }
        assert!(!bench.engine.reset_key(&name("a"), &[("user", "u")]).unwrap(), "{rule}: nothing is left");
        assert_eq!(trial(&mut bench), fresh, "{rule}");
        block(&bench, "a", &[("user", "u")], 60 * S);
        assert!(bench.engine.reset_key(&name("a"), &[("user", "u")]).unwrap(), "{rule}");
        assert_eq!(trial(&mut bench), fresh, "{rule}");
        assert!(bench.ask(0, Ask::hit("user=v", 10)).starts_with("allow"));
    }
}

fn trial(bench: &mut Bench) -> Vec<String> {
    (0..18).map(|_| bench.ask(0, Ask::hit("user=u", 1))).collect()
}

#[test]
fn keeps_blocks_by_digest_up_to_maximum() {
    let mut bench = Bench::new("  - {name: a, key: [user], rate: 10/min}\n");
    let blocked = block(&bench, "a", &[("user", "u")], 60 * S);
    let mut after = Bench::new("  - {name: a, key: [user], rate: 10/min}\n");
    after.engine.restore_operator_overrides(bench.engine.operator_overrides());
    after.check(&[(0, "user=u", 1, "limit a 10/10 after 60000000")]);
    bench.install("  - {name: a, key: [user], rate: 20/min, algorithm: sliding_log}\n");
    bench.check(&[(0, "user=u", 1, "limit a 20/20 after 60000000")]);
    let many = (0..4_096).map(|n| BlockedKey { key: [n, 0], ..blocked.clone() }).collect();
    bench.engine.restore_operator_overrides(HostOverrides { blocks: many, ..HostOverrides::default() });
    let error =
        bench.engine.block_key(&name("a"), &[("user", "x")], at(S).at, SwitchOrigin::User(0)).unwrap_err();
    assert!(error.to_string().starts_with("4096 keys are blocked by hand"), "{error}");
}

const GOOD: &str = "  - {name: a, key: [user], rate: 1000/s}\n";
const BAD: &str = "  - {name: a, key: [user], rate: 1/h, burst: 1}\n";

#[test]
fn samples_many_callers_fairly() {
    for (twice, tells) in [(6_000, true), (4_000, false)] {
        let mut bench = Bench::new(GOOD);
        bench.install(BAD);
        bench.engine.tick(at(0));
        for caller in 0..10_000 {
            let user = format!("user=u{caller}");
            (0..=u32::from(caller < twice)).for_each(|_| drop(bench.ask(S, Ask::hit(&user, 1))));
        }
        (4..44).for_each(|quarter| bench.engine.tick(at(quarter * S / 4)));
        let seen = bench.engine.take_control_events();
        assert_eq!(!seen.is_empty(), tells, "{twice} of 10000: {seen:?}");
        for event in seen {
            let ControlEvent::Guard(alarm) = event else { panic!("{event:?}") };
            // 60 %, within three standard deviations of the smallest sample.
            assert!(alarm.callers <= 448 && alarm.callers > 150, "{alarm:?}");
            let share = f64::from(alarm.refused) / f64::from(alarm.callers);
            assert!((0.5..0.7).contains(&share), "{alarm:?}");
        }
    }
}

#[test]
fn watches_rule_after_any_change_of_what_it_refuses() {
    let rule = |key: &str, more: &str| format!("  - {{name: a, key: [{key}], rate: 1/h{more}}}\n");
    for (key, more, is_watched) in [
        ("user", "", false),
        ("user, ip", "", true),
        ("user", ", burst: 2", true),
        ("user", ", match: {plan: free}", true),
        ("user", ", unit: tokens", true),
        ("user", ", over: {soft: 50%}", true),
        ("user", ", block: 1min", true),
        ("user", ", overrides: [{match: {plan: free}, rate: 2/h}]", true),
        ("user", ", warn_at: 50%", false),
        ("user", ", show_keys: [user]", false),
        ("user", ", guard: shadow", false),
        ("", "", false),
    ] {
        let bench = Bench::new(&rule("user", ""));
        bench.install(&rule(key, more));
        assert_eq!(!bench.engine.is_at_rest(), is_watched, "[{key}]{more}");
    }
}
