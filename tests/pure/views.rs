//! The output of `tidegate check` and `tidegate explain` for rules, the real program: text and JSON of the
//! same view.
//!
//! `views/` has a directory for each set of rules, with the output. `UPDATE_DOCS=1 cargo test --test pure
//! views` rewrites it.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The directory, the file with the output, the exit code, and the arguments.
const VIEWS: [(&str, &str, i32, &str); 17] = [
    ("good", "check.txt", 0, "check rules.yaml"),
    ("bad", "check.txt", 1, "check rules.yaml"),
    ("bad", "check.json", 1, "check rules.yaml --format json"),
    ("everything", "check.txt", 0, "check rules.yaml --hosts 5"),
    ("everything", "check.json", 0, "check rules.yaml --format json"),
    ("pools", "check.txt", 0, "check rules.yaml --hosts 5"),
    ("pools", "check.json", 0, "check rules.yaml --format json"),
    ("pools", "granted.txt", 0, "explain api job=export org=o1 plan=gold --rules rules.yaml"),
    ("pools", "granted.json", 0, "explain api org=o1 --format json --rules rules.yaml"),
    ("pools", "denied.json", 0, "explain api agent=bot --format json --rules rules.yaml"),
    ("fleet", "check.txt", 0, "check rules.yaml --hosts 50"),
    ("fleet", "check.json", 0, "check rules.yaml --hosts 50 --format json"),
    ("fleet", "explain.txt", 0, "explain api tenant=t1 --rules rules.yaml"),
    ("fleet", "explain.json", 0, "explain api tenant=t1 --format json --rules rules.yaml"),
    ("region", "check.txt", 0, "check tidegate.yaml"),
    (
        "requests",
        "judged.txt",
        0,
        "explain api user=Zoe method=POST path=/v2/x plan=silver card=c1 --rules .",
    ),
    ("requests", "judged.json", 0, "explain api user=ann method=PUT path=/v1/x --format json --rules ."),
];

#[test]
fn prints_each_view_as_written() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pure/views");
    let mut differing = String::new();
    for (directory, file, expected_code, arguments) in VIEWS {
        let directory = root.join(directory);
        let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = program.args(arguments.split(' ')).current_dir(&directory).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(expected_code), "{arguments}, {}\n{said}", directory.display());
        let mut printed = String::from_utf8(output.stdout).unwrap();
        if file.ends_with(".json") {
            let rule_depth = if arguments.starts_with("check") { 5 } else { 3 };
            printed = spread(&serde_json::from_str(&printed).unwrap(), 0, rule_depth) + "\n";
        }
        let path = directory.join(file);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, &printed).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        if let Some(line) = first_difference(&written, &printed) {
            write!(differing, "{}, line {line}; tidegate {arguments}\n{printed}\n", path.display()).unwrap();
        }
    }
    assert!(differing.is_empty(), "{differing}");
}

/// JSON with each member of a rule on its own line.
fn spread(value: &Value, depth: usize, rule_depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let (open, close, members): (_, _, Vec<String>) = match value {
        Value::Object(members) if depth < rule_depth => {
            let member =
                |(key, value)| format!("{indent}  {key:?}: {}", spread(value, depth + 1, rule_depth));
            ('{', '}', members.iter().map(member).collect())
        }
        Value::Array(members) if members.iter().any(Value::is_object) && depth < rule_depth => (
            '[',
            ']',
            members
                .iter()
                .map(|value| format!("{indent}  {}", spread(value, depth + 1, rule_depth)))
                .collect(),
        ),
        _ => return value.to_string(),
    };
    format!("{open}\n{}\n{indent}{close}", members.join(",\n"))
}

fn first_difference(written: &str, printed: &str) -> Option<usize> {
    let same = written.lines().zip(printed.lines()).take_while(|(one, other)| one == other).count();
    (written != printed).then_some(same + 1)
}
