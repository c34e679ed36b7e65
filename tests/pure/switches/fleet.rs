//! Switches and blocks for all hosts of a fleet, beside those of one host.

use tidegate::clock::Timestamp;
use tidegate::engine::{
    BlockedKey, ControlEvent, FleetChange, FleetOverrides, HashKey, KeyError, Switch, SwitchOrigin, Target,
};
use tidegate::fleet::overrides::OverridesDocument;
use tidegate::fleet::secrets::OverridesKey;
use tidegate::rules::Mode;

use super::bench::{Bench, S, at};
use super::switching::name;

const RULES: &str =
    "  - {name: a, key: [user], rate: 1/h, burst: 1}\n  - {name: one, match: {x: y}, key: [], rate: 9/h}\n";
const TOO_MANY: &str = "limit a 0/1 after 3600000000";
const USER: SwitchOrigin = SwitchOrigin::User(0);
const FLEET: SwitchOrigin = SwitchOrigin::Fleet { uid: 0, host: [1; 4] };

/// A host of the fleet with this secret, whose key `user=u` has nothing left.
fn host(secret: u8) -> Bench {
    let mut bench = Bench::new("  - {name: other, key: [], rate: 1/h}\n");
    bench.engine.join_fleet(HashKey::from_bytes([secret; 16]));
    bench.install(RULES);
    bench.check(&[(0, "user=u", 1, "allow a 0/1")]);
    bench
}

fn rule() -> Target {
    Target::Rule(name("a"))
}

fn switch(target: Target, mode: Mode, said: u64, by: SwitchOrigin) -> Switch {
    Switch { target, mode, until: None, set_at: Timestamp::from_nanos(said), by }
}

fn switches(switches: &[Switch]) -> FleetOverrides {
    FleetOverrides { switches: switches.to_vec(), ..FleetOverrides::default() }
}

fn blocked(bench: &Bench, user: &str) -> BlockedKey {
    let key = bench.engine.fleet_key_digest(&name("a"), &[("user", user)]).unwrap();
    BlockedKey { rule: name("a"), key, text: None, until: at(60 * S).at, by: FLEET }
}

fn holds(bench: &mut Bench, expected: &str) {
    assert_eq!(bench.peek(0, "user=u", 1), expected);
}

#[test]
fn later_switch_of_host_and_fleet_applies() {
    for (own, fleet, is_own) in [(2, 1, true), (1, 2, false), (1, 1, false)] {
        for target in [rule(), Target::Daemon] {
            let mut bench = host(9);
            bench.engine.set_switch(&switch(target.clone(), Mode::Disabled, own, USER)).unwrap();
            let of_fleet = switch(target.clone(), Mode::Shadow, fleet, FLEET);
            bench.engine.apply_fleet_overrides(&switches(&[of_fleet]));
            let (mode, seen) =
                if is_own { (Mode::Disabled, "allow") } else { (Mode::Shadow, "allow [shadow a]") };
            holds(&mut bench, seen);
            assert_eq!(bench.engine.effective_mode(&name("a")), Some(mode));
            let views = [bench.engine.switches(), bench.engine.fleet_switches()].concat();
            let seen: Vec<_> =
                views.iter().map(|view| (view.configured_mode, view.holds, view.is_last)).collect();
            let written = Some(Mode::Enforce);
            assert_eq!(seen, [(written, mode, is_own), (written, mode, !is_own)], "{target}");
        }
    }
    assert_eq!(host(9).engine.effective_mode(&name("gone")), None);
}

#[test]
fn host_enforces_despite_fleet_switch_of_everything() {
    let mut bench = host(9);
    let everything = |mode, said, by| switch(Target::Daemon, mode, said, by);
    // Of a rule alone: a switch of everything to enforce is then the same as none.
    bench.engine.apply_fleet_overrides(&switches(&[switch(rule(), Mode::Shadow, 1, FLEET)]));
    bench.engine.set_switch(&everything(Mode::Shadow, 2, USER)).unwrap();
    bench.engine.set_switch(&everything(Mode::Enforce, 3, USER)).unwrap();
    assert!(bench.engine.switches().is_empty());
    bench.engine.apply_fleet_overrides(&switches(&[everything(Mode::Shadow, 4, FLEET)]));
    holds(&mut bench, "allow [shadow a]");
    assert_eq!(bench.engine.set_switch(&everything(Mode::Enforce, 5, USER)).unwrap().holds, Mode::Enforce);
    holds(&mut bench, TOO_MANY);
    assert!(bench.engine.clear_switch(&Target::Daemon) && !bench.engine.clear_switch(&Target::Daemon));
    holds(&mut bench, "allow [shadow a]");
}

#[test]
fn reports_each_change_of_fleet_overrides_once() {
    let bench = host(9);
    let (of_rule, of_one) =
        (switch(rule(), Mode::Shadow, 1, FLEET), switch(Target::Rule(name("one")), Mode::Shadow, 1, FLEET));
    let (u, v) = (blocked(&bench, "u"), blocked(&bench, "v"));
    let document = |switches: &[&Switch], blocks: &[&BlockedKey]| FleetOverrides {
        switches: switches.iter().copied().cloned().collect(),
        blocks: blocks.iter().copied().cloned().collect(),
        ..FleetOverrides::default()
    };
    let disabled = Switch { mode: Mode::Disabled, ..of_rule.clone() };
    let timed = |until: u64| Switch { until: Some(at(until).at), ..of_rule.clone() };
    let by_another = Switch { by: SwitchOrigin::Fleet { uid: 1, host: [1; 4] }, ..of_rule.clone() };
    let again = Switch { set_at: at(S).at, ..of_rule.clone() };
    use ControlEvent::{FleetBlocked, FleetCleared, FleetSwitched, FleetUnblocked};
    let table: &[(FleetOverrides, &[ControlEvent])] = &[
        (document(&[&of_rule], &[]), &[FleetSwitched(of_rule.clone())]),
        (document(&[&of_rule], &[]), &[]),
        (document(&[&again], &[]), &[]),
        (document(&[&disabled], &[]), &[FleetSwitched(disabled.clone())]),
        (document(&[&of_rule, &of_one], &[]), &[of_rule.clone(), of_one.clone()].map(FleetSwitched)),
        (document(&[&timed(S), &of_one], &[]), &[FleetSwitched(timed(S))]),
        (document(&[&timed(2 * S), &of_one], &[]), &[]),
        (document(&[&by_another], &[]), &[FleetSwitched(by_another.clone()), FleetCleared(of_one.clone())]),
        (document(&[], &[&u]), &[FleetCleared(by_another.clone()), FleetBlocked(u.clone())]),
        (document(&[], &[&u, &v]), &[FleetBlocked(v.clone())]),
        (document(&[], &[&v]), &[FleetUnblocked(u.clone())]),
        (document(&[], &[]), &[FleetUnblocked(v.clone())]),
    ];
    for (number, (overrides, expected)) in table.iter().enumerate() {
        bench.engine.apply_fleet_overrides(overrides);
        assert_eq!(bench.engine.take_control_events(), *expected, "change {number}");
        assert_eq!(bench.engine.fleet_overrides(), *overrides);
    }
    bench.engine.restore_fleet_overrides(document(&[&disabled], &[&u]));
    assert!(bench.engine.take_control_events().is_empty(), "restored ones are no change");
    assert_eq!(bench.engine.effective_mode(&name("a")), Some(Mode::Disabled));
}

#[test]
fn fleet_switch_and_block_end_at_their_time_on_each_host() {
    let mut bench = host(9);
    let ends = Switch { until: Some(at(60 * S).at), ..switch(rule(), Mode::Shadow, 1, FLEET) };
    for overrides in [
        switches(std::slice::from_ref(&ends)),
        FleetOverrides { blocks: vec![blocked(&bench, "u")], ..FleetOverrides::default() },
    ] {
        let is_block = overrides.switches.is_empty();
        (0..=1_300).for_each(|quarter| bench.engine.tick(at(quarter * S / 4)));
        assert!(bench.engine.is_at_rest());
        bench.engine.apply_fleet_overrides(&overrides);
        assert_eq!(bench.engine.take_control_events().len(), 1);
        bench.engine.tick(at(60 * S - 1));
        assert!(!bench.engine.is_at_rest() && bench.engine.take_control_events().is_empty());
        assert_ne!(bench.peek(0, "user=u", 1), if is_block { "" } else { TOO_MANY });
        bench.engine.tick(at(60 * S));
        let ended = bench.engine.take_control_events();
        assert!(matches!(&*ended, [ControlEvent::SwitchEnded(_) | ControlEvent::BlockEnded(_)]), "{ended:?}");
        assert_eq!(bench.engine.fleet_overrides(), FleetOverrides::default());
        holds(&mut bench, TOO_MANY);
    }
}

#[test]
fn fleet_block_refuses_one_key_on_every_host_with_the_secret() {
    let hosts = [host(9), host(9), host(8)];
    let of = |bench: &Bench| bench.engine.fleet_key_digest(&name("a"), &[("user", "v")]).unwrap();
    let own = hosts[0].engine.block_key(&name("a"), &[("user", "v")], at(S).at, USER).unwrap().key;
    assert!(hosts[0].engine.unblock_key(&name("a"), &[("user", "v")]).unwrap());
    assert_eq!(of(&hosts[0]), of(&hosts[1]));
    assert!(of(&hosts[0]) != of(&hosts[2]) && of(&hosts[0]) != own);
    let overrides = FleetOverrides { blocks: vec![blocked(&hosts[0], "v")], ..FleetOverrides::default() };
    for (mut bench, is_refused) in hosts.into_iter().zip([true, true, false]) {
        bench.engine.apply_fleet_overrides(&overrides);
        let seen = bench.peek(0, "user=v", 1);
        assert_eq!(seen, if is_refused { "limit a 1/1 after 60000000" } else { "allow a 1/1" });
        assert_eq!(bench.peek(0, "user=w", 1), "allow a 1/1");
        // A block of this host applies too: the later end counts.
        bench.engine.block_key(&name("a"), &[("user", "v")], at(90 * S).at, USER).unwrap();
        assert_eq!(bench.peek(0, "user=v", 1), "limit a 1/1 after 90000000");
    }
}

#[test]
fn rejects_fleet_commands_without_rule_key_or_fleet() {
    let bench = host(9);
    let ok = bench.engine.preview_switch(&switch(rule(), Mode::Shadow, 1, FLEET)).unwrap();
    assert_eq!(ok.configured_mode, Some(Mode::Enforce));
    assert_eq!(bench.engine.effective_mode(&name("a")), Some(Mode::Enforce), "asking changes nothing");
    let unknown = switch(Target::Rule(name("gone")), Mode::Shadow, 1, FLEET);
    assert!(bench.engine.preview_switch(&unknown).is_err());
    let key =
        |bench: &Bench, rule: &str, user: &[(&str, &str)]| bench.engine.fleet_key_digest(&name(rule), user);
    assert_eq!(key(&bench, "one", &[]), Err(KeyError::SingleKey(name("one"))));
    assert_eq!(key(&bench, "gone", &[]), Err(KeyError::NoRule(name("gone"))));
    assert_eq!(key(&Bench::new(RULES), "a", &[("user", "u")]), Err(KeyError::NoFleet(name("a"))));
}

#[test]
fn an_authentic_document_switches_no_more_than_an_operator_could() {
    let (key, now) = (OverridesKey::of_secret(&[7; 32]), at(S));
    let day = |day: u64| Some(at(S + day * 86_400 * S).at);
    for (target, until, is_in_force) in [
        (Target::Daemon, None, false),
        (Target::Daemon, day(400), false),
        (Target::Daemon, day(1), true),
        (rule(), day(400), false),
        (rule(), None, true),
    ] {
        let change = FleetChange::Switch(Switch { until, ..switch(target, Mode::Disabled, 1, USER) });
        let written = OverridesDocument::default().after(&change, &[9; 16], &key, now).unwrap().unwrap();
        let read = OverridesDocument::open(&written.bytes, &key).unwrap();
        assert_eq!(read.overrides(now).switches.len(), usize::from(is_in_force), "{change:?}");
    }
}
