//! Daemons of different state versions, one after the other, and the format of their snapshots.

use super::restarts::{end, plan, state};
use crate::prelude::*;
use tidegate::engine::snapshot::SnapshotEntry;

/// Gives the tables of a stopped daemon a later version, which no checksum covers.
fn age(plan: &Plan) {
    let path = state(plan).join("tables");
    let mut tables = fs::read(&path).unwrap();
    tables[8] += 1;
    fs::write(path, tables).unwrap();
}

#[test]
fn restores_tables_of_same_version_only() {
    let mut plan = plan();
    let rounds = [(false, 5), (false, 2), (true, 5), (false, 2), (false, 0), (true, 5), (false, 2)];
    for (round, (is_other, left)) in rounds.into_iter().enumerate() {
        if is_other {
            age(&plan);
        }
        let daemon = plan.start();
        assert_eq!(daemon.greeted().allowed("u", 3), left.min(3), "round {round}");
        let log;
        (plan, log) = end(daemon);
        for words in ["cannot be used: it is of version 3", "reads version 2"] {
            assert_eq!(log.contains(words), is_other, "round {round}: {words}: {log}");
        }
        assert_eq!(log.contains("restored the state"), round > 0 && !is_other, "round {round}: {log}");
    }
    let version_of = |name: &str| fs::read(state(&plan).join(name)).unwrap()[8];
    assert_eq!((version_of("tables"), version_of("tables.bad")), (2, 3));
}

/// A file of the daemon before snapshots of version 2: rules of each algorithm, all used up by ann, with
/// `switched-off` disabled and `blocked` blocked by hand.
fn before(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/upgrade").join(name)
}

/// The settings, rules and state of that daemon.
fn upgraded() -> Plan {
    let read = |name| fs::read_to_string(before(name)).unwrap();
    let settings = read("tidegate.yaml").replace("rules: rules\n", "");
    let plan = Plan::new().settings(&settings).rules("api.yaml", &read("rules/api.yaml"));
    fs::create_dir(state(&plan)).unwrap();
    for file in ["hash-key", "rules", "rules-proven", "switches", "tables"] {
        fs::copy(before("state").join(file), state(&plan).join(file)).unwrap();
    }
    plan
}

/// The number of allowed requests among four.
fn allowed_at(wire: &mut Wire, path: &str, user: &str) -> usize {
    let hit = |id| json!([3, id, "api", [["path", path, "user", user]]]);
    (0..4).filter(|id| verdict_of(&wire.ask(&hit(*id))) == 0).count()
}

#[test]
fn starts_with_files_of_the_version_before() {
    let daemon = upgraded().start();
    let mut wire = daemon.greeted();
    for path in ["/bucket", "/fixed", "/sliding"] {
        assert_eq!(allowed_at(&mut wire, path, "ann"), 3, "{path} begins anew");
    }
    let work = json!([1, 9, "api", [["path", "/work", "user", "ann"]]]);
    assert_eq!(verdict_of(&wire.ask(&work)), 0, "its lease is unknown");
    assert_eq!(allowed_at(&mut wire, "/switched-off", "ann"), 4);
    assert_eq!(allowed_at(&mut wire, "/bucket", "blocked"), 0);
    let (plan, log) = end(daemon);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("snapshot cannot be used")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    for words in ["version 1", "reads version 2", "limits, leases and blocks by rules begin anew"] {
        assert!(lines[0].contains(words), "{words}: {log}");
    }
    let read = |path: PathBuf| fs::read(path).unwrap();
    assert_eq!(read(state(&plan).join("tables.bad")), read(before("state/tables")));
    let daemon = plan.start();
    let mut wire = daemon.greeted();
    assert_eq!(allowed_at(&mut wire, "/bucket", "ann"), 0);
    assert_eq!(allowed_at(&mut wire, "/switched-off", "ann"), 4);
}

#[test]
fn uses_last_good_rules_of_the_version_before() {
    let daemon = upgraded().rules("api.yaml", "domain: api\nlimits: 5\n").start();
    daemon.await_log(&["ERROR", "api", "YESTERDAY'S"]);
    assert_eq!(allowed_at(&mut daemon.greeted(), "/fixed", "bob"), 3);
}

/// One entry of each kind: a change of a name or of an order needs another `VERSION`. A snapshot has them as MessagePack: fields in this order, without their names.
const ENTRIES: [&str; 15] = [
    r#"{"Rules":1}"#,
    r#"{"Rule":{"identity":1,"quotas":[2,3]}}"#,
    r#"{"Pool":{"name":"web","law":[0.1,0.2,0.3,0.4,0.5],"severity":0.6,"silent_nanos":7,"stepped":8}}"#,
    r#"{"Buckets":[[1,2]]}"#,
    r#"{"Windows":[[1,2,3]]}"#,
    r#"{"SlidingWindow":[1,2,[3,4]]}"#,
    r#"{"Log":[1,[[2,3]]]}"#,
    r#"{"Places":[1,2]}"#,
    r#"{"Shares":[[1,2,3]]}"#,
    r#"{"Block":[1,2]}"#,
    r#"{"Soft":[1,2,3]}"#,
    r#"{"Repeat":[1,{"content_hash":2,"grant":{"at":3,"verdict":"allow","wait":4,"lease":5,"binding":[6,"a",{"limit":7,"window":8,"remaining":9,"reset":10}],"listed":"b","notes":[["Shadow",11]],"all":[[12,{"limit":13,"window":14,"remaining":15,"reset":16}]],"rule_set":1}}]}"#,
    r#"{"Spent":[1,{"at":2,"print":3,"costs":[[4,5]],"name":6}]}"#,
    r#"{"Session":{"name":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"user":17,"pid":18,"pool":"web","slots":19}}"#,
    r#"{"Lease":{"number":1,"ends_at":2,"lasts_millis":3,"request":4,"connection":5,"is_other":true,"ties":[{"Permit":6},{"Refund":{"rule":7,"digest":8,"salt":65536,"allowance":9,"cost":10,"is_elastic":true,"at":17}},{"IdempotencyKey":11},{"RefundableCost":12},{"Cost":{"unit":13,"cost":14}}],"cost":{"fingerprint":15,"cost":16}}}"#,
];

#[test]
fn entries_keep_their_format() {
    for written in ENTRIES {
        let entry: SnapshotEntry = serde_json::from_str(written).unwrap();
        assert_eq!(serde_json::to_string(&entry).unwrap(), written);
        let bytes = rmp_serde::to_vec(&entry).unwrap();
        assert_eq!(rmp_serde::from_slice::<SnapshotEntry>(&bytes).unwrap(), entry, "{written}");
    }
}

#[test]
fn reads_costs_of_before_their_name() {
    let before = rmp_serde::to_vec(&serde_json::json!({"Spent": [1, [2, 3, [[4, 5]]]]})).unwrap();
    let SnapshotEntry::Spent(_, cost) = rmp_serde::from_slice(&before).unwrap() else { panic!("a cost") };
    assert_eq!((&*cost.costs, cost.name), (&[(4, 5)][..], None));
}
