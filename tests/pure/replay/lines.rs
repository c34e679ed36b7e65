//! Bounds of a trace's lines, and the seed; `console/replay.txt` has replays, and `diagnostics/traces.txt` bad lines.

use super::support::{Files, RULES, hit, output_text, replay};

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
fn seed_changes_no_verdict() {
    let line = |n: u32| hit(&format!("{}.{:03}", n / 100, n % 100 * 10), &format!("u{}", n * 7 % 13));
    let trace: String = (0..2_000).map(line).collect();
    let [without, with] = [&["--decisions", "-"][..], &["--decisions", "-", "--seed", "42"]]
        .map(|arguments| replay(RULES, &trace, arguments));
    assert!(without.status.success() && without.stdout == with.stdout);
}
