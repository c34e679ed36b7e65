//! The difference of two rule versions is bounded and safe to log. `diagnostics/changes.txt` has its texts.

use tidegate::rules::{changes, read_text};

const BEFORE: &str = "\
- {name: a, key: [user], rate: 100/s}
- {name: b, match: {method: POST, path: \"/x*\"}, key: [], rate: 20/h, burst: 5, help: see}
";

#[test]
fn escapes_and_cuts_file_text_in_log() {
    let long = format!("[{}]", (0..200).map(|n| format!("m{n}")).collect::<Vec<_>>().join(", "));
    let lines = |value: &str| {
        let [one, other] = ["POST", value].map(|value| BEFORE.replace("POST", value));
        let read = |limits| read_text("t.yaml", &format!("domain: api\nlimits:\n{limits}")).domains;
        changes(&read(one), &read(other))
    };
    assert!(lines(r#""a\nb\e[31m""#)[0].contains(r"{method: a\nb\u{1b}[31m, path"));
    let cut = &lines(&long)[0];
    assert!(cut.contains("m10, ") && cut.ends_with('…') && cut.len() < 400, "{cut}");
    let names = (0..1_000).map(|n| format!("- {{name: n{n}, match: {{p: p{n}}}, key: [], rate: 1/s}}\n"));
    let many = read_text("t.yaml", &format!("domain: api\nlimits:\n{}", names.collect::<String>())).domains;
    let none = read_text("t.yaml", "domain: api\nlimits: []").domains;
    let lines = changes(&none, &many);
    assert_eq!((lines.len(), lines[200].as_str()), (201, "and 800 more changes"));
}
