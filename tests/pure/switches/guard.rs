//! Rules that refuse most callers right after a change.

use std::time::Duration;

use tidegate::clock::Timestamp;
use tidegate::engine::{Alarm, ControlEvent, SwitchOrigin, Target};
use tidegate::rules::Mode;

use super::bench::{Ask, Bench, S, at};
use super::switching::{name, switch};

const GOOD: &str = "  - {name: a, key: [user], rate: 1000/s}\n";
const BAD: &str = "  - {name: a, key: [user], rate: 1/h, burst: 1}\n";
const GUARDED: &str = "  - {name: a, key: [user], rate: 1/h, burst: 1, guard: shadow}\n";

/// Hits of `callers` callers, `twice` of which hit twice.
fn come(bench: &mut Bench, micros: u64, callers: u32, twice: u32) {
    for caller in 0..callers {
        let user = format!("user=u{caller}");
        for _ in 0..=u32::from(caller < twice) {
            bench.ask(micros, Ask::hit(&user, 1));
        }
    }
}

fn alarms(bench: &Bench) -> Vec<Alarm> {
    let events = bench.engine.take_control_events().into_iter();
    let alarm = |event| match event {
        ControlEvent::Guard(alarm) => Some(alarm),
        _ => None,
    };
    events.filter_map(alarm).collect()
}

/// Ticks over `seconds`.
fn pass(bench: &Bench, from: u64, seconds: u64) {
    (0..=seconds * 4).for_each(|quarter| bench.engine.tick(at(from + quarter * S / 4)));
}

/// These rules for a second, after good ones.
fn changed(rules: &str) -> Bench {
    let mut bench = Bench::new(GOOD);
    bench.reload(rules);
    pass(&bench, 0, 1);
    bench
}

fn warnings(bench: &Bench) -> u64 {
    bench.engine.totals().rules.iter().map(|rule| rule.guard).sum()
}

#[test]
fn alarms_once_when_changed_rule_refuses_most_callers() {
    let mut bench = changed(BAD);
    come(&mut bench, S, 100, 51);
    pass(&bench, S, 3);
    assert!(alarms(&bench).is_empty(), "in the first moments all is open");
    pass(&bench, 4 * S, 1);
    let expected = Alarm {
        rule: name("a"),
        callers: 100,
        refused: 51,
        after: Duration::from_secs(5),
        shadow_until: None,
    };
    assert_eq!(alarms(&bench), [expected]);
    assert_eq!(warnings(&bench), 1);
    assert!(bench.engine.is_alarm_of_rule(&name("a")), "until the rule changes");
    come(&mut bench, 6 * S, 200, 200);
    pass(&bench, 6 * S, 300);
    assert!(alarms(&bench).is_empty() && warnings(&bench) == 1);
    assert!(bench.ask(7 * S, Ask::hit("user=u1", 1)).starts_with("limit"), "it is told, and goes on");
    bench.reload(GOOD);
    assert!(!bench.engine.is_alarm_of_rule(&name("a")), "the rule has changed");
}

#[test]
fn no_alarm_at_half_or_below_minimum_of_callers() {
    for (callers, twice) in [(100, 50), (99, 99), (400, 200)] {
        let mut bench = changed(BAD);
        come(&mut bench, S, callers, twice);
        pass(&bench, S, 10);
        assert!(alarms(&bench).is_empty(), "{twice} of {callers}");
    }
}

#[test]
fn counts_frequent_caller_once() {
    let mut bench = changed(BAD);
    come(&mut bench, S, 100, 1);
    (0..10_000).for_each(|_| drop(bench.ask(S, Ask::hit("user=u0", 1))));
    pass(&bench, S, 10);
    assert!(alarms(&bench).is_empty());
}

#[test]
fn samples_many_callers_fairly() {
    for (twice, tells) in [(6_000, true), (4_000, false)] {
        let mut bench = changed(BAD);
        come(&mut bench, S, 10_000, twice);
        pass(&bench, S, 10);
        let seen = alarms(&bench);
        assert_eq!(!seen.is_empty(), tells, "{twice} of 10000: {seen:?}");
        for alarm in seen {
            // 60 %, within three standard deviations of the smallest sample.
            assert!(alarm.callers <= 448 && alarm.callers > 150, "{alarm:?}");
            let share = f64::from(alarm.refused) / f64::from(alarm.callers);
            assert!((0.5..0.7).contains(&share), "{alarm:?}");
        }
    }
}

#[test]
fn watches_only_rules_changed_since_start() {
    let mut bench = Bench::new(BAD);
    pass(&bench, 0, 1);
    come(&mut bench, S, 200, 200);
    bench.reload(&format!("{BAD}  - {{name: b, key: [other], rate: 1/h}}\n"));
    pass(&bench, S, 1);
    come(&mut bench, 2 * S, 200, 200);
    pass(&bench, 2 * S, 310);
    assert!(alarms(&bench).is_empty());
    assert!(bench.engine.is_at_rest(), "after five minutes nothing is watched any more");
    // A new rule is a change.
    bench.reload("  - {name: c, key: [user], rate: 1/h, burst: 1}\n");
    pass(&bench, 400 * S, 1);
    come(&mut bench, 401 * S, 200, 200);
    pass(&bench, 401 * S, 10);
    assert_eq!(alarms(&bench).iter().map(|alarm| &*alarm.rule.rule).collect::<Vec<_>>(), ["c"]);
}

#[test]
fn no_alarm_five_minutes_after_change() {
    let mut bench = changed(BAD);
    pass(&bench, S, 299);
    come(&mut bench, 301 * S, 200, 200);
    pass(&bench, 301 * S, 10);
    assert!(alarms(&bench).is_empty());
}

#[test]
fn watches_rules_switched_to_enforce() {
    let mut bench = Bench::new("  - {name: a, key: [user], rate: 1/h, burst: 1, mode: shadow}\n");
    pass(&bench, 0, 1);
    come(&mut bench, S, 200, 200);
    pass(&bench, S, 10);
    assert!(alarms(&bench).is_empty(), "what is in shadow refuses no request");
    switch(&bench, "a", Mode::Enforce, None);
    pass(&bench, 20 * S, 1);
    come(&mut bench, 21 * S, 200, 0);
    pass(&bench, 21 * S, 10);
    assert_eq!(alarms(&bench).len(), 1);
    bench.engine.set_off(true);
    bench.engine.set_off(false);
    pass(&bench, 40 * S, 1);
    come(&mut bench, 41 * S, 200, 0);
    pass(&bench, 41 * S, 10);
    assert_eq!((alarms(&bench).len(), warnings(&bench)), (1, 2));
}

#[test]
fn guard_shadow_switches_rule_for_ten_minutes() {
    let mut bench = changed(GUARDED);
    come(&mut bench, S, 150, 150);
    pass(&bench, S, 5);
    let seen = alarms(&bench);
    let ends = Timestamp::from_nanos(605 * S * 1_000);
    assert_eq!(seen.iter().map(|alarm| alarm.shadow_until).collect::<Vec<_>>(), [Some(ends)]);
    bench.check(&[(7 * S, "user=u1", 1, "allow [shadow a]")]);
    let switches = bench.engine.switches();
    assert_eq!(
        (&switches[0].switch.target, switches[0].switch.by, switches[0].switch.until, switches[0].holds),
        (&Target::Rule(name("a")), SwitchOrigin::Guard, Some(ends), Mode::Shadow)
    );
    bench.engine.tick(at(605 * S));
    assert!(bench.ask(605 * S, Ask::hit("user=u1", 1)).starts_with("limit"));
    // Enforcing it again is a change, with another alarm.
    pass(&bench, 606 * S, 1);
    come(&mut bench, 607 * S, 150, 150);
    pass(&bench, 607 * S, 10);
    assert_eq!((alarms(&bench).len(), warnings(&bench)), (1, 2));
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
        let mut bench = Bench::new(&rule("user", ""));
        bench.reload(&rule(key, more));
        assert_eq!(!bench.engine.is_at_rest(), is_watched, "[{key}]{more}");
    }
}

#[test]
fn watches_rules_of_every_kind() {
    let rules = [
        "  - {name: a, key: [user], algorithm: sliding_log, rate: 1/h}\n",
        "  - {name: a, key: [user], rate: 1/h, burst: 1, warn_at: 50%}\n",
        "  - {name: a, key: [user], rate: 1/h, burst: 1, overrides: [{match: {user: x}, rate: 2/h}]}\n",
    ];
    for rule in rules {
        let mut bench = changed(rule);
        come(&mut bench, S, 200, 150);
        pass(&bench, S, 10);
        let seen = alarms(&bench);
        assert_eq!(
            seen.iter().map(|alarm| (alarm.callers, alarm.refused)).collect::<Vec<_>>(),
            [(200, 150)],
            "{rule}"
        );
    }
}

#[test]
fn watches_changed_rule_on_after_reload_of_another() {
    let mut bench = changed(BAD);
    bench.reload(&format!("{BAD}  - {{name: b, key: [other], rate: 1/h}}\n"));
    come(&mut bench, S, 100, 51);
    pass(&bench, S, 4);
    assert_eq!(alarms(&bench).iter().map(|alarm| &*alarm.rule.rule).collect::<Vec<_>>(), ["a"]);
}
