//! A bad line stops the trace with its number, and says what is wrong and how to mend it.

use super::support::{RULES, replay};

#[test]
fn a_bad_line_stops_with_its_number() {
    let good = r#"{"t": 1, "domain": "api", "descriptors": [["user", "u1"]], "id": 1}"#;
    let table = [
        (r#"{"t": 0.5, "domain": "api", "descriptors": []}"#, "line 3: `t` is 0.5, before the line above"),
        (r#"{"t": 1.0000000001, "domain": "api", "descriptors": []}"#, "line 3: `t` is `1.0000000001`"),
        (r#"{"t": "1", "domain": "api", "descriptors": []}"#, "line 3: `t` is `\"1\"`"),
        (r#"{"domain": "api", "descriptors": []}"#, "line 3: not a line of a trace: missing field `t`"),
        ("nonsense", "line 3: not a line of a trace"),
        (r#"{"t": 1, "descriptors": []}"#, "line 3: hit needs `domain`"),
        (r#"{"t": 1, "domain": "api"}"#, "line 3: hit needs `descriptors`"),
        (r#"{"t": 1, "op": "acquire", "domain": "api", "descriptors": []}"#, "line 3: acquire needs `id`"),
        (r#"{"t": 1, "domain": "api", "descriptors": [], "id": 1}"#, "line 3: id `1` was used before"),
        (r#"{"t": 1, "domain": "a:b", "descriptors": []}"#, "line 3: domain must be a name"),
        (r#"{"t": 1, "domain": "api", "descriptors": [["user"]]}"#, "line 3: a descriptor is a flat list"),
        (r#"{"t": 1, "op": "hti", "domain": "api", "descriptors": []}"#, "line 3: unknown op `hti`"),
    ];
    check(good, &table);
}

/// Each bad line stands third, behind a good one and an empty one.
fn check(good: &str, table: &[(&str, &str)]) {
    for (bad, expected) in table {
        // An empty line counts and is passed over.
        let output = replay(RULES, &format!("{good}\n\n{bad}\n{good}\n"), &[]);
        let bad: String = bad.chars().take(120).collect();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(expected), "{bad}: {said}");
        assert_eq!(output.status.code(), Some(1), "{bad}");
        // What was played before it is summed up.
        let summed = ["api/per-user", "1", "0", "0", "1"];
        assert!(said.lines().any(|line| line.split_whitespace().eq(summed)), "{said}");
    }
}

#[test]
fn every_op_is_checked_for_what_it_needs() {
    let good = r#"{"t": 1, "domain": "api", "descriptors": [["user", "u1"]], "id": 1}"#;
    let table = [
        (r#"{"t": 1, "op": "release"}"#, "line 3: release needs `id`"),
        (
            r#"{"t": 1, "op": "release", "id": 1, "outcome": "fine"}"#,
            r#"line 3: `outcome` must be "ok", "error" or "dropped""#,
        ),
        (r#"{"t": 1, "op": "renew"}"#, "line 3: renew needs `id`"),
        (r#"{"t": 1, "op": "signal", "name": "lag", "permille": 1}"#, "line 3: signal needs `pool`"),
        (r#"{"t": 1, "op": "signal", "pool": "web", "permille": 1}"#, "line 3: signal needs `name`"),
        (
            r#"{"t": 1, "op": "signal", "pool": "web", "name": "lag"}"#,
            "line 3: signal needs `permille`, from 0 to 1000",
        ),
        (
            r#"{"t": 1, "op": "signal", "pool": "web", "name": "lag", "permille": 1001}"#,
            "line 3: `permille` must be an integer from 0 to 1000",
        ),
        (
            r#"{"t": 1, "op": "signal", "pool": "a/b", "name": "lag", "permille": 1}"#,
            "line 3: `pool` must be a name: 1 to 64 bytes",
        ),
        (r#"{"t": 1, "op": "hello", "pool": "web"}"#, "line 3: hello needs `session`"),
        (r#"{"t": 1, "op": "hello", "session": ""}"#, "line 3: `session` must be a name"),
        (r#"{"t": 1, "op": "hello", "session": "w", "pool": ":"}"#, "line 3: `pool` must be a name"),
        (
            r#"{"t": 1, "op": "hello", "session": "w", "slots": -1}"#,
            "line 3: not a line of a trace: invalid value",
        ),
        (r#"{"t": 1, "op": "bye"}"#, "line 3: bye needs `session`"),
        (r#"{"t": 1, "op": "reload"}"#, "line 3: reload needs `rules`, a directory or file beside the trace"),
        (r#"{"t": 1, "op": "h\nt"}"#, "line 3: unknown op `h\\nt`: write hit, peek, acquire, release, renew"),
    ];
    check(good, &table);
}

#[test]
fn a_charge_is_checked_like_a_request() {
    let good = r#"{"t": 1, "domain": "api", "descriptors": [["user", "u1"]], "id": 1}"#;
    let charge = |rest: &str| format!(r#"{{"t": 1, "op": "charge"{rest}}}"#);
    let with = |amount: &str| charge(&format!(r#", "domain": "api", "descriptors": [], "amount": {amount}"#));
    let table = [
        (charge(r#", "descriptors": [], "amount": 1"#), "charge needs `domain`"),
        (charge(r#", "domain": "api", "amount": 1"#), "charge needs `descriptors`, such as"),
        (charge(r#", "domain": "api", "descriptors": []"#), "charge needs `amount`, such as 3, -1 or"),
        (with("1.5"), "not a line of a trace: invalid type: floating point `1.5`, expected an integer"),
        (with("\"3\""), "not a line of a trace: invalid type: string \"3\", expected an integer"),
        (with(r#"{"tokens": "1"}"#), "not a line of a trace: invalid number"),
        (with(r#"{"tokens": 1, "tokens": 2}"#), "a map has a key twice"),
        (with(r#"{"to/kens": 1}"#), "amount must be an integer"),
        (charge(r#", "domain": "a/b", "descriptors": [], "amount": 1"#), "domain must be a name"),
        (charge(r#", "id": 1, "domain": "api", "descriptors": [], "amount": 1"#), "id `1` was used before"),
    ];
    let table: Vec<_> = table.iter().map(|(bad, expected)| (bad.as_str(), *expected)).collect();
    check(good, &table);
}

#[test]
fn the_bounds_of_the_socket_hold() {
    let good = r#"{"t": 1, "domain": "api", "descriptors": [["user", "u1"]], "id": 1}"#;
    let hit = |rest: &str| format!(r#"{{"t": 1, "domain": "api", "descriptors": {rest}}}"#);
    let pairs = |count: usize| format!("[{}]", vec![r#""user", "u""#; count].join(", "));
    let value = |bytes: usize| format!(r#"["user", "{}"]"#, "v".repeat(bytes));
    let eight = vec![pairs(16); 8].join(", ");
    let table = [
        (
            hit(&format!("[{}]", value(1_025))),
            "an attribute value in descriptors must be a text of at most 1024 bytes",
        ),
        (hit(&format!("[{}]", pairs(17))), "a descriptor is a flat list"),
        (hit(&format!("[{}]", ["[]"; 9].join(", "))), "a descriptor is a flat list"),
        (hit("[[\"us:er\", \"u\"]]"), "an attribute key in descriptors must be a name"),
        (
            hit("[\"user\", \"u\"]"),
            "not a line of a trace: invalid type: string \"user\", expected a list of texts",
        ),
        (hit(&format!("[[{}]]", vec![&value(1_020)[1..1_031]; 16].join(", "))), "16384"),
        (hit(r#"[], "cost": -1"#), "`cost` must be 0 or more"),
        (hit(r#"[], "cost": {"tokens": -1}"#), "`cost` must be 0 or more"),
        (hit(r#"[], "cost": {"a": 1, "a": 1}"#), "a map has a key twice"),
        (hit(r#"[], "cost": {"": 1}"#), "cost must be an unsigned integer"),
        (hit(r#"[], "idem": """#), "options.idem must be a text or bytes"),
        (hit(r#"[], "of": """#), "options.of must be"),
        ("x".repeat(1 << 20), "longer than 1024 KiB"),
        ("{\"t\": 1, \"op\": \"\u{7f}\"}".into(), "unknown op"),
    ];
    let table: Vec<_> = table.iter().map(|(bad, expected)| (bad.as_str(), *expected)).collect();
    check(good, &table);
    // At the bounds themselves.
    for good in [
        hit(&format!("[{eight}]")),
        hit(&format!("[{}]", value(1_024))),
        hit(r#"[], "cost": {"größe": 4294967295, "b": 0, "c": 1}, "priority": "wichtig"#)
            .replace("wichtig", "größte\""),
        hit(&format!("[[{}]]", vec![&value(1_020)[1..1_031]; 15].join(", "))),
    ] {
        let output = replay(RULES, &good, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn bytes_that_are_no_text_are_a_bad_line() {
    let files = super::support::Files::new(&[("api.yaml", RULES)]);
    std::fs::write(files.path("trace.jsonl"), b"{\"t\": 1, \"domain\": \"\xff\", \"descriptors\": []}\n")
        .unwrap();
    let output = files.replay(&["trace.jsonl", "--rules", "api.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let said = super::support::said(&output);
    assert!(said.contains("line 1: not a line of a trace: invalid unicode code point (column "), "{said}");
}
