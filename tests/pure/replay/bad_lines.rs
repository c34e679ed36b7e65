//! A bad line stops the trace with its number, the fault and its help; `diagnostics/traces.txt` has all of
//! them.

use super::support::{Files, RULES, decisions, output_text, replay};

#[test]
fn stops_at_bad_line_with_its_number() {
    check(&[
        (r#"{"t": 0.5, "domain": "api", "descriptors": []}"#, "line 3: `t` is 0.5, before the line above"),
        ("nonsense", "line 3: not a line of a trace"),
    ]);
}

/// Each bad line is third, after a good one and an empty one.
fn check(table: &[(&str, &str)]) {
    let good = r#"{"t": 1, "domain": "api", "descriptors": [["user", "u1"]], "id": 1}"#;
    for (bad, expected) in table {
        // An empty line counts and is skipped.
        let output = replay(RULES, &format!("{good}\n\n{bad}\n{good}\n"), &[]);
        let bad: String = bad.chars().take(120).collect();
        let output_text = output_text(&output);
        assert!(output_text.contains(expected), "{bad}: {output_text}");
        assert_eq!(output.status.code(), Some(1), "{bad}");
        // The lines before it are summed up.
        let summed = ["api/per-user", "1", "0", "0", "1"];
        assert!(output_text.lines().any(|line| line.split_whitespace().eq(summed)), "{output_text}");
    }
}

#[test]
fn enforces_bounds_of_the_socket() {
    let hit = |rest: &str| format!(r#"{{"t": 1, "domain": "api", "descriptors": {rest}}}"#);
    let pairs = |count: usize| format!("[{}]", vec![r#""user", "u""#; count].join(", "));
    let value = |bytes: usize| format!(r#"["user", "{}"]"#, "v".repeat(bytes));
    let many = |count: usize| hit(&format!("[[{}]]", vec![&value(1_020)[1..1_031]; count].join(", ")));
    let longest = "an attribute value in descriptors must be a text of at most 1024 bytes";
    check(&[
        (&hit(&format!("[{}]", value(1_025))), longest),
        (&hit(&format!("[{}]", pairs(17))), "a descriptor is a flat list"),
        (&hit(&format!("[{}]", ["[]"; 9].join(", "))), "a descriptor is a flat list"),
        (&many(16), "16384"),
        (&"x".repeat(1 << 20), "longer than 1024 KiB"),
    ]);
    // At the bounds themselves.
    for good in [
        hit(&format!("[{}]", vec![pairs(16); 8].join(", "))),
        hit(&format!("[{}]", value(1_024))),
        hit(r#"[], "cost": {"größe": 4294967295, "b": 0, "c": 1}, "priority": "größte""#),
        many(15),
    ] {
        let output = replay(RULES, &good, &[]);
        assert!(output.status.success(), "{}", output_text(&output));
    }
}

#[test]
fn rejects_line_with_invalid_utf8() {
    let files = Files::new(&[("api.yaml", RULES)]);
    std::fs::write(files.path("trace.jsonl"), b"{\"t\": 1, \"domain\": \"\xff\", \"descriptors\": []}\n")
        .unwrap();
    let output = files.replay(&["trace.jsonl", "--rules", "api.yaml"]);
    let words = "line 1: not a line of a trace: invalid unicode code point (column ";
    assert_eq!((output.status.code(), output_text(&output).contains(words)), (Some(1), true), "{output:?}");
}

#[test]
fn reads_seconds_of_at_most_nine_places() {
    let line = |t: &str| format!(r#"{{"t": {t}, "domain": "api", "descriptors": [["user", "u1"]]}}"#);
    for t in ["0", "0.5", "1.000000001", "0.1", "1732186800.123456789", "18446744073.709551615"] {
        let output = replay(RULES, &line(t), &[]);
        assert!(output.status.success(), "{t}: {}", output_text(&output));
    }
    for t in ["1.0000000001", "1e3", "-1", "\"1\"", "null", "18446744073.709551616"] {
        let output = output_text(&replay(RULES, &line(t), &[]));
        assert!(output.contains(&format!("`t` is `{t}`: write seconds from 0")), "{t}: {output}");
    }
    // A float would round these to the same time.
    let rules = "domain: api\nlimits:\n- {name: per-user, key: [user], rate: 1/s, burst: 1}\n";
    let times = ["1732186800.123456789", "1732186801.123456788", "1732186801.123456789"];
    let decisions = decisions(rules, &times.map(line).join("\n"));
    let verdicts: Vec<_> = decisions.iter().map(|decision| &decision["verdict"]).collect();
    assert_eq!(verdicts, ["allow", "limit", "allow"]);
}
