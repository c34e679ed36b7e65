//! The page of statuses that are written by hand: hostile, huge and empty.

use serde_json::{Value, json};

use crate::admin::health::tests::status_with;
use crate::admin::history::{RateHistory, RuleHistory};
use crate::admin::status::DaemonStatus;
use crate::engine::Caller;

fn text(status: &DaemonStatus, story: &RateHistory) -> String {
    super::text(status, story, ["h<1>", "2026-11-22T03:00:00Z", "abc"])
}

#[test]
fn escapes_texts_of_files_and_clients() {
    let hostile = "</bdi></title><script>alert(1)</script><img src=x onerror=alert(1)>\" onload=\"x' &amp;\u{202e}\u{0}";
    let status = r#"{
        "version": H, "mode": H, "counts": [{"domain": H, "rule": H, "mode": H, "pass": 3}], "warnings": [H],
        "pools": [{"pool": H, "watched": true, "s": 0.5, "chances": [[H, 0.5]]}], "missed": [{"reason": H, "count": 2}],
        "fleet": {"redis": true, "linked": true, "needed": true, "host": H},
        "switches": {
            "switches": [{"rule": H, "mode": H, "by": H, "until": H}], "changes": [{"at": H, "by": H, "what": H}],
            "blocks": [{"rule": H, "text": H, "by": H, "until": H}]
        },
        "callers": {
            "busiest": [{"domain": H, "rule": H, "digest": H, "text": H}], "refused": [{"rule": H, "digest": H}],
            "would_refuse": [{"domain": H, "rule": H, "digest": H, "text": H}]
        }
    }"#;
    let status =
        serde_json::from_str::<DaemonStatus>(&status.replace('H', &json!(hostile).to_string())).unwrap();
    let page = text(&status, &RateHistory { sums: [0, 0, 0, 0, 0, 2], ..RateHistory::default() });
    for harm in ["<script>", "<img", "\" onload", "</bdi></title>", "\u{0}"] {
        assert!(!page.contains(harm), "{harm}: {page}");
    }
    let top = page.split("id=\"decisions\"").next().unwrap();
    assert!(
        top.contains("<title>✖ tidegate h&lt;1&gt;") && top.contains("1 thing is wrong"),
        "health is first: {top}"
    );
    assert_eq!(page.matches("<script").count(), 1, "its own");
    assert_eq!(page.matches("&lt;script&gt;").count(), 34, "each is shown all the same");
}

#[test]
fn bounds_the_page_of_ten_thousand_rules() {
    let rule = |number| json!({"domain": "d".repeat(300), "rule": format!("{number}-{}", "<".repeat(300)), "pass": number});
    let rules: Vec<Value> = (0..513).map(rule).collect();
    let name =
        |rule: &Value| format!("{}/{}", rule["domain"].as_str().unwrap(), rule["rule"].as_str().unwrap());
    let busy = RuleHistory { steps: vec![[1e6, 2e6, 3e6]; 120], now: [1e6, 2e6, 3e6] };
    let story = RateHistory {
        steps: (0..120_u16).rev().map(|step| (f32::from(step) * 5.0, [1e6; 6])).collect(),
        rules: rules.iter().map(|rule| (name(rule), busy.clone())).collect(),
        ..RateHistory::default()
    };
    let caller = json!({"rule": "<".repeat(300), "digest": "e".repeat(32), "text": "&".repeat(10_000)});
    let pool = json!({"pool": "p", "watched": true});
    let mut status = status_with(&[
        ("/rules/domains/0/rules", json!(10_000)),
        ("/counts", json!(rules)),
        ("/pools", json!(vec![pool; 100])),
        ("/warnings", json!(vec!["w".repeat(200); 1_000])),
    ]);
    let callers: Vec<Caller> = serde_json::from_value(json!(vec![caller; 20])).unwrap();
    status.callers.busiest = callers.clone();
    status.callers.refused = callers;
    let page = text(&status, &story);
    assert!(page.len() < 256 * 1_024, "{}", page.len());
    for left_out in ["9\u{202f}960 of 10\u{202f}000 are not shown", "92 more, and 0 without", "and 988 more"]
    {
        assert!(page.contains(left_out), "{left_out}");
    }
}

#[test]
fn shows_busiest_rule_first_whether_it_passes_or_refuses() {
    let rule = |(name, pass)| json!({"domain": "api", "rule": name, "mode": "enforce", "pass": pass});
    let rules = [("once", 900), ("calm", 5), ("idle", 0), ("full", 7)].map(rule);
    let history = [("api/calm", [2.0, 0.0, 0.0]), ("api/full", [0.0, 3.0, 0.5])];
    let history = history.map(|(name, now)| (name.to_owned(), RuleHistory { steps: Vec::new(), now }));
    let story = RateHistory { rules: history.into(), ..RateHistory::default() };
    let page = text(&status_with(&[("/counts", json!(rules))]), &story);
    let places =
        ["full", "calm", "once", "idle"].map(|name| page.find(&format!("<bdi>{name}</bdi>")).unwrap());
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn shows_daemon_without_a_status() {
    let page = text(&DaemonStatus::default(), &RateHistory::default());
    assert!(page.ends_with("</html>\n") && page.contains("h&lt;1&gt;"), "{page}");
}
