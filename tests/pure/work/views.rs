//! The views for operators and the host's sampler: rules in force, sessions, wanted signals, held bytes.

use tidegate::engine::{
    AccountUse, ConnectionParams, HostSignals, OpenSession, RuleName, Switch, SwitchOrigin, Target, WrongPool,
};
use tidegate::rules::Mode;

use crate::bench::{Bench, s};
use crate::engines::at_millis as ms;

const RULES: &str = "priorities: [critical, get]
exempt: [{name: probes, match: {path: /healthz}}, {name: unused, match: {path: /x}}]
deny: [{name: bots, match: {agent: bot}}, {name: tried, match: {agent: x}, mode: shadow}]
limits:
- {name: a, key: [u], rate: 1/s}
- {name: b, key: [u], rate: 1/s, mode: shadow}
- {name: c, key: [u], rate: 1/s, mode: disabled}
shed:
- pool: web
  workers: {}
  queue_age: {others: 1s, mode: shadow}
  signals:
    accept_queue: {listen: ':8000', use: true, map: [[0, 0%], [32, 100%]]}
    cpu: {use: true}
";

#[test]
fn rules_in_force_have_their_effective_modes() {
    use Mode::{Disabled, Enforce, Shadow};
    // A rule, and its mode while the whole daemon is in each mode.
    let table = [
        ("a", [Enforce, Shadow, Disabled]),
        ("b", [Shadow, Shadow, Disabled]),
        ("c", [Disabled, Disabled, Disabled]),
        ("probes", [Enforce, Enforce, Disabled]),
        ("unused", [Disabled, Disabled, Disabled]),
        ("bots", [Enforce, Shadow, Disabled]),
        ("tried", [Shadow, Shadow, Disabled]),
        ("web/workers", [Enforce, Shadow, Disabled]),
        ("web/queue_age", [Shadow, Shadow, Disabled]),
    ];
    let bench = Bench::new(RULES);
    let switch = |target: Target, mode: Mode| {
        let switch = Switch { target, mode, until: None, set_at: s(0).at, by: SwitchOrigin::User(0) };
        bench.engine.set_switch(&switch).unwrap();
    };
    switch(Target::Rule(RuleName { domain: "api".into(), rule: "unused".into() }), Disabled);
    for (number, mode) in [Enforce, Shadow, Disabled].into_iter().enumerate() {
        switch(Target::Daemon, mode);
        let in_force = bench.engine.in_force();
        let seen: Vec<_> = in_force.each().map(|rule| (rule.domain, rule.name, rule.mode)).collect();
        for (name, modes) in table {
            let expected = ("api", name, modes[number]);
            assert!(seen.contains(&expected), "{expected:?} while {mode:?}: {seen:?}");
        }
        // Parts that no file names are missing.
        assert_eq!(seen.len(), table.len(), "{seen:?}");
        assert_eq!((bench.engine.has_domain("api"), bench.engine.has_domain("web")), (true, false));
    }
}

#[test]
fn lists_named_sessions_and_when_they_end() {
    let bench = Bench::new(RULES);
    let (one, _unnamed, two) =
        (bench.session(1, 3, s(0)), bench.session(0, 3, s(0)), bench.session(2, 4, s(0)));
    bench.engine.close_connection(&two, s(1));
    let of = |number: u8, slots: u32, ends_at: Option<u64>| OpenSession {
        name: [number; 16],
        user: 1,
        pid: None,
        pool: "web".into(),
        slots,
        ends_at: ends_at.map(|seconds| s(seconds).at),
    };
    let mut open = bench.engine.open_sessions();
    open.sort_by_key(|session| session.name);
    assert_eq!(open, [of(1, 3, None), of(2, 4, Some(6))]);
    bench.engine.tick(s(6));
    bench.engine.end_session(&one, s(6));
    assert_eq!(bench.engine.open_sessions(), []);
    assert_eq!(bench.engine.leases().sessions, 1);
}

#[test]
fn forgets_pools_that_neither_rules_nor_sessions_name() {
    let bench = Bench::new(RULES);
    let opening = ConnectionParams { name: None, user: 1, pool: "jobs", slots: 1, connection: 1, pid: None };
    let session = bench.engine.open_session(&opening, s(0)).unwrap();
    let pools = |at: u64| {
        bench.engine.sweep(s(at));
        let pools = bench.engine.pools(s(at)).into_iter();
        pools.map(|pool| (pool.pool.into_string(), pool.configured)).collect::<Vec<_>>()
    };
    let [jobs, web] = [("jobs".to_owned(), false), ("web".to_owned(), true)];
    assert_eq!(pools(1), [jobs, web.clone()]);
    bench.engine.end_session(&session, s(2));
    drop(session);
    assert_eq!(pools(3), [web]);
    bench.install("limits:\n- {name: a, key: [u], rate: 1/s}\n");
    assert_eq!(pools(4), []);
}

#[test]
fn wants_the_signals_of_the_rules_from_a_process_of_the_pool() {
    let bench = Bench::new(RULES);
    let wanted = || -> Vec<(String, Option<u32>)> {
        let wanted = bench.engine.required_host_signals().into_iter();
        wanted.map(|HostSignals { pool, signal, pid, .. }| (format!("{pool}/{signal}"), pid)).collect()
    };
    let both = |pid| vec![("web/accept_queue".to_owned(), pid), ("web/cpu".to_owned(), pid)];
    assert_eq!(wanted(), both(None));
    let opening =
        ConnectionParams { name: None, user: 1, pool: "web", slots: 1, connection: 1, pid: Some(77) };
    let session = bench.engine.open_session(&opening, s(0)).unwrap();
    assert_eq!(wanted(), both(Some(77)));
    bench.engine.end_session(&session, s(1));
    assert_eq!(wanted(), both(None));
    bench.install("limits:\n- {name: a, key: [u], rate: 1/s}\n");
    assert_eq!(wanted(), []);
}

#[test]
fn pushed_signals_count_for_the_pool_of_their_session_while_fresh() {
    let pushed = "priorities: [critical, get]\nshed:\n- {pool: web, slots: 4, workers: {}, signals: {load: {use: true}}}\n";
    let bench = Bench::new(pushed);
    let sessions = [1, 2].map(|number| bench.session(number, 2, s(0)));
    let [one, two] = &sessions;
    let load = |millis: u64| bench.engine.pools(ms(millis)).remove(0).signals[0].utilization;
    assert_eq!(load(0), None);
    assert_eq!(bench.engine.record_pushed_signal(one, "other", "load", 900, s(0)), Err(WrongPool));
    assert_eq!(bench.engine.record_pushed_signal(one, "web", "load", 900, s(0)), Ok(()));
    assert_eq!(load(0), Some(0.9));
    assert_eq!(bench.engine.record_pushed_signal(two, "web", "load", 300, s(1)), Ok(()));
    assert_eq!(load(1_000), Some(0.6), "the mean of both");
    assert_eq!((load(2_999), load(3_000), load(4_000)), (Some(0.6), Some(0.3), None));
}

#[test]
fn held_bytes_grow_and_shrink_with_what_clients_hold() {
    let mut bench = Bench::new("concurrency:\n- {name: a, key: [], max: 9}\n");
    let held = |bench: &Bench| bench.engine.held_bytes().total;
    assert_eq!(held(&bench), 0);
    let account = bench.engine.account(1);
    account.connect();
    let connected = held(&bench);
    let session = bench.session(1, 1, s(0));
    let opened = held(&bench);
    let lease = bench.acquire(&session, s(0), "").lease;
    let leased = held(&bench);
    assert!((8 << 10..32 << 10).contains(&connected), "{connected}");
    assert!((1 << 10..8 << 10).contains(&(opened - connected)), "{opened}");
    assert!((64..=128).contains(&(leased - opened)), "{leased}");
    assert!(account.grow(AccountUse::Buffers, 1_000));
    assert_eq!(bench.engine.held_bytes().largest_user, leased + 1_000);
    account.shrink(1_000);
    assert!(bench.release(&session, lease, s(1)));
    assert_eq!(held(&bench), opened);
    bench.engine.end_session(&session, s(2));
    assert_eq!(held(&bench), connected);
    account.disconnect();
    assert_eq!(held(&bench), 0);
    // Ten more connections add the bytes of ten.
    let most = |connections| bench.engine.held_bytes_max(connections);
    assert_eq!((most(10) - most(0)) as u64, 10 * connected);
    assert!(most(0) > bench.engine.memory_bytes_max() + (64 << 20), "tables, accounts, and leases");
}
