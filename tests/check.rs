//! `tidegate check`: what it prints and how it ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::cli::check::{Args, Color, Format, run};

fn check(path: &Path, format: Format) -> (String, bool) {
    let args = Args { path: Some(path.to_owned()), format, color: Color::Never, ..Args::default() };
    let mut out = Vec::new();
    let code = run(&args, &mut out).unwrap();
    // Only printing it tells one code from another.
    let fine = format!("{code:?}") == format!("{:?}", std::process::ExitCode::SUCCESS);
    let text = String::from_utf8(out).unwrap();
    (text.replace(&*path.parent().unwrap().to_string_lossy(), "."), fine)
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    (directory, path)
}

const GOOD: &str = "domain: api\nlimits:\n- {name: per-user, key: [user], rate: 100/s, burst: 500}\n\
                    - {name: all, key: [], rate: 3/s, mode: shadow}\n\
                    - {name: login, key: [ip, account], rate: 5/15min, mode: disabled}\n\
                    - {name: odd, key: [ip], rate: 1009/s}\n";

#[test]
fn a_good_file_says_what_each_rule_admits() {
    let (_directory, path) = file("rules.yaml", GOOD);
    let (text, fine) = check(&path, Format::Text);
    assert!(fine, "warnings are no failure");
    let expected = "\
warning: the rate 1009/s is not exact: it is kept slow by one part in 264462809
 --> ./rules.yaml:6:32
  |
6 | - {name: odd, key: [ip], rate: 1009/s}
  |                                ^^^^^^
  |
  = help: exact are numbers up to 128 and those that divide the period evenly

api/per-user: 100/s, burst 500: at most 500 + 100 × seconds in any span for each user, on N hosts N times that; exact in ticks of 1 ns
api/all (shadow: refuses nothing): 3/s, burst 3: at most 3 + 3 × seconds in any span for all together, on N hosts N times that; exact in ticks of 1/3 ns
api/login (disabled: not judged): 5/15min, burst 5: at most 5 + 5 × (time ÷ 15min) in any span for each ip and account, on N hosts N times that; exact in ticks of 1 ns
api/odd: 1009/s, burst 1009: at most 1009 + 1009 × seconds in any span for each ip, on N hosts N times that; kept slow by one part in 264462809

./rules.yaml: 1 domain, 4 rules; 0 errors, 1 warning
";
    assert_eq!(text, expected);
}

#[test]
fn a_bad_file_shows_every_error_with_its_line() {
    let (_directory, path) = file(
        "rules.yaml",
        "domain: api\nlimits:\n  - name: per-user\n    key: [user]\n    rate: 100/sec\n    brust: 500\n  - {name: per-user, key: [], rate: 1/s}\n",
    );
    let (text, fine) = check(&path, Format::Text);
    assert!(!fine);
    let expected = "\
error: unknown unit `sec` in the rate `100/sec`
 --> ./rules.yaml:5:11
  |
5 |     rate: 100/sec
  |           ^^^^^^^
  |
  = help: write 100/s

error: unknown field `brust` in a rule
 --> ./rules.yaml:6:5
  |
6 |     brust: 500
  |     ^^^^^
  |
  = help: did you mean `burst`?

error: a second rule named `per-user` in the domain `api`
 --> ./rules.yaml:7:12
  |
7 |   - {name: per-user, key: [], rate: 1/s}
  |            ^^^^^^^^
  |
  = help: give it another name; the first is at ./rules.yaml:3:11

domain api: left out for its errors; the daemon starts without limits for it
./rules.yaml: 0 domains, 0 rules; 3 errors, 0 warnings
";
    assert_eq!(text, expected);
}

#[test]
fn json_says_the_same_to_programs() {
    let (_directory, path) = file("rules.yaml", GOOD);
    let (text, fine) = check(&path, Format::Json);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(fine);
    assert_eq!((&json["errors"], &json["warnings"]), (&0.into(), &1.into()));
    let problem = &json["problems"][0];
    assert_eq!(
        (&problem["severity"], &problem["line"], &problem["column"]),
        (&"warning".into(), &6.into(), &32.into())
    );
    let rule = &json["domains"][0]["rules"][1];
    assert_eq!((&rule["name"], &rule["rate"], &rule["burst"]), (&"all".into(), &"3/s".into(), &3.into()));
    assert_eq!((&rule["exact"], &rule["ticks_per_nanosecond"]), (&true.into(), &3.into()));
    assert_eq!(rule["bound"], "at most 3 + 3 × seconds in any span");

    let (_directory, path) = file("rules.yaml", "domain: api\nlimits:\n- {name: a, rate: 1/s}\n");
    let (text, fine) = check(&path, Format::Json);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(!fine);
    assert_eq!((&json["errors"], &json["failed"][0]), (&1.into(), &"api".into()));
    assert_eq!(json["problems"][0]["line_text"], "- {name: a, rate: 1/s}");
}

#[test]
fn a_settings_file_brings_its_rules_with_it() {
    let (directory, path) = file("tidegate.yaml", "rules: rules\nstate: /var/lib/tidegate\n");
    fs::create_dir(directory.path().join("rules")).unwrap();
    fs::write(directory.path().join("rules/api.yaml"), GOOD).unwrap();
    let (text, fine) = check(&path, Format::Text);
    assert!(fine);
    assert!(text.contains("`state` is not built yet"), "{text}");
    assert!(text.ends_with("./tidegate.yaml, ./rules: 1 domain, 4 rules; 0 errors, 2 warnings\n"), "{text}");

    let (_directory, path) = file("tidegate.yaml", "threads: none\n");
    let (text, fine) = check(&path, Format::Text);
    assert!(!fine && text.contains("tidegate.yaml:1:10"), "{text}");
}

#[test]
fn a_path_that_is_not_there_is_an_error() {
    let (directory, _) = file("unused", "");
    let (text, fine) = check(&directory.path().join("rules"), Format::Text);
    assert!(!fine && text.contains("cannot read the rules: No such file"), "{text}");
}
