//! `tidegate explain`, the real program: the numbers of a request, and the exit code. `views/` has whole
//! outputs.

use std::fs;
use std::process::Command;

use crate::problems::{folder, has};

const RULES: &str = include_str!("views/requests/api.yaml");

/// Runs the command on the rules above; returns standard output, standard error, the exit code.
fn explain(arguments: &[&str]) -> (String, String, i32) {
    let directory = folder(&[
        ("api.yaml", RULES),
        ("users.csv", "user,rate\nann,7/s\n"),
        ("bad.yaml", "domain: bad\nlimits:\n- {name: a, rate: 1/s}\n"),
        ("work.yaml", "domain: work\nconcurrency:\n- {name: jobs, key: [job], max: 2}\n"),
    ]);
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("explain")
        .args(arguments)
        .arg("--rules")
        .arg(directory.path())
        .output()
        .unwrap();
    let clean = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap();
        text.replace(&*directory.path().to_string_lossy(), "rules")
    };
    (clean(output.stdout), clean(output.stderr), output.status.code().unwrap())
}

#[test]
fn explains_source_of_each_number() {
    let table = [
        ("api user=ANN plan=gold", "token_bucket 7/s, burst 7", "by the row of this key in users.csv"),
        ("api user=bob plan=house", "unlimited", "by override 2 (line 12), it matches {plan: house}"),
        ("api user=bob", "token_bucket 100/s, burst 100", "the rule's own: no override matches"),
        ("api org=o --cost tokens=11", "token_bucket 10/min", "11 tokens, more than the limit of 10"),
        ("api org=o", "no        tokens", "it counts tokens, and the cost names none (--cost tokens=N)"),
        ("work job=j --cost tokens=1", "2 at once", "key       job=j"),
        ("api user=bob --priority get", "priority  get", "named by the request"),
        ("api --priority gett", "priority  get", "`gett` is none of the domain's, and no entry of"),
    ];
    for (arguments, numbers, by) in table {
        let (text, said, code) = explain(&arguments.split(' ').collect::<Vec<_>>());
        assert!(code == 0 && text.contains(numbers) && text.contains(by), "{arguments}: {text}{said}");
    }
}

#[test]
fn deciding_list_ends_explanation() {
    let (text, _, code) = explain(&["api", "path=/readyz", "agent=Bot", "user=ann"]);
    assert_eq!(code, 0);
    has(&text, &["exempt    probes (rules/api.yaml:5:17): yes, it matches {path: [/healthz, /readyz]}"]);
    assert!(text.ends_with("the request passes by probes; no rule is checked\n"), "{text}");
    let (text, ..) = explain(&["api", "agent=GPTBot"]);
    assert!(text.ends_with("the request is refused by bots; no rule is checked\n"), "{text}");
}

#[test]
fn explains_each_descriptor_of_a_tree() {
    let (text, _, code) =
        explain(&["api", "org=small", "--descriptor", "org=big", "--descriptor", "a=1,b=2"]);
    assert_eq!(code, 0);
    let replaced =
        "descriptor 1 (org=small): would lead to org, replaced by the limit of another descriptor\n";
    has(&text, &[&format!("in tree   {replaced}"), "in tree   descriptor 2 (org=big): leads to org_big\n"]);
    has(&text, &["in tree   descriptor 3 (a=1 b=2): no descriptor of this depth limits it\n"]);
    has(&text, &["counts    org_big (rules/api.yaml:19:10): fixed_window 9/h"]);
    let (text, ..) = explain(&["api", "org=o1", "--descriptor", "org=o1", "--cost", "2"]);
    // Two equal descriptors hit their node twice.
    assert!(text.contains("key       org=o1\n          cost      4 requests\n"), "{text}");
}

#[test]
fn reports_requests_it_cannot_explain() {
    let table: [(&[&str], i32, &str); 6] = [
        (&["nope", "user=u1"], 1, "no domain `nope` in rules: there is `api`"),
        (&["bad", "user=u1"], 1, "the rules of the domain `bad` have errors: it has no limits"),
        (&["bad", "user=u1"], 1, "a rule needs `key`"),
        (&["api", "user"], 2, "`user` is not KEY=VALUE"),
        (&["api", "--cost", "tokens=x"], 2, "`x` is not a number"),
        (&["api", "a/b=1"], 2, "name"),
    ];
    for (arguments, expected, message) in table {
        let (_, said, code) = explain(arguments);
        assert!(code == expected && said.contains(message), "{arguments:?}: {code} {said}");
    }
}

#[test]
fn docs_show_printed_explanation() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/testing-rules.md")).unwrap();
    let shown = page.split("```console\n").skip(1).map(|block| block.split("```").next().unwrap());
    let mut compared = 0;
    for (command, output) in shown.filter_map(|block| block.split_once('\n')) {
        // Truncated output, or output for other rules, is left to other tests.
        let whole = output.strip_suffix("…\n");
        let Some(arguments) = command.strip_prefix("$ tidegate ").filter(|line| !line.contains("stricter"))
        else {
            continue;
        };
        let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let printed = program.args(arguments.split(' ')).current_dir(root).output().unwrap().stdout;
        let printed = String::from_utf8(printed).unwrap();
        match whole {
            Some(start) => assert!(printed.starts_with(start), "{printed}"),
            None => assert_eq!(printed, output),
        }
        compared += 1;
    }
    assert_eq!(compared, 3);
}
