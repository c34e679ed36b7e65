//! `tidegate test`, the real program: its output for failing tests and unreadable files, and its exit code.

use std::path::Path;
use std::process::Command;

use crate::problems::{folder, has};

/// Runs the command on one file of tests beside some rules; returns standard output, standard error, the exit
/// code.
fn test_with(text: &str, arguments: &[&str]) -> (String, String, i32) {
    let rules = "domain: api\npriorities: [high, low]\nprioritize: [{match: {plan: gold}, priority: high}]\n\
                 limits:\n- {name: per-user, key: [user], rate: 2/s}\n\
                 - {name: watched, key: [ip], rate: 1/s, mode: shadow}\n\
                 - {name: tokens, key: [org], unit: tokens, rate: 10/min}\n\
                 - {name: paced, key: [host], algorithm: leaky_bucket, rate: 1/s, queue: 1}\n\
                 deny: [{name: bots, match: {agent: \"bad bot\"}}]\n\
                 descriptors: [{key: to, rate_limit: {unit: day, requests_per_unit: 1}}]\n";
    let stricter = &*rules.replace("2/s", "1/s");
    let directory = folder(&[("tests.yaml", text), ("rules.yaml", rules), ("stricter.yaml", stricter)]);
    run(directory.path(), &[&["tests.yaml"], arguments].concat())
}

fn run(directory: &Path, arguments: &[&str]) -> (String, String, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.arg("test").args(arguments).current_dir(directory).output().unwrap();
    let [out, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (out, said, output.status.code().unwrap())
}

/// One test of these lines, under the rules above. Its first line is the fifth of the file.
fn of_lines(lines: &str) -> String {
    let lines: String = lines.lines().map(|line| format!("      {line}\n")).collect();
    format!("rules: rules.yaml\ntests:\n  - name: t\n    requests: |\n{lines}")
}

#[test]
fn accepts_every_request_and_expectation() {
    let text = of_lines(
        "0s x2                  user=u1                    allow  rule=per-user
0s                     user=u1                    limit  rule=per-user left=0 retry=500ms priority=low
# Nothing is charged.
1s x3     peek         user=u1                    allow  left=2
1s        cost:3       user=u1                    limit  retry=never
1s                     user=u1 plan=gold          allow  priority=high
1s        priority:high user=u1                   allow  priority=high

0:01      cost:tokens:8 org=o1                    allow  rule=tokens left=2
0:01      cost:tokens:3 cost:1 org=o1             limit  rule=tokens
0:01                   org=o1                     allow  rule=-
0:01 x2                ip=192.0.2.1               allow
0:01                   ip=192.0.2.1               allow  notes=shadow:watched
0:01                   ip=192.0.2.2               allow  notes=-
0:01                   agent=\"bad bot\"            deny   rule=bots
0:01                   host=h                     allow
0:01                   host=h                     wait   retry=1s
0:01      max_wait:1s  host=h2                    allow
0:01      max_wait:500ms  host=h2                 limit  retry=500ms
1d0:00                 to=a + to=b                allow  left=0
1970-01-02T00:00:01Z   to=b + from=x              limit  rule=to retry=23h59m59s",
    );
    let (out, said, code) = test_with(&text, &[]);
    assert_eq!((out.as_str(), code), ("1 test, 23 requests: all as expected\n", 0), "{said}");
}

/// The example of the page, unchanged.
#[test]
fn docs_example_passes() {
    let page = include_str!("../../docs/testing-rules.md");
    let example = page.split("```yaml\n").find(|block| block.starts_with("  - name: two exports at a time"));
    let example = example.unwrap().split("```").next().unwrap();
    let (out, said, code) = test_with(&format!("tests:\n{example}"), &[]);
    assert_eq!((out.as_str(), code), ("1 test, 9 requests: all as expected\n", 0), "{said}");
}

#[test]
fn accepts_every_op() {
    let text = of_lines(
        "0s          charge user=u1 amount:1
0s          user=u1                          allow  left=0
0s          charge user=u1 amount:requests:-1 idem:c
0s          charge user=u1 amount:requests:-1 idem:c
0s          user=u1                          allow  left=0
1s          idem:a user=u2                   allow  left=1
1s x2       idem:a user=u2                   allow  left=1
1s          session:s idem:a user=u2         allow  left=0
9s          reload stricter.yaml
9s          user=u9                          allow  left=0
10s x2      acquire id:w user=u5 session:s   allow
10s         renew w
10s x2      release w dropped
11s         hello s2
11s         acquire id:v session:s2 org=o    allow
11s         bye s2",
    )
    // Two at one time, each a second apart under the stricter rules.
    .replace("10s x2      acquire", "10s x2 every 1s acquire")
    .replace("10s x2      release", "11s x2 release");
    let (out, said, code) = test_with(&text, &[]);
    assert_eq!((out.as_str(), code), ("1 test, 19 requests: all as expected\n", 0), "{said}");

    let text = of_lines(
        "0s  release w
0s  renew w
0s  charge nobody=1 amount:1
0s  reload nowhere.yaml
0s  hello s pool:web slots:2
0s  hello s pool:web slots:3
0s  acquire id:w user=u1 shed
0s  release w
0s  release w
0s  idem:a user=u2 allow
0s  idem:a user=u3 allow",
    );
    let (out, _, code) = test_with(&text, &[]);
    let expected = [
        "5: t: no work of the name `w` is in progress",
        "6: t: no work of the name `w` is in progress",
        "7: t: no rule to charge",
        "8: t: the rules to reload have errors, the first is: ",
        "10: t: this session began with another pool or another number of slots",
        "11: t: expected shed, got allow by `per-user`",
        "13: t: no work of the name `w` is in progress",
        "15: t: the same `idem` was used for another request",
    ];
    let (printed, ..) = test_with(&text, &["--format", "json"]);
    let tally: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!([&tally["tests"], &tally["failed"], &tally["failures"][0]["line"]], [1, 1, 5]);
    assert_eq!(out.lines().count(), expected.len() + 1, "{out}");
    for (line, expected) in out.lines().zip(expected) {
        assert!(line.starts_with(&format!("tests.yaml:{expected}")), "{line}");
    }
    assert_eq!(code, 1);
}

#[test]
fn reports_mismatch_by_line() {
    let text = of_lines(
        "0s x4   user=u1  allow
0s       user=u2  allow  left=0 rule=tokens
0s       user=u1  limit  retry=1s
0s       user=u3  limit
0s       user=u4  allow  notes=shadow:watched priority=high",
    );
    let (out, _, code) = test_with(&text, &[]);
    let expected = "\
tests.yaml:5: t: expected allow, got limit by `per-user`, left=0, retry=500ms (request 3 of 4)
tests.yaml:6: t: expected left=0, got 1
tests.yaml:6: t: expected rule=tokens, got per-user
tests.yaml:7: t: expected retry=1s, got 500ms
tests.yaml:8: t: expected limit, got allow by `per-user`, left=1
tests.yaml:9: t: expected priority=high, got low
tests.yaml:9: t: expected notes=shadow:watched, got -
1 test, 8 requests: 1 failed
";
    assert_eq!((out.as_str(), code), (expected, 1));
}

#[test]
fn each_test_starts_empty_and_sorts_lines_by_time() {
    let one = "  - name: NAME\n    requests:\n      - 1s x2 user=u1 allow\n      - 0s x2 user=u1 allow\n";
    let text = format!("rules: rules.yaml\ntests:\n{}{}", one.replace("NAME", "a"), one.replace("NAME", "b"));
    let (out, said, code) = test_with(&text, &[]);
    assert_eq!((out.as_str(), code), ("2 tests, 8 requests: all as expected\n", 0), "{said}");
}

#[test]
fn tests_rules_given_as_argument() {
    let text = of_lines("0s x2  user=u1  allow")
        + "  - name: its own\n    rules: |\n      domain: x\n      limits: [{name: a, key: [], rate: 3/s}]\n    requests: |\n      0s x3 a=b allow\n";
    assert_eq!(test_with(&text, &[]).2, 0);
    let (out, _, code) = test_with(&text, &["--rules", "stricter.yaml"]);
    assert_eq!(code, 1);
    has(&out, &["tests.yaml:5: t: expected allow, got limit", "1 failed"]);
    let (_, said, code) = test_with(&text, &["--rules", "nowhere.yaml"]);
    assert!(code == 1 && said.contains("cannot read the rules: No such file or directory\n"), "{said}");
}

#[test]
fn reports_bad_file_by_span() {
    let table: &[(String, &str, &str)] = &[
        (of_lines("0s user=u1 allowed"), "tests.yaml:5:7", "`allowed` is not known here"),
        (of_lines("0s user=u1"), "tests.yaml:5:7", "no verdict on the line"),
        (of_lines("12:77 user=u1 allow"), "tests.yaml:5:7", "`12:77` is no time"),
        (of_lines("0s user=u1 allow\n\n  1 user=u1 allow"), "tests.yaml:7:9", "`1` is no time"),
        (of_lines("0s x0 user=u1 allow"), "tests.yaml:5:7", "no request on the line: x0"),
        (of_lines("0s x9999999 user=u1 allow"), "tests.yaml:5:7", "9999999 requests in a test"),
        (of_lines("0s x2 every user=u1 allow"), "tests.yaml:5:7", "`user=u1` is no span of time"),
        (of_lines("0s cost:x user=u1 allow"), "tests.yaml:5:7", "`x` is no number"),
        (of_lines("0s user=\"u1 allow"), "tests.yaml:5:7", "a quote that does not end"),
        (of_lines("0s user=u1 allow user=u2"), "tests.yaml:5:7", "`user=u2` is not known behind the verdict"),
        (of_lines("0s user=u1 limit retry=1ns"), "tests.yaml:5:7", "no whole number of microseconds"),
        (of_lines("0s user=u1 allow notes=shadows:x"), "tests.yaml:5:7", "`shadows:x` is no note"),
        (of_lines("0s release"), "tests.yaml:5:7", "nothing behind release"),
        (of_lines("0s release a good"), "tests.yaml:5:7", "`good` is no end of work"),
        (of_lines("0s renew a b"), "tests.yaml:5:7", "`b` is too much behind renew"),
        (of_lines("0s hello s pool:a/b"), "tests.yaml:5:7", "`a/b` is no name"),
        (of_lines("0s hello s slot:1"), "tests.yaml:5:7", "`slot:1` is not known here"),
        (of_lines("0s charge user=u1"), "tests.yaml:5:7", "a charge of 0"),
        (of_lines("0s charge user=u1 amount:--1"), "tests.yaml:5:7", "`-1` is no number"),
        (of_lines("0s id:a user=u1 allow"), "tests.yaml:5:7", "`id:a` is not known here"),
        (of_lines(""), "tests.yaml:4:15", "a test without requests"),
        (of_lines("0s a=1 allow").replace("name:", "nam:"), "tests.yaml:3:5", "did you mean `name`?"),
        (of_lines("0s a=1 allow").replace("rules: rules.yaml\n", ""), "tests.yaml:2:5", "a test without rules"),
        (of_lines("0s a=1 allow").replace("tests:", "domain: nope\ntests:"), "tests.yaml:4:5", "no domain `nope` in the rules"),
        (
            "- name: t\n  rules: |\n    domain: api\n    limits:\n    - {name: a, key: [], rate: 1/sec}\n  requests: |\n    0s a=1 allow\n".to_owned(),
            "tests.yaml:5:32",
            "unknown unit `sec`",
        ),
    ];
    for (text, place, message) in table {
        let (out, said, code) = test_with(text, &[]);
        assert!(code == 1 && said.contains(place) && said.contains(message), "{text}{out}{said}");
        assert!(out.contains("1 could not be read"), "{out}");
    }
}

#[test]
fn rejects_requests_above_socket_limits() {
    let long = "x".repeat(65);
    let nine = ["a=1"; 9].join(" + ");
    for (line, reason) in [
        (format!("0s {long}=1 allow"), "could not be asked"),
        (format!("0s {nine} allow"), "at most 8 descriptors"),
    ] {
        let (out, _, code) = test_with(&of_lines(&line), &[]);
        assert!(code == 1 && out.contains(reason), "{out}");
    }
}

#[test]
fn examples_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The worked examples of the literature explain their format.
    let files =
        ["config/tests/api.yaml", "tests/pure/replay/leases.yaml", "tests/pure/literature/examples.yaml"];
    for (file, tests_min) in files.into_iter().zip([1, 3, 21]) {
        let tests = std::fs::read_to_string(root.join(file)).unwrap().matches("- name: ").count();
        let (out, said, code) = run(root, &[file]);
        assert!(code == 0 && out.ends_with(": all as expected\n"), "{out}{said}");
        let first = format!("{tests} test{}, ", if tests == 1 { "" } else { "s" });
        assert!(tests >= tests_min && out.starts_with(&first), "{file}: {out}");
    }
    assert_eq!(run(root, &[]).2, 2, "without a file");
    let (_, said, code) = run(root, &["nowhere.yaml"]);
    assert!(code == 1 && said.contains("cannot read the file: No such file or directory\n"), "{said}");
}
