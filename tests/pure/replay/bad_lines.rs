//! A bad line stops the trace with its number, the fault and its help; `diagnostics/traces.txt` has all of
//! them.

use super::support::{RULES, replay};

#[test]
fn stops_at_bad_line_with_its_number() {
    let good = r#"{"t": 1, "domain": "api", "descriptors": [["user", "u1"]], "id": 1}"#;
    let table = [
        (r#"{"t": 0.5, "domain": "api", "descriptors": []}"#, "line 3: `t` is 0.5, before the line above"),
        ("nonsense", "line 3: not a line of a trace"),
    ];
    check(good, &table);
}

/// Each bad line is third, after a good one and an empty one.
fn check(good: &str, table: &[(&str, &str)]) {
    for (bad, expected) in table {
        // An empty line counts and is skipped.
        let output = replay(RULES, &format!("{good}\n\n{bad}\n{good}\n"), &[]);
        let bad: String = bad.chars().take(120).collect();
        let output_text = String::from_utf8(output.stderr).unwrap();
        assert!(output_text.contains(expected), "{bad}: {output_text}");
        assert_eq!(output.status.code(), Some(1), "{bad}");
        // The lines before it are summed up.
        let summed = ["api/per-user", "1", "0", "0", "1"];
        assert!(output_text.lines().any(|line| line.split_whitespace().eq(summed)), "{output_text}");
    }
}

#[test]
fn enforces_bounds_of_the_socket() {
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
fn rejects_line_with_invalid_utf8() {
    let files = super::support::Files::new(&[("api.yaml", RULES)]);
    std::fs::write(files.path("trace.jsonl"), b"{\"t\": 1, \"domain\": \"\xff\", \"descriptors\": []}\n")
        .unwrap();
    let output = files.replay(&["trace.jsonl", "--rules", "api.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let output_text = super::support::output_text(&output);
    assert!(
        output_text.contains("line 1: not a line of a trace: invalid unicode code point (column "),
        "{output_text}"
    );
}
