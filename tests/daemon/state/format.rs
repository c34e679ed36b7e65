//! The format of snapshot entries: a change of a name or of an order below needs another `VERSION`.

use tidegate::engine::snapshot::SnapshotEntry;

/// One entry of each kind. A snapshot has them as MessagePack: fields in this order, without their names.
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
    r#"{"Lease":{"number":1,"ends_at":2,"lasts_millis":3,"request":4,"connection":5,"is_other":true,"ties":[{"Permit":6},{"Refund":{"rule":7,"digest":8,"salt":65536,"allowance":9,"cost":10,"is_elastic":true}},{"IdempotencyKey":11},{"RefundableCost":12},{"Cost":{"unit":13,"cost":14}}],"cost":{"fingerprint":15,"cost":16}}}"#,
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
