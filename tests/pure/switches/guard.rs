//! Which rules are watched after a change, and the sample of their callers. `engine/scenarios/guard.txt` has alarms.

use tidegate::engine::ControlEvent;

use super::bench::{Ask, Bench, S, at};

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
