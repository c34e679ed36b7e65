//! The page of statuses that are written by hand: hostile, huge, empty, and everything that may be wrong.

use serde_json::{Value, json};

use super::health::{Health, Sign};
use super::{PageExtras, policy, text};
use crate::admin::history::{RuleStory, Story};

const ABOUT: PageExtras<'_> = PageExtras { host: "h<1>", at: "2026-11-22T03:00:00Z", nonce: "abc" };

fn well() -> Value {
    json!({
        "version": "1", "started": 1_000.0, "uptime_s": 500, "mode": "enforce", "panics": 0, "missed": [],
        "rules": {"good": true, "last_success": 1_100.0, "path": "/r", "domains": [{"name": "api", "rules": 1}]},
        "connections": {"now": 1, "refused": {"max": 0}}, "decisions": {"allow": 1}, "warnings": [],
        "counts": [{"domain": "api", "rule": "a", "mode": "enforce", "pass": 3}],
        "pools": [{"pool": "web", "watched": true, "slots": 4, "busy": 1, "u": 0.25, "s": -0.2, "braking": false}],
        "switches": {"off": false, "switches": [], "blocks": [], "changes": []}, "fleet": null,
        "memory": {"evictions": 0},
    })
}

fn put(status: &mut Value, pointer: &str, value: Value) {
    *status.pointer_mut(pointer).unwrap() = value;
}

#[test]
fn whoever_looks_sees_first_whether_all_is_well() {
    let story = Story::default();
    let health = Health::of(&well(), &story);
    assert_eq!((health.sign(), &*health.headline()), (Sign::Good, "All is well"));
    let cases: &[(&str, Value, Sign, &str)] = &[
        ("/mode", json!("shadow"), Sign::Note, "shadow: nothing is refused"),
        ("/mode", json!("disabled"), Sign::Bad, "disabled: nothing is refused"),
        ("/switches/off", json!(true), Sign::Bad, "everything is allowed"),
        ("/switches/switches", json!([{"rule": "api/a"}]), Sign::Note, "1 switch, 0 keys blocked by hand"),
        ("/switches/blocks", json!([{}, {}]), Sign::Note, "0 switches, 2 keys blocked by hand"),
        ("/rules/good", json!(false), Sign::Bad, "the last reload failed"),
        ("/rules/domains", json!([]), Sign::Note, "0 rules in 0 domains"),
        ("/pools/0/s", json!(0.4), Sign::Note, "<bdi>web</bdi>: s 0.40"),
        ("/pools/0/braking", json!(true), Sign::Bad, "the brake is on: <bdi>web</bdi>"),
        ("/pools/0/u", Value::Null, Sign::Note, "no slots are known"),
        ("/pools", json!([]), Sign::Good, "the rules watch over no pool"),
        (
            "/missed",
            json!([{"client": "go", "reason": "timeout", "count": 3}]),
            Sign::Good,
            "3 since the start",
        ),
        ("/fleet", json!({"redis": false, "rules": 2}), Sign::Bad, "no Redis is set"),
        (
            "/fleet",
            json!({"redis": true, "needed": true, "linked": false, "rules": 2, "hosts": 3}),
            Sign::Bad,
            "Redis is not heard",
        ),
        (
            "/fleet",
            json!({"redis": true, "needed": true, "linked": true, "rules": 1, "hosts": 3, "alive": 3, "round_trip_us": 250}),
            Sign::Good,
            "3 of 3 hosts",
        ),
        ("/fleet", json!({"redis": true, "needed": false, "linked": false}), Sign::Good, "nothing to share"),
        ("/panics", json!(1), Sign::Bad, "1 panic while judging"),
        ("/connections/refused", json!({"max": 2}), Sign::Note, "2 not let in"),
        ("/memory/evictions", json!(5), Sign::Note, "5 keys dropped"),
        ("/warnings", json!(["look <here>"]), Sign::Note, "look &lt;here&gt;"),
    ];
    for (pointer, value, sign, words) in cases {
        let mut status = well();
        put(&mut status, pointer, value.clone());
        let health = Health::of(&status, &story);
        assert_eq!(health.sign(), *sign, "{pointer} {value}: {health:?}");
        let page = text(&status, &story, &ABOUT);
        let top = page.split("id=\"decisions\"").next().unwrap();
        assert!(top.contains(words), "{pointer} {value}: {words}: {top}");
        assert!(
            page.contains(&format!("<title>{} tidegate", sign.mark())),
            "{pointer}: the tab says it, too"
        );
    }
    let mut status = well();
    put(&mut status, "/mode", json!("disabled"));
    put(&mut status, "/rules/good", json!(false));
    put(&mut status, "/memory/evictions", json!(5));
    assert_eq!(Health::of(&status, &story).headline(), "2 things are wrong, 1 to know of");
    let shedding = Story { now: [9.0, 0.0, 0.0, 0.0, 2.5, 0.0], ..Story::default() };
    assert_eq!(Health::of(&well(), &shedding).sign(), Sign::Note);
    let alone = Story { sums: [9, 0, 0, 0, 0, 2], ..Story::default() };
    assert_eq!(Health::of(&well(), &alone).headline(), "1 thing is wrong");
}

#[test]
fn what_files_and_clients_say_stays_text() {
    let hostile = "</bdi></title><script>alert(1)</script><img src=x onerror=alert(1)>\" onload=\"x' &amp;\u{202e}\u{0}";
    let mut status = well();
    for pointer in
        ["/version", "/mode", "/counts/0/domain", "/counts/0/rule", "/counts/0/mode", "/pools/0/pool"]
    {
        put(&mut status, pointer, json!(hostile));
    }
    put(&mut status, "/pools/0/s", json!(0.5));
    put(&mut status, "/warnings", json!([hostile]));
    put(&mut status, "/missed", json!([{"reason": hostile, "count": 2}]));
    put(&mut status, "/fleet", json!({"redis": true, "linked": true, "needed": true, "host": hostile}));
    let said = json!({
        "rule": hostile, "mode": hostile, "by": hostile, "until": hostile, "key": hostile, "text": hostile, "at": hostile,
        "what": hostile, "fleet": true,
    });
    put(&mut status, "/switches", json!({"switches": [said], "blocks": [said], "changes": [said]}));
    let caller = json!({"domain": hostile, "rule": hostile, "digest": hostile, "text": hostile, "count": 1});
    let nameless = json!({"domain": hostile, "rule": hostile, "digest": hostile, "text": null, "count": 1});
    let callers = json!({"busiest": [caller], "refused": [nameless], "would_refuse": [caller]});
    status.as_object_mut().unwrap().insert("callers".to_owned(), callers);
    status["pools"][0]["chances"] = json!([[hostile, 0.5]]);
    let story = Story { sums: [0, 0, 0, 0, 0, 2], ..Story::default() };
    let page = text(&status, &story, &PageExtras { host: hostile, ..ABOUT });
    for harm in ["<script>", "<img", "\" onload", "</bdi></title>", "\u{0}"] {
        assert!(!page.contains(harm), "{harm}: {page}");
    }
    assert_eq!(page.matches("<script").count(), 1, "its own");
    assert_eq!(page.matches("&lt;script&gt;").count(), 37, "each is shown all the same");
}

#[test]
fn the_page_of_ten_thousand_rules_ends() {
    let mut status = well();
    let counts: Vec<Value> = (0..513_u32)
        .map(|number| json!({"domain": "d".repeat(300), "rule": format!("{number}-{}", "<".repeat(300)), "pass": number}))
        .collect();
    put(&mut status, "/rules/domains/0/rules", json!(10_000));
    let busy = RuleStory { steps: vec![[1e6, 2e6, 3e6]; 120], now: [1e6, 2e6, 3e6] };
    let name =
        |rule: &Value| format!("{}/{}", rule["domain"].as_str().unwrap(), rule["rule"].as_str().unwrap());
    let story = Story {
        steps: (0..120_u16).rev().map(|step| (f32::from(step) * 5.0, [1e6; 6])).collect(),
        seconds: 7.0,
        rules: counts.iter().map(|rule| (name(rule), busy.clone())).collect(),
        ..Story::default()
    };
    put(&mut status, "/counts", counts.into());
    let callers = vec![
        json!({"domain": "d", "rule": "<".repeat(300), "digest": "e".repeat(32), "text": "&".repeat(10_000)});
        20
    ];
    status
        .as_object_mut()
        .unwrap()
        .insert("callers".to_owned(), json!({"busiest": callers, "refused": callers}));
    let pools = vec![status["pools"][0].clone(); 100];
    put(&mut status, "/pools", pools.into());
    put(&mut status, "/warnings", vec![json!("w".repeat(200)); 1_000].into());
    let page = text(&status, &story, &ABOUT);
    assert!(page.len() < 256 * 1_024, "{}", page.len());
    assert!(page.contains("9\u{202f}960 of 10\u{202f}000 are not shown"), "it says what is left out");
    assert!(
        page.contains("92 more, and 0 without") && page.contains("and 988 more"),
        "of pools and warnings, too"
    );
}

#[test]
fn the_busiest_rule_comes_first_whether_it_passes_or_refuses() {
    let mut status = well();
    let rule =
        |name: &str, pass: u32| json!({"domain": "api", "rule": name, "mode": "enforce", "pass": pass});
    put(
        &mut status,
        "/counts",
        json!([rule("once", 900), rule("calm", 5), rule("idle", 0), rule("full", 7)]),
    );
    let told = |now| RuleStory { steps: Vec::new(), now };
    let rules = [("api/calm", [2.0, 0.0, 0.0]), ("api/full", [0.0, 3.0, 0.5])];
    let rules = rules.into_iter().map(|(name, now)| (name.to_owned(), told(now))).collect();
    let page = text(&status, &Story { rules, ..Story::default() }, &ABOUT);
    let places =
        ["full", "calm", "once", "idle"].map(|name| page.find(&format!("<bdi>{name}</bdi>")).unwrap());
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn a_daemon_of_which_nothing_is_known_has_a_page() {
    let page = text(&json!({}), &Story::default(), &ABOUT);
    assert!(page.ends_with("</html>\n") && page.contains("h&lt;1&gt;"), "{page}");
}

#[test]
fn nothing_but_its_own_parts_is_let_in() {
    let page = text(&well(), &Story::default(), &ABOUT);
    assert_eq!(page.matches("nonce=\"abc\"").count(), 2);
    assert_eq!(
        page.matches("http://").count(),
        page.matches("http://www.w3.org/2000/svg").count(),
        "no other place"
    );
    assert!(!page.contains("https://") && !page.contains(" style=") && !page.contains(" onclick="));
    let policy = policy("abc");
    assert!(policy.starts_with("default-src 'none'; script-src 'nonce-abc'; style-src 'nonce-abc'"));
    assert!(!policy.contains("unsafe") && !policy.contains('*'));
}
