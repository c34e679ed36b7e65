//! The page of statuses that are written by hand: hostile, huge, empty, and with each thing that may be wrong.

use serde_json::{Value, json};

use super::health::{Health, Sign};
use super::{PageExtras, policy};
use crate::admin::history::{RuleStory, Story};

const EXTRAS: PageExtras<'_> = PageExtras { host: "h<1>", at: "2026-11-22T03:00:00Z", nonce: "abc" };

const WELL: &str = r#"{
    "version": "1", "started": 1000, "uptime_s": 500, "mode": "enforce", "panics": 0, "missed": [], "warnings": [],
    "rules": {"good": true, "last_success": 1100, "path": "/r", "domains": [{"name": "api", "rules": 1}]},
    "counts": [{"domain": "api", "rule": "a", "mode": "enforce", "pass": 3}], "decisions": {"allow": 1},
    "pools": [{"pool": "web", "watched": true, "slots": 4, "busy": 1, "u": 0.25, "s": -0.2, "braking": false}],
    "switches": {"off": false, "switches": [], "blocks": [], "changes": []}, "fleet": null,
    "connections": {"now": 1, "refused": {"max": 0}}, "memory": {"evictions": 0}
}"#;

/// A status with other values than those of a daemon that is well, by pointer.
fn but(changes: &[(&str, Value)]) -> Value {
    let mut status = serde_json::from_str(WELL).unwrap();
    changes
        .iter()
        .for_each(|(pointer, value)| *Value::pointer_mut(&mut status, pointer).unwrap() = value.clone());
    status
}

/// The sign and the headline of a status.
fn health(status: &Value, story: &Story) -> (Sign, String) {
    let status = serde_json::from_value(status.clone()).unwrap();
    let health = Health::new(&status, story);
    (health.sign(), health.headline())
}

fn text(status: Value, story: &Story) -> String {
    super::text(&serde_json::from_value(status).unwrap(), story, &EXTRAS)
}

#[test]
fn reports_health_first() {
    let story = Story::default();
    assert_eq!(health(&but(&[]), &story).1, "All is well");
    let cases = [
        ("/mode", r#""shadow""#, Sign::Note, "shadow: nothing is refused"),
        ("/mode", r#""disabled""#, Sign::Bad, "disabled: nothing is refused"),
        ("/switches/off", "true", Sign::Bad, "everything is allowed"),
        ("/switches/switches", r#"[{"rule": "api/a"}]"#, Sign::Note, "1 switch, 0 keys blocked by hand"),
        ("/switches/blocks", "[{}, {}]", Sign::Note, "0 switches, 2 keys blocked by hand"),
        ("/rules/good", "false", Sign::Bad, "the last reload failed"),
        ("/rules/domains", "[]", Sign::Note, "0 rules in 0 domains"),
        ("/pools/0/s", "0.4", Sign::Note, "<bdi>web</bdi>: s 0.40"),
        ("/pools/0/braking", "true", Sign::Bad, "the brake is on: <bdi>web</bdi>"),
        ("/pools/0/u", "null", Sign::Note, "no slots are known"),
        ("/pools", "[]", Sign::Good, "the rules watch over no pool"),
        ("/missed", r#"[{"reason": "timeout", "count": 3}]"#, Sign::Good, "3 since the start"),
        ("/fleet", r#"{"redis": false, "rules": 2}"#, Sign::Bad, "no Redis is set"),
        ("/fleet", r#"{"redis": true, "needed": true, "hosts": 3}"#, Sign::Bad, "Redis is not heard"),
        ("/fleet", r#"{"redis": true, "linked": true, "hosts": 3, "alive": 2}"#, Sign::Good, "2 of 3 hosts"),
        ("/fleet", r#"{"redis": true, "needed": false}"#, Sign::Good, "nothing to share"),
        ("/panics", "1", Sign::Bad, "1 panic while judging"),
        ("/connections/refused", r#"{"max": 2}"#, Sign::Note, "2 not let in"),
        ("/memory/evictions", "5", Sign::Note, "5 keys dropped"),
        ("/warnings", r#"["look <here>"]"#, Sign::Note, "look &lt;here&gt;"),
    ];
    for (pointer, value, sign, words) in cases {
        let status = but(&[(pointer, serde_json::from_str(value).unwrap())]);
        assert_eq!(health(&status, &story).0, sign, "{pointer} {value}");
        let page = text(status, &story);
        let top = page.split("id=\"decisions\"").next().unwrap();
        assert!(top.contains(words), "{pointer} {value}: {words}: {top}");
        assert!(
            page.contains(&format!("<title>{} tidegate", sign.mark_and_word().0)),
            "{pointer}: the tab says it, too"
        );
    }
    let status =
        but(&[("/mode", json!("disabled")), ("/rules/good", json!(false)), ("/memory/evictions", json!(5))]);
    assert_eq!(health(&status, &story).1, "2 things are wrong, 1 to know of");
    let shedding = Story { now: [9.0, 0.0, 0.0, 0.0, 2.5, 0.0], ..Story::default() };
    assert_eq!(health(&but(&[]), &shedding).0, Sign::Note);
    let missed = Story { sums: [9, 0, 0, 0, 0, 2], ..Story::default() };
    assert_eq!(health(&but(&[]), &missed).1, "1 thing is wrong");
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
    let status = serde_json::from_str(&status.replace('H', &json!(hostile).to_string())).unwrap();
    let page = text(status, &Story { sums: [0, 0, 0, 0, 0, 2], ..Story::default() });
    for harm in ["<script>", "<img", "\" onload", "</bdi></title>", "\u{0}"] {
        assert!(!page.contains(harm), "{harm}: {page}");
    }
    assert_eq!(page.matches("<script").count(), 1, "its own");
    assert_eq!(page.matches("&lt;script&gt;").count(), 34, "each is shown all the same");
}

#[test]
fn bounds_the_page_of_ten_thousand_rules() {
    let rule = |number| json!({"domain": "d".repeat(300), "rule": format!("{number}-{}", "<".repeat(300)), "pass": number});
    let rules: Vec<Value> = (0..513).map(rule).collect();
    let name =
        |rule: &Value| format!("{}/{}", rule["domain"].as_str().unwrap(), rule["rule"].as_str().unwrap());
    let busy = RuleStory { steps: vec![[1e6, 2e6, 3e6]; 120], now: [1e6, 2e6, 3e6] };
    let story = Story {
        steps: (0..120_u16).rev().map(|step| (f32::from(step) * 5.0, [1e6; 6])).collect(),
        rules: rules.iter().map(|rule| (name(rule), busy.clone())).collect(),
        ..Story::default()
    };
    let mut status = but(&[("/rules/domains/0/rules", json!(10_000)), ("/counts", json!(rules))]);
    let caller = json!({"rule": "<".repeat(300), "digest": "e".repeat(32), "text": "&".repeat(10_000)});
    status["callers"] = json!({"busiest": vec![caller.clone(); 20], "refused": vec![caller; 20]});
    status["pools"] = json!(vec![status["pools"][0].clone(); 100]);
    status["warnings"] = json!(vec!["w".repeat(200); 1_000]);
    let page = text(status, &story);
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
    let history = history.map(|(name, now)| (name.to_owned(), RuleStory { steps: Vec::new(), now }));
    let story = Story { rules: history.into(), ..Story::default() };
    let page = text(but(&[("/counts", json!(rules))]), &story);
    let places =
        ["full", "calm", "once", "idle"].map(|name| page.find(&format!("<bdi>{name}</bdi>")).unwrap());
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn shows_daemon_without_a_status() {
    let page = text(json!({}), &Story::default());
    assert!(page.ends_with("</html>\n") && page.contains("h&lt;1&gt;"), "{page}");
}

#[test]
fn admits_only_its_own_parts() {
    let page = text(but(&[]), &Story::default());
    assert_eq!(page.matches("nonce=\"abc\"").count(), 2);
    assert_eq!(page.matches("http://").count(), page.matches("http://www.w3.org/2000/svg").count());
    assert!(!page.contains("https://") && !page.contains(" style=") && !page.contains(" onclick="));
    let policy = policy("abc");
    assert!(policy.starts_with("default-src 'none'; script-src 'nonce-abc'; style-src 'nonce-abc'"));
    assert!(!policy.contains("unsafe") && !policy.contains('*'));
}
