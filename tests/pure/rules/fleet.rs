//! Where a rule counts, how a fleet shares it, what of a rule cannot be shared, and what is admitted past a budget.

use tidegate::limit::Quota;
use tidegate::limit::share::{Fallback, WindowSchedule};
use tidegate::rules::{
    FleetBound, FleetMode, FleetSettings, Loaded, OnMiss, Rule, Scope, Scopes, read_text, read_text_scoped,
};

use super::bad::{check, check_rule};
use super::problems::{Told, warnings};

fn terms() -> FleetSettings {
    FleetSettings::default()
}

#[track_caller]
fn only(loaded: &Loaded) -> &Rule {
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    &loaded.domains[0].rules()[0]
}

#[track_caller]
fn rule(fields: &str) -> Rule {
    only(&read_text("rules.yaml", &format!("domain: api\nlimits:\n- {{name: a, key: [u], {fields}}}\n")))
        .clone()
}

#[test]
fn a_rule_says_how_a_fleet_shares_it() {
    let fleet = |fields: &str| rule(&format!("rate: 1000/s, {fields}")).fleet;
    assert_eq!(fleet("scope: host"), None);
    assert_eq!(fleet("scope: fleet"), Some(terms()));
    assert_eq!(fleet("scope: fleet, fleet: {}"), Some(terms()));
    assert_eq!(terms().mode, FleetMode::Borrow);
    assert_eq!(
        fleet("scope: fleet, fleet: {mode: borrow, on_miss: refuse, on_redis_down: allow}"),
        Some(FleetSettings { on_miss: Some(OnMiss::Refuse), on_redis_down: Fallback::Allow, ..terms() })
    );
    assert_eq!(
        fleet("scope: fleet, max_over: 2.5%, fleet: {on_miss: admit, on_redis_down: refuse}"),
        Some(FleetSettings {
            on_miss: Some(OnMiss::Admit),
            on_redis_down: Fallback::Refuse,
            max_over: Some(25),
            ..terms()
        })
    );
    // What goes with it.
    let all = "scope: fleet, over: refuse, unit: tokens, max_debt: 7, warn_at: 80%, mode: shadow, guard: shadow, \
               overrides: [{match: {p: x}, rate: 9/s}, {match: {p: y}, rate: unlimited}]";
    assert_eq!(fleet(all), Some(terms()));
}

#[test]
fn windows_are_shared_as_they_turn() {
    const DAY: u64 = 86_400_000_000;
    let every = |slots, step, origin| WindowSchedule::Every { slots, step, origin };
    for (fields, expected) in [
        ("rate: 100/min, algorithm: fixed_window", every(1, 60_000_000, 0)),
        ("rate: 100/s, algorithm: fixed_window", every(1, 1_000_000, 0)),
        ("rate: 100/day, algorithm: fixed_window", every(1, DAY, 0)),
        // Weeks begin on Monday.
        ("rate: 100/week, algorithm: fixed_window", every(1, 7 * DAY, 4 * DAY)),
        ("rate: 100/month, algorithm: fixed_window", WindowSchedule::Calendar),
        ("rate: 100/h, algorithm: fixed_window, timezone: Europe/Berlin", WindowSchedule::Calendar),
        // What does not divide a day is cut at midnight.
        ("rate: 100/7min, algorithm: fixed_window", WindowSchedule::Calendar),
        ("rate: 100/min, algorithm: sliding_window", every(11, 6_000_000, 0)),
        ("rate: 100/min, algorithm: sliding_window, buckets: 1", every(11, 6_000_000, 0)),
        ("rate: 100/min, algorithm: sliding_window, buckets: 60", every(61, 1_000_000, 0)),
    ] {
        let rule = rule(&format!("{fields}, scope: fleet"));
        let Some(Quota::FleetBudget(quota)) = rule.limit.quota() else {
            panic!("{fields}: {:?}", rule.limit)
        };
        assert_eq!(
            quota.window().map(tidegate::limit::share::BudgetWindow::turns),
            Some(expected),
            "{fields}"
        );
        let host = self::rule(fields);
        let alike = host.limit.quota().unwrap();
        assert_eq!(
            (alike.window(), alike.limit()),
            (quota.window_length(), quota.bucket().burst()),
            "{fields}"
        );
    }
    let year = rule("rate: 100/366day, algorithm: fixed_window, scope: fleet");
    assert!(matches!(year.limit.quota(), Some(Quota::FleetBudget(_))));
    check_rule(
        "name: a, key: [], rate: 5/500ms, algorithm: fixed_window, scope: fleet",
        (3, 30, "its windows are shorter than a second", "a window of a second or more"),
    );
}

#[test]
fn the_nearest_that_says_a_scope_says_it() {
    use Scope::{Fleet, Host};
    let table = [
        (None, None, None, None, Host),
        (None, None, None, Some(Fleet), Fleet),
        (None, None, Some(Host), Some(Fleet), Host),
        (None, None, Some(Fleet), None, Fleet),
        (None, Some(Host), Some(Fleet), Some(Fleet), Host),
        (None, Some(Fleet), Some(Host), None, Fleet),
        (Some(Host), Some(Fleet), Some(Fleet), Some(Fleet), Host),
        (Some(Fleet), Some(Host), Some(Host), Some(Host), Fleet),
    ];
    for (own, defaults, domain, all, expected) in table {
        let written = |scope: Option<Scope>| {
            scope.map_or(String::new(), |scope| format!("scope: {}", <&str>::from(scope)))
        };
        let text = format!(
            "domain: api\ndefaults: {{{}}}\nlimits:\n- {{name: a, key: [u], rate: 1000/s, {}}}\n",
            written(defaults),
            written(own)
        );
        let scopes = Scopes {
            all: all.unwrap_or_default(),
            // That of another domain says nothing here.
            domains: domain
                .into_iter()
                .map(|scope| ("api".into(), scope))
                .chain([("apis".into(), Fleet)])
                .collect(),
            ..Scopes::default()
        };
        let loaded = read_text_scoped("rules.yaml", &text, &scopes);
        assert_eq!(only(&loaded).scope(), expected, "{text} {scopes:?}");
    }
}

#[test]
fn what_is_wrong_with_a_fleet_is_told_where_and_how() {
    let table: &[(&str, Told<'_>)] = &[
        ("fleet: {}", (3, 35, "`fleet` says how hosts share a budget", "write `scope: fleet`")),
        ("scope: host, max_over: 5%", (3, 48, "`max_over` says how hosts share", "leave `max_over` out")),
        ("scope: flete", (3, 42, "unknown scope `flete`", "did you mean `fleet`?")),
        ("scope: fleet, fleet: borrow", (3, 56, "`fleet` is a mapping, not a text", "`mode: …`")),
        ("scope: fleet, fleet: {mod: borrow}", (3, 57, "unknown field `mod`", "did you mean `mode`?")),
        ("scope: fleet, fleet: {mode: lease}", (3, 63, "unknown mode `lease`", "known here: borrow")),
        ("scope: fleet, fleet: {on_miss: admt}", (3, 66, "unknown on_miss `admt`", "did you mean `admit`?")),
        (
            "scope: fleet, fleet: {on_redis_down: last}",
            (3, 72, "unknown on_redis_down `last`", "share, local, allow, refuse"),
        ),
        (
            "scope: fleet, on_redis_down: local",
            (3, 49, "`on_redis_down` does nothing in a rule", "it stands in `fleet`"),
        ),
        (
            "scope: fleet, fleet: {max_over: 5%}",
            (3, 57, "`max_over` does nothing in `fleet`", "beside `fleet`"),
        ),
        ("scope: fleet, fleet: {mode: exact, wait: 1ms}", (3, 76, "`wait: 1ms` is too short", "2ms to 50ms")),
        (
            "scope: fleet, fleet: {on_miss: ask, wait: 51ms}",
            (3, 77, "`wait: 51ms` is too long", "2ms to 50ms"),
        ),
        ("scope: fleet, max_over: 0%", (3, 59, "`max_over` is 0%", "`fleet: {on_miss: refuse}`")),
        ("scope: fleet, max_over: 5", (3, 59, "`max_over` is a percentage, not `5`", "write 5%")),
        ("scope: fleet, max_over: 101%", (3, 59, "`max_over: 101%` is too much", "at most 100%")),
        (
            "algorithm: leaky_bucket, scope: fleet",
            (3, 67, "a `leaky_bucket` cannot be shared by hosts", "`scope: host`"),
        ),
        (
            "algorithm: sliding_log, scope: fleet",
            (3, 66, "a `sliding_log` cannot be shared by hosts", "a `token_bucket`"),
        ),
        (
            "algorithm: fixed_window, align: first, scope: fleet",
            (3, 67, "its windows begin with the first request of a key", "leave `align` out"),
        ),
        (
            "algorithm: sliding_window, scope: fleet, refused: counted",
            (3, 76, "`refused` does not go with `scope: fleet`", "leave `refused` out"),
        ),
        (
            "scope: fleet, over: {soft: 10%}",
            (3, 49, "`over` does not go with `scope: fleet`", "leave `over` out"),
        ),
        ("scope: fleet, over: {elastic: 10%}", (3, 49, "bounded by `max_over`", "leave `over` out")),
        ("scope: fleet, block: 5min", (3, 49, "only the host that refused would block", "rule of its own")),
        (
            "scope: fleet, candidate: {rate: 2/s}",
            (3, 49, "`candidate` does not go with `scope: fleet`", "`mode: shadow`"),
        ),
        ("scope: fleet, refund_on: ok", (3, 49, "`refund_on` does not go with", "`scope: host`")),
    ];
    for (fields, told) in table {
        check_rule(&format!("name: a, key: [], rate: 1/s, {fields}"), *told);
    }
}

#[test]
fn a_scope_from_elsewhere_names_where_it_is_from() {
    check(
        "domain: api\ndefaults: {scope: fleet}\nlimits:\n- {name: a, key: [], rate: 1/s, algorithm: sliding_log}\n",
        &[(4, 10, "`scope: fleet` of `defaults` asks for it", "write `scope: host` in the rule")],
    );
    check(
        "domain: api\ndefaults: {scope: flete}\n",
        &[(2, 19, "unknown scope `flete`", "did you mean `fleet`?")],
    );
    let tree = "domain: api\ndescriptors: [{key: to, rate_limit: {unit: day, requests_per_unit: 5}}]\n";
    let scopes = Scopes { all: Scope::Fleet, ..Scopes::default() };
    let loaded = read_text_scoped("rules.yaml", tree, &scopes);
    let node = only(&loaded);
    assert_eq!(node.fleet, Some(terms()));
    let quota = node.limit.quota().unwrap();
    assert_eq!((quota.algorithm(), quota.format_rate(), quota.limit()), ("fixed_window", "5/day".into(), 5));
    assert!(matches!(quota, Quota::FleetBudget(quota) if quota.window().is_some()), "{quota:?}");
    let alone = read_text("rules.yaml", tree);
    assert!(!alone.has_errors() && alone.domains[0].rules()[0].fleet.is_none());
}

#[test]
fn a_budget_that_cannot_be_kept_is_refused() {
    let one_of_ten = "`max_over: 5%` of 10 is less than one token on each of two hosts";
    let table: &[(&str, Told<'_>)] = &[
        (
            "rate: 10/s, max_over: 5%, fleet: {on_miss: admit}",
            (3, 46, one_of_ten, "at least `max_over: 20%`"),
        ),
        (
            "rate: 1/s, max_over: 50%, fleet: {on_miss: admit}",
            (3, 45, "`max_over: 50%` of 1 is less", "or write `on_miss: refuse`"),
        ),
        (
            "rate: 100/s, max_over: 5%, fleet: {on_miss: admit}, overrides: [{match: {p: x}, rate: 10/s}]",
            (3, 47, one_of_ten, "leave `on_miss` out"),
        ),
        (
            "rate: 2000000000/s",
            (3, 30, "the rate 2000000000/s cannot be counted exactly", "at most 1000000000/s"),
        ),
        (
            "rate: 1000/s, overrides: [{match: {p: x}, rate: 2000000000/s}]",
            (3, 49, "the rate 2000000000/s of an override cannot", "rounder"),
        ),
    ];
    for (fields, told) in table {
        check_rule(&format!("name: a, key: [], {fields}, scope: fleet"), *told);
    }
}

#[test]
fn what_says_nothing_of_a_fleet_is_a_warning() {
    let text = "domain: api\nlimits:\n- {name: a, key: [], rate: 100/s, scope: fleet, max_over: 5%, fleet: {on_miss: refuse}}\n";
    warnings("rules.yaml", text, &[(3, "`max_over` says nothing here", "leave it out")]);
    // `ask` is the default.
    let text = "domain: api\nlimits:\n- {name: a, key: [], rate: 100/s, scope: fleet, max_over: 5%}\n";
    warnings("rules.yaml", text, &[(3, "`max_over` says nothing here", "`fleet: {on_miss: admit}`")]);
}

#[test]
fn reads_wait_by_its_former_name() {
    let text =
        "domain: api\nlimits:\n- {name: a, key: [], rate: 100/s, scope: fleet, fleet: {deadline: 20ms}}\n";
    warnings("rules.yaml", text, &[(3, "`deadline` is now called `wait`", "write `wait`")]);
    let loaded = read_text("rules.yaml", text);
    let wait = loaded.domains[0].rules()[0].fleet.unwrap().wait();
    assert_eq!(wait, std::time::Duration::from_millis(20));
}

#[test]
fn rules_of_a_host_and_of_the_fleet_are_not_compared() {
    let two = |one: &str, other: &str| {
        let text = format!(
            "domain: api\nlimits:\n- {{name: a, key: [u], rate: 10/s{one}}}\n- {{name: b, key: [u], rate: 20/s{other}}}\n"
        );
        read_text("rules.yaml", &text).problems.len()
    };
    let (fleet, refuse) = (", scope: fleet", ", scope: fleet, fleet: {on_miss: refuse}");
    assert_eq!(two("", ""), 1);
    assert_eq!([two(fleet, ""), two("", fleet), two(refuse, fleet)], [0, 0, 0]);
}

/// What so many hosts do at a miss, and what they admit past the budget.
#[track_caller]
fn past(fields: &str, hosts: u32) -> (OnMiss, u32, u16) {
    let rule = rule(&format!("scope: fleet, {fields}"));
    let bound = FleetBound::of(&rule.fleet.unwrap(), rule.limit.quota().unwrap(), hosts).unwrap();
    assert_eq!(bound.hosts, hosts);
    (bound.on_miss, bound.extra, bound.quiet)
}

#[test]
fn a_bound_is_stated_for_every_size_of_fleet() {
    use OnMiss::{Admit, Ask, Refuse};
    for fields in
        ["rate: 1000/s", "rate: 10/h", "rate: 5/s, fleet: {on_miss: ask}", "rate: 5/s, fleet: {mode: exact}"]
    {
        assert_eq!([past(fields, 2), past(fields, 9_999)], [(Ask, 0, 0); 2], "{fields}");
    }
    // A tenth of the burst, as long as that is a token on each host; else one token on each.
    let admit = "fleet: {on_miss: admit}";
    assert_eq!(past(&format!("rate: 1000/s, {admit}"), 2), (Admit, 100, 100));
    assert_eq!(past(&format!("rate: 1000/s, {admit}"), 100), (Admit, 100, 100));
    assert_eq!(past(&format!("rate: 1000/s, {admit}"), 101), (Admit, 101, 100));
    assert_eq!(past(&format!("rate: 100/s, burst: 19, {admit}"), 2), (Admit, 2, 100));
    assert_eq!(past(&format!("rate: 10/h, {admit}"), 6), (Admit, 6, 100));
    assert_eq!(past("rate: 1000/s, fleet: {on_miss: refuse}", 100), (Refuse, 0, 0));
    // A promise holds however many hosts there are.
    assert_eq!(past("rate: 1000/s, max_over: 5%, fleet: {on_miss: admit}", 50), (Admit, 50, 50));
    assert_eq!(past("rate: 1000/s, max_over: 5%, fleet: {on_miss: admit}", 51), (Ask, 0, 0));
}

/// A rule of `concurrency`.
#[track_caller]
fn at_once(fields: &str) -> Rule {
    only(&read_text("rules.yaml", &format!("domain: api\nconcurrency:\n- {{name: a, key: [u], {fields}}}\n")))
        .clone()
}

#[test]
fn work_at_once_is_shared_and_nothing_begins_without_a_place() {
    let rule = at_once(
        "max: 40, scope: fleet, fleet: {on_redis_down: refuse}, overrides: [{match: {p: x}, max: 7}]",
    );
    let shown: Vec<_> = rule
        .limit
        .allowances
        .iter()
        .flatten()
        .map(|allowance| super::quotas::quota(&allowance.quota))
        .collect();
    assert_eq!(shown, ["40 at once, shared, Refuse", "7 at once, shared, Refuse"]);
    assert_eq!(rule.fleet, Some(FleetSettings { on_redis_down: Fallback::Refuse, ..terms() }));
    let of = |hosts| FleetBound::of(&rule.fleet.unwrap(), rule.limit.quota().unwrap(), hosts).unwrap();
    assert_eq!((of(10).on_miss, of(10).extra, of(10).quiet, of(10).unit), (OnMiss::Ask, 0, 0, "place"));
    assert_eq!(of(10).doubt(rule.limit.quota().unwrap()), None);
    assert_eq!((of(11).on_miss, of(11).extra), (OnMiss::Ask, 0));
    assert_eq!(of(11).doubt(rule.limit.quota().unwrap()), None);
    assert_eq!(at_once("max: 40, scope: host").fleet, None);
}

#[test]
fn what_becomes_of_work_without_a_place_is_what_the_rule_says() {
    let of = |on_miss: &str, hosts| {
        let rule = at_once(&format!("max: 40, scope: fleet, fleet: {{on_miss: {on_miss}}}"));
        let quota = rule.limit.quota().unwrap().clone();
        let bound = FleetBound::of(&rule.fleet.unwrap(), &quota, hosts).unwrap();
        (bound.on_miss, bound.doubt(&quota))
    };
    assert_eq!([of("ask", 2), of("ask", 11)], [(OnMiss::Ask, None), (OnMiss::Ask, None)]);
    assert_eq!(of("refuse", 10), (OnMiss::Refuse, None));
    let doubt = "`max` 40 over 11 hosts with `on_miss: refuse` is 3 for each: a host refuses more while others have room; \
                 `on_miss: ask` costs a call of Redis for each lease";
    assert_eq!(of("refuse", 11), (OnMiss::Refuse, Some(doubt.to_owned())));
    // What a limit does is what is said of it, and a rule of 40 is no rule of 40 that asks.
    let quota = |fields: &str| match at_once(fields).limit.quota() {
        Some(Quota::Concurrency(quota)) if quota.is_fleet() => quota.clone(),
        other => panic!("{other:?}"),
    };
    assert!(quota("max: 40, scope: fleet").may_wait());
    assert!(quota("max: 40, scope: fleet, fleet: {on_miss: ask}").may_wait());
    assert!(!quota("max: 40, scope: fleet, fleet: {on_miss: refuse}").may_wait());
    let patient = quota("max: 40, scope: fleet, fleet: {wait: 20ms}");
    assert_eq!(patient.patience(), std::time::Duration::from_millis(20));
    assert_ne!(patient, quota("max: 40, scope: fleet"));
}

#[test]
fn a_tiny_budget_is_doubted() {
    let doubt = |fields: &str, hosts| {
        let rule = rule(&format!("scope: fleet, {fields}"));
        let quota = rule.limit.quota().unwrap();
        FleetBound::of(&rule.fleet.unwrap(), quota, hosts).unwrap().doubt(quota)
    };
    assert_eq!(
        doubt("rate: 10/h, fleet: {on_miss: admit}", 100).unwrap(),
        "10/h over 100 hosts: `on_miss: admit` may pass 110 at once; `on_miss: ask` costs one call of Redis for each \
         request"
    );
    assert_eq!(doubt("rate: 10/h", 100), None);
    assert_eq!(doubt("rate: 10/s, fleet: {on_miss: admit}", 5), None);
    assert!(doubt("rate: 10/s, fleet: {on_miss: admit}", 6).is_some());
    assert_eq!(doubt("rate: 10/h, fleet: {on_miss: refuse}", 100), None);
    assert_eq!(doubt("rate: 10/h, max_over: 60%, fleet: {on_miss: admit}", 100), None);
}
