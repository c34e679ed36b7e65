//! Rules, lists, shedders and the whole daemon in another mode than in their files.

use tidegate::clock::Timestamp;
use tidegate::engine::{
    ControlEvent, HostOverrides, RuleName, Switch, SwitchError, SwitchOrigin, SwitchView, Target,
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

fn all(bench: &Bench, mode: Mode) -> SwitchView {
    bench.engine.set_switch(&switch_of(Target::Daemon, mode, None)).unwrap()
}

fn clear(bench: &Bench, rule: &str) -> bool {
    bench.engine.clear_switch(&Target::Rule(name(rule)))
}

#[test]
fn switch_applies_until_cleared() {
    // The file's mode, the switched mode, and the decision of a request over the limit.
    let table = [
        ("enforce", Mode::Shadow, "allow [shadow a]"),
        ("enforce", Mode::Disabled, "allow"),
        ("enforce", Mode::Enforce, "limit a 0/1 after 3600000000"),
        ("shadow", Mode::Enforce, "limit a 0/1 after 3600000000"),
        ("shadow", Mode::Disabled, "allow"),
        ("disabled", Mode::Shadow, "allow [shadow a]"),
        ("disabled", Mode::Enforce, "limit a 0/1 after 3600000000"),
    ];
    let one_too_many = |mode: &str| match mode {
        "enforce" => "limit a 0/1 after 3600000000",
        "shadow" => "allow [shadow a]",
        _ => "allow",
    };
    for (written, to, expected) in table {
        let rule = format!("  - {{name: a, key: [user], rate: 1/h, burst: 1, mode: {written}}}\n");
        let mut bench = Bench::new(&rule);
        let seen = switch(&bench, "a", to, None);
        assert_eq!((seen.configured_mode, seen.holds), (written_mode(written), to));
        bench.ask(0, Ask::hit("user=u", 1));
        assert_eq!(bench.ask(0, Ask::hit("user=u", 1)), expected, "{written} switched to {to}");
        assert!(clear(&bench, "a") && !clear(&bench, "a"), "{written} switched to {to}");
        bench.ask(0, Ask::hit("user=u", 1));
        assert_eq!(bench.ask(0, Ask::hit("user=u", 1)), one_too_many(written), "{written}, cleared");
    }
}

fn written_mode(word: &str) -> Option<Mode> {
    [Mode::Enforce, Mode::Shadow, Mode::Disabled].into_iter().find(|mode| mode.name() == word)
}

#[test]
fn keeps_spent_tokens_across_switch() {
    let mut bench = Bench::new(LIMITS);
    bench.check(&[(0, "user=u", 1, "allow a 0/1")]);
    switch(&bench, "a", Mode::Disabled, None);
    bench.check(&[(S, "user=u", 1, "allow")]);
    clear(&bench, "a");
    bench.check(&[(2 * S, "user=u", 1, "limit a 0/1 after 3598000000")]);
}

#[test]
fn switch_expires_at_its_deadline() {
    let mut bench = Bench::new(LIMITS);
    bench.check(&[(0, "user=u", 1, "allow a 0/1")]);
    switch(&bench, "a", Mode::Disabled, Some(1_800 * S));
    bench.engine.tick(at(1_800 * S - 1));
    bench.check(&[(1_800 * S - 1, "user=u", 1, "allow")]);
    assert!(!bench.engine.is_at_rest(), "something is to end by itself");
    bench.engine.tick(at(1_800 * S));
    bench.check(&[(1_800 * S, "user=u", 1, "limit a 0/1 after 1800000000")]);
    assert!(bench.engine.switches().is_empty());
    let ended = bench.engine.take_control_events();
    assert!(matches!(&*ended, [ControlEvent::SwitchEnded(switch)] if switch.mode == Mode::Disabled));
    assert!(bench.engine.take_control_events().is_empty(), "each is told once");
}

#[test]
fn keeps_switch_across_reloads_and_removal_of_rule() {
    let mut bench = Bench::new(LIMITS);
    switch(&bench, "a", Mode::Disabled, None);
    bench.reload("  - {name: a, key: [user], rate: 2/h, burst: 2}\n");
    bench.check(&[(0, "user=u", 9, "allow")]);
    bench.reload("  - {name: b, key: [user], rate: 2/h, burst: 2}\n");
    let views = bench.engine.switches();
    assert_eq!(
        (views.len(), views[0].configured_mode),
        (1, None),
        "kept, and told to be of a rule that is gone"
    );
    bench.reload(LIMITS);
    bench.check(&[(0, "user=u", 9, "allow")]);
    assert_eq!(bench.engine.switches()[0].configured_mode, Some(Mode::Enforce));
    bench.reload("  - {name: b, key: [user], rate: 2/h, burst: 2}\n");
    assert!(clear(&bench, "a"), "also that of a rule that is gone can be cleared");
}

#[test]
fn switches_are_never_stricter_than_settings() {
    let text = format!("domain: api\nlimits:\n{LIMITS}");
    for made_with in [Mode::Shadow, Mode::Disabled] {
        let mut bench = Bench::of(made_with, &text);
        let view = switch(&bench, "a", Mode::Enforce, None);
        assert_eq!(view.holds, made_with);
        assert_eq!(all(&bench, Mode::Enforce).holds, made_with);
        bench.ask(0, Ask::hit("user=u", 1));
        assert!(bench.ask(0, Ask::hit("user=u", 1)).starts_with("allow"), "{made_with}");
        assert_eq!(bench.engine.mode(), made_with);
    }
}

#[test]
fn switches_everything_and_back() {
    let mut bench = Bench::new(LIMITS);
    bench.check(&[(0, "user=u", 1, "allow a 0/1")]);
    let too_many = "limit a 0/1 after 3600000000";
    let table = [
        (Mode::Shadow, "allow [shadow a]"),
        (Mode::Disabled, "allow"),
        // The same as without a switch, so it is removed.
        (Mode::Enforce, too_many),
    ];
    for (mode, expected) in table {
        assert_eq!(all(&bench, mode).holds, mode);
        bench.check(&[(0, "user=u", 1, expected)]);
        assert_eq!((bench.engine.mode(), bench.engine.switches().is_empty()), (mode, mode == Mode::Enforce));
    }
    // The more permissive of both wins.
    switch(&bench, "a", Mode::Enforce, None);
    all(&bench, Mode::Shadow);
    bench.check(&[(0, "user=u", 1, "allow [shadow a]")]);
    assert!(bench.engine.clear_switch(&Target::Daemon));
    bench.check(&[(0, "user=u", 1, too_many)]);
    bench.engine.set_off(true);
    assert!(bench.engine.is_off());
    bench.check(&[(0, "user=u", 1, "allow")]);
    bench.engine.set_off(false);
    bench.check(&[(0, "user=u", 1, too_many)]);
}

const LISTS: &str = "domain: api
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: bot}}, {name: worse, match: {path: /admin}}]
limits:
  - {name: a, key: [], rate: 1/h, burst: 1}
";

#[test]
fn switches_list_entries() {
    let mut bench = Bench::of(Mode::Enforce, LISTS);
    bench.check(&[
        (0, "path=/healthz", 5, "allow probes"),
        (0, "agent=bot", 1, "deny bots never"),
        (0, "agent=bot path=/admin", 1, "deny bots never"),
    ]);
    switch(&bench, "bots", Mode::Shadow, None);
    bench.check(&[
        // Another entry still denies it.
        (0, "agent=bot path=/admin", 1, "deny worse never"),
        (0, "agent=bot", 1, "allow a 0/1 [shadow bots]"),
    ]);
    switch(&bench, "bots", Mode::Disabled, None);
    bench.check(&[(0, "agent=bot", 1, "limit a 0/1 after 3600000000")]);
    switch(&bench, "probes", Mode::Disabled, None);
    bench.check(&[(0, "path=/healthz", 1, "limit a 0/1 after 3600000000")]);
    let exempt = switch_of(Target::Rule(name("probes")), Mode::Shadow, None);
    assert!(matches!(bench.engine.set_switch(&exempt), Err(SwitchError::Exempt(_))));
    assert!(clear(&bench, "probes") && clear(&bench, "bots"));
    bench.check(&[(0, "path=/healthz", 5, "allow probes"), (0, "agent=bot", 1, "deny bots never")]);
}

const TREE: &str = "domain: api
descriptors:
  - {key: kind, value: mail, rate_limit: {unit: day, requests_per_unit: 1}}
";

#[test]
fn switches_descriptor_node_by_its_path() {
    let mut bench = Bench::of(Mode::Enforce, TREE);
    bench.check(&[(0, "kind=mail", 1, "allow kind_mail 0/1")]);
    switch(&bench, "kind_mail", Mode::Disabled, None);
    bench.check(&[(0, "kind=mail", 1, "allow")]);
    switch(&bench, "kind_mail", Mode::Shadow, None);
    bench.check(&[(0, "kind=mail", 1, "allow [shadow kind_mail]")]);
    clear(&bench, "kind_mail");
    bench.check(&[(0, "kind=mail", 1, "limit kind_mail 0/1 after 86400000000")]);
}

#[test]
fn restores_switches_before_rules_load() {
    let before = Bench::new(LIMITS);
    switch(&before, "a", Mode::Disabled, Some(100 * S));
    let overrides = before.engine.operator_overrides();
    let mut after = Bench::of(Mode::Enforce, "domain: other\n");
    after.engine.restore_operator_overrides(overrides.clone());
    assert_eq!(after.engine.operator_overrides(), overrides);
    after.reload(LIMITS);
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
