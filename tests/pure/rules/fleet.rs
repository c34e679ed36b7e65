//! The scope of a rule, how a fleet shares it, and the bound of requests allowed past a budget.

use tidegate::fleet::counters::FleetView;
use tidegate::limit::share::Fallback;
use tidegate::limit::{Quota, Rate};
use tidegate::rules::{
    CellRate, FleetBound, FleetSettings, Loaded, OnMiss, Rule, Scope, Scopes, read_scoped, read_text,
};

use super::problems::folder;

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

fn read_with_scopes(text: &str, scopes: &Scopes) -> Loaded {
    read_scoped(&folder(&[("rules.yaml", text)]).path().join("rules.yaml"), scopes)
}

#[test]
fn nearest_scope_setting_wins() {
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
            // The scope of another domain has no effect here.
            domains: domain
                .into_iter()
                .map(|scope| ("api".into(), scope))
                .chain([("apis".into(), Fleet)])
                .collect(),
            ..Scopes::default()
        };
        let loaded = read_with_scopes(&text, &scopes);
        assert_eq!(only(&loaded).scope(), expected, "{text} {scopes:?}");
    }
}

#[test]
fn global_scope_applies_to_tree_nodes() {
    let tree = "domain: api\ndescriptors: [{key: to, rate_limit: {unit: day, requests_per_unit: 5}}]\n";
    let scopes = Scopes { all: Scope::Fleet, ..Scopes::default() };
    let loaded = read_with_scopes(tree, &scopes);
    let node = only(&loaded);
    assert_eq!(node.fleet, Some(FleetSettings::default()));
    let quota = node.limit.quota().unwrap();
    assert_eq!((quota.algorithm(), quota.format_rate(), quota.limit()), ("fixed_window", "5/day".into(), 5));
    assert!(matches!(quota, Quota::FleetBudget(quota) if quota.window().is_some()), "{quota:?}");
    let alone = read_text("rules.yaml", tree);
    assert!(!alone.has_errors() && alone.domains[0].rules()[0].fleet.is_none());
}

/// The action at a miss with `hosts` hosts, and the bound past the budget.
#[track_caller]
fn past(fields: &str, hosts: u32) -> (OnMiss, u32, u16) {
    let rule = rule(&format!("scope: fleet, {fields}"));
    let bound = FleetBound::of(&rule.fleet.unwrap(), rule.limit.quota().unwrap(), hosts).unwrap();
    assert_eq!(bound.hosts, hosts);
    (bound.on_miss, bound.extra, bound.quiet)
}

#[test]
fn states_bound_for_every_fleet_size() {
    use OnMiss::{Admit, Ask, Refuse};
    for fields in
        ["rate: 1000/s", "rate: 10/h", "rate: 5/s, fleet: {on_miss: ask}", "rate: 5/s, fleet: {mode: exact}"]
    {
        assert_eq!([past(fields, 2), past(fields, 9_999)], [(Ask, 0, 0); 2], "{fields}");
    }
    // A tenth of the burst, if that is at least one token per host; else one token per host.
    let admit = "fleet: {on_miss: admit}";
    assert_eq!(past(&format!("rate: 1000/s, {admit}"), 2), (Admit, 100, 100));
    assert_eq!(past(&format!("rate: 1000/s, {admit}"), 100), (Admit, 100, 100));
    assert_eq!(past(&format!("rate: 1000/s, {admit}"), 101), (Admit, 101, 100));
    assert_eq!(past(&format!("rate: 100/s, burst: 19, {admit}"), 2), (Admit, 2, 100));
    assert_eq!(past(&format!("rate: 10/h, {admit}"), 6), (Admit, 6, 100));
    assert_eq!(past("rate: 1000/s, fleet: {on_miss: refuse}", 100), (Refuse, 0, 0));
    // The promised bound holds for any number of hosts.
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
fn fleet_scope_applies_to_max_and_its_overrides() {
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
    let refuse = FleetSettings { on_redis_down: Fallback::Refuse, ..FleetSettings::default() };
    assert_eq!(rule.fleet, Some(refuse));
    let of = |hosts| FleetBound::of(&rule.fleet.unwrap(), rule.limit.quota().unwrap(), hosts).unwrap();
    assert_eq!((of(10).on_miss, of(10).extra, of(10).quiet, of(10).unit), (OnMiss::Ask, 0, 0, "permit"));
    assert_eq!(of(10).doubt(rule.limit.quota().unwrap()), None);
    assert_eq!((of(11).on_miss, of(11).extra), (OnMiss::Ask, 0));
    assert_eq!(of(11).doubt(rule.limit.quota().unwrap()), None);
    assert_eq!(at_once("max: 40, scope: host").fleet, None);
}

#[test]
fn on_miss_setting_decides_requests_without_permit() {
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
    // The quota reflects the `fleet` fields, so that quotas with other fields differ.
    let quota = |fields: &str| match at_once(fields).limit.quota() {
        Some(Quota::Concurrency(quota)) if quota.is_fleet() => quota.clone(),
        other => panic!("{other:?}"),
    };
    assert!(quota("max: 40, scope: fleet").may_wait());
    assert!(quota("max: 40, scope: fleet, fleet: {on_miss: ask}").may_wait());
    assert!(!quota("max: 40, scope: fleet, fleet: {on_miss: refuse}").may_wait());
    let patient = quota("max: 40, scope: fleet, fleet: {wait: 12ms}");
    assert_eq!(patient.patience(), std::time::Duration::from_millis(12));
    assert_ne!(patient, quota("max: 40, scope: fleet"));
}

#[test]
fn warns_of_tiny_budget() {
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

#[test]
fn a_partition_admits_more_by_the_hosts_cut_off() {
    for (fallback, none, one, three) in [
        (Fallback::Share, 1.0, 1.25, 1.75),
        (Fallback::Local, 1.0, 2.0, 4.0),
        (Fallback::Allow, 1.0, f64::INFINITY, f64::INFINITY),
        (Fallback::Refuse, 1.0, 1.0, 1.0),
    ] {
        let terms = FleetSettings { on_redis_down: fallback, ..FleetSettings::default() };
        assert_eq!([0, 1, 3].map(|cut_off| terms.admitted_max(4, cut_off)), [none, one, three], "{fallback}");
    }
    for (is_needed, is_linked, hosts, alive, cut_off) in [
        (true, true, 4, 4, 0),
        (true, true, 4, 1, 3),
        (true, true, 4, 0, 0),
        (true, false, 4, 4, 1),
        (true, false, 1, 1, 0),
        (true, false, 1, 0, 1),
        (false, false, 4, 0, 0),
    ] {
        let view = FleetView { is_needed, is_linked, hosts, alive, ..FleetView::default() };
        assert_eq!(view.cut_off(), cut_off, "{view:?}");
    }
}

#[test]
fn rate_is_micro_tokens_per_microsecond() {
    const SECOND: u64 = 1_000_000_000;
    for (count, period, expected) in [
        (1_000, SECOND, Some((1_000, 1))),
        (10, 3_600 * SECOND, Some((1, 360))),
        (7, 3 * SECOND, Some((7, 3))),
        (1, 366 * 86_400 * SECOND, Some((1, 31_622_400))),
        (1_234_567, 86_400 * SECOND, Some((1_234_567, 86_400))),
        (1_000_000_000, SECOND, Some((1_000_000_000, 1))),
        (2_000_000_000, SECOND, None),
        // Too many parts of a token.
        (1_000_000_007, 30 * 86_400 * SECOND, None),
        // The product alone is below 2⁵³, but not together with a remainder.
        (999_999_937, 5_000_000 * SECOND, None),
        (999_999_937, 4_000_000 * SECOND, Some((999_999_937, 4_000_000))),
        // A period that is not a whole number of microseconds needs smaller parts of a token.
        (3, 1_000_000_500, Some((2_000_000, 666_667))),
    ] {
        let rate = Rate::new(count, period).unwrap();
        let found = CellRate::of(rate).map(|rate| (rate.num(), rate.den()));
        assert_eq!(found, expected, "{rate}");
    }
}

/// The rate and the burst that a region of this weight, in thousandths, has of a bucket; and the debt that it allows.
fn part(rate: &str, burst: u32, weight: u16) -> (String, u32, u32) {
    let fields = format!("name: a, key: [u], rate: {rate}, burst: {burst}, scope: fleet");
    let scopes = Scopes { weight: Some(weight), ..Scopes::default() };
    let loaded = read_with_scopes(&format!("domain: api\nlimits:\n- {{{fields}}}\n"), &scopes);
    assert!(!loaded.has_errors(), "{rate}: {:#?}", loaded.problems);
    let allowance = loaded.domains[0].rules()[0].limit.allowance(0).unwrap();
    let Quota::FleetBudget(share) = &allowance.quota else { panic!("{allowance:?}") };
    (share.bucket().rate().to_string(), share.bucket().burst(), allowance.max_debt)
}

#[test]
fn rounds_part_of_a_region_down_but_never_to_zero() {
    for (rate, burst, weight, expected) in [
        ("1000/s", 1_000, 250, ("250/s", 250)),
        ("10/h", 10, 750, ("15/2h", 7)),
        ("7/3s", 7, 500, ("7/6s", 3)),
        ("7/3s", 3, 750, ("21/12s", 2)),
        ("1/h", 3, 1, ("1/1000h", 1)),
        ("1000/s", 1_000, 1_000, ("1000/s", 1_000)),
        // Redis scripts cannot count the exact part.
        ("999999937/4000000s", 1_000, 333, ("332999979/4000000s", 333)),
    ] {
        let (part, part_burst, _) = part(rate, burst, weight);
        assert_eq!((&*part, part_burst), expected, "{weight} of {rate}");
    }
}

#[test]
fn scales_bucket_of_any_fill_time_to_its_part() {
    for (rate, burst) in [
        ("100/day", 200_000),
        ("10/h", 500_000),
        ("1/366day", 72),
        ("999983/day", 200_000_000),
        ("7/3day", 8_000),
    ] {
        for weight in [1, 333, 500, 999] {
            let (_, part_burst, max_debt) = part(rate, burst, weight);
            let most = (u64::from(burst) * u64::from(weight) / 1_000).max(1);
            assert!(u64::from(part_burst) <= most, "{weight} of {rate}: {part_burst}");
            assert!(max_debt <= part_burst, "{weight} of {rate}: {max_debt}");
        }
    }
}
