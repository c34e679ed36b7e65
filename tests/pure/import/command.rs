//! The command: what it writes, what it says, and that it writes all or nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use tidegate::rules::read;

const TREE: &str = "\
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: to_number
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: plan
    value: 'trial*'
    shadow_mode: true
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: plan
    rate_limit: {unit: week, requests_per_unit: 1000}
  - key: plan
    value: internal
    rate_limit: {unlimited: true}
";

const RULES: &str = "\
# Made by `tidegate import ratelimit`; each entry says where it comes from.
# They decide as the tree did for requests that send, of each of these lists of which they have all attributes, one
# descriptor in this order, each attribute with one value that is not empty, and no other that the tree has limits for:
#   [message_type, to_number]
#   [plan]
#   [to_number]
domain: messaging
defaults: {scope: host}
limits:
  # old/messaging.yaml:6
  - name: message_type_marketing.to_number
    match: {message_type: marketing}
    key: [to_number]
    algorithm: fixed_window
    rate: 5/day
    refused: counted

  # old/messaging.yaml:8
  - name: to_number
    key: [to_number]
    algorithm: fixed_window
    rate: 100/day
    refused: counted

  # old/messaging.yaml:10
  - name: 'plan_trial*'
    match: {plan: 'trial*'}
    key: []
    algorithm: fixed_window
    rate: 10/h
    refused: counted
    mode: shadow
";

const STAYS: &str = "\
# Made by `tidegate import ratelimit`; each entry says where it comes from.
# What stays a tree: limits for which there is no rule that does the same, and the nodes that lead to them or past them.
domain: messaging
defaults: {scope: host}
descriptors:
  # old/messaging.yaml:3
  - key: message_type
    value: marketing
  # old/messaging.yaml:8
  - key: to_number
  # old/messaging.yaml:10
  - key: plan
    value: 'trial*'
    share_threshold: true
  # old/messaging.yaml:15: its week turns on Thursday: that of `fixed_window` on Monday
  - key: plan
    rate_limit: {unit: week, requests_per_unit: 1000}
  # old/messaging.yaml:17
  - key: plan
    value: internal
";

const SAID: &str = "\
messaging: 3 rules, 1 limit stays a tree
  old/messaging.yaml:15:10: plan stays: its week turns on Thursday: that of `fixed_window` on Monday
  the same is decided of requests that send a descriptor of each list that they have all attributes of,
  each attribute with one value that is not empty, and no other descriptor with a limit:
    [message_type, to_number]
    [plan]
    [to_number]
";

/// A directory with files of descriptors in `old`.
fn place(files: &[(&str, &str)]) -> TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("old")).unwrap();
    for (name, text) in files {
        fs::write(place.path().join("old").join(name), text).unwrap();
    }
    place
}

fn import(place: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["import", "ratelimit"]).args(arguments).current_dir(place.path());
    command.stdin(Stdio::null()).output().unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The files of a directory with their texts.
fn files(directory: &Path) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = names
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn rules_are_written_and_what_has_none_stays_a_tree() {
    let place = place(&[("messaging.yaml", TREE)]);
    let output = import(&place, &["old", "--out", "new"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(error(&output), SAID);
    assert!(output.stdout.is_empty());
    let new = place.path().join("new");
    let expected = [("messaging.descriptors.yaml", STAYS), ("messaging.limits.yaml", RULES)]
        .map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(files(&new), expected);
    let loaded = read(&new);
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    assert_eq!(loaded.domains[0].rules().len(), 4);
    // The daemon, which is another user, reads them.
    let mode = fs::metadata(new.join("messaging.limits.yaml")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
}

#[test]
fn without_out_the_files_are_printed_and_nothing_is_written() {
    let place = place(&[("messaging.yaml", TREE)]);
    let output = import(&place, &["old"]);
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        printed,
        format!("# ---- messaging.descriptors.yaml\n{STAYS}\n# ---- messaging.limits.yaml\n{RULES}\n")
    );
    assert_eq!(files(place.path().join("old").as_path()).len(), 1);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
}

#[test]
fn nothing_is_overwritten_unless_that_is_asked_for() {
    let place = place(&[("messaging.yaml", TREE)]);
    let new = place.path().join("new");
    fs::create_dir(&new).unwrap();
    fs::write(new.join("messaging.limits.yaml"), "mine\n").unwrap();
    let output = import(&place, &["old", "--out", "new"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("new/messaging.limits.yaml is there already: move it away, or say --force"),
        "{output:?}"
    );
    assert_eq!(
        files(&new),
        [("messaging.limits.yaml".to_owned(), "mine\n".to_owned())],
        "nothing beside it either"
    );
    assert!(import(&place, &["old", "--out", "new", "--force"]).status.success());
    assert_eq!(files(&new).len(), 2);
    assert_eq!(files(&new)[1].1, RULES);
}

/// A file that is in the way of the second is noticed before the first is put in its place.
#[test]
fn all_files_are_written_or_none() {
    let place = place(&[("messaging.yaml", TREE)]);
    let new = place.path().join("new");
    fs::create_dir_all(new.join("messaging.limits.yaml/in-the-way")).unwrap();
    fs::write(new.join("messaging.descriptors.yaml"), "mine\n").unwrap();
    let output = import(&place, &["old", "--out", "new", "--force"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(fs::read_to_string(new.join("messaging.descriptors.yaml")).unwrap(), "mine\n");
    assert_eq!(fs::read_dir(&new).unwrap().count(), 2);
}

#[test]
fn what_would_count_twice_is_refused() {
    let place = place(&[("messaging.yaml", TREE)]);
    for into in ["old", "new/../old/."] {
        fs::create_dir_all(place.path().join("new")).unwrap();
        let output = import(&place, &["old", "--out", into, "--force"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(error(&output).contains("is where the descriptor files are: both would count"), "{output:?}");
    }
    // What an earlier import left, before the tree changed.
    fs::write(place.path().join("new/messaging-mine.yaml"), TREE).unwrap();
    let output = import(&place, &["old", "--out", "new"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("new/messaging-mine.yaml has rules for the domain `messaging` as well"),
        "{output:?}"
    );
    fs::write(place.path().join("new/messaging-mine.yaml"), TREE.replace("messaging\n", "other\n")).unwrap();
    assert!(import(&place, &["old", "--out", "new"]).status.success(), "another domain is nobody's affair");
}

#[test]
fn files_that_are_wrong_or_more_than_trees_are_told_and_nothing_is_written() {
    let table = [
        (
            "domain: a\ndescriptors:\n  - {key: b, rate_limit: {unit: sec, requests_per_unit: 1}}\n",
            "old/a.yaml:3",
        ),
        (
            "domain: a\nlimits: [{name: b, key: [], rate: 1/s}]\ndescriptors:\n  - {key: c}\n",
            "there is more in this file than a descriptor tree",
        ),
        (
            "domain: a\ndefaults: {scope: fleet}\ndescriptors:\n  - {key: c, rate_limit: {unit: day, requests_per_unit: 1}}\n",
            "this tree counts with `scope: fleet`",
        ),
    ];
    for (text, told) in table {
        let place = place(&[("a.yaml", text), ("messaging.yaml", TREE)]);
        let output = import(&place, &["old", "--out", "new"]);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(error(&output).contains(told), "{}", error(&output));
        assert!(!place.path().join("new").exists());
    }
}

#[test]
fn several_files_and_domains() {
    let more =
        "domain: messaging\ndescriptors:\n  - {key: from, rate_limit: {unit: year, requests_per_unit: 7}}\n";
    let odd =
        "domain: .odd name\ndescriptors:\n  - {key: from, rate_limit: {unit: month, requests_per_unit: 7}}\n";
    let place = place(&[("20.yaml", more), ("10.yaml", TREE), ("30.yaml", odd)]);
    assert!(import(&place, &["old", "--out", "new"]).status.success());
    let written = files(&place.path().join("new"));
    let names: Vec<_> = written.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["_.odd_name.limits.yaml", "messaging.descriptors.yaml", "messaging.limits.yaml"]);
    assert!(written[0].1.contains(
        "  # old/30.yaml:3\n  - name: from\n    key: [from]\n    algorithm: fixed_window\n    rate: 7/30day\n"
    ));
    assert!(written[2].1.contains("  # old/20.yaml:3\n  - name: from\n    key: [from]\n    algorithm: fixed_window\n    rate: 7/365day\n"));
}

/// Whatever has no exact form says why.
#[test]
fn the_reasons() {
    let table = [
        ("{key: a, rate_limit: {unit: week, requests_per_unit: 1}}", "its week turns on Thursday"),
        (
            "{key: a, rate_limit: {unit: day, requests_per_unit: 0}}",
            "it refuses everything and the request counts elsewhere",
        ),
        ("{key: 'a*', rate_limit: {unit: day, requests_per_unit: 1}}", "the key of an entry has a star"),
        (
            "{key: a, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]}",
            "a key comes twice on its path",
        ),
        ("{key: 'a:b', rate_limit: {unit: day, requests_per_unit: 1}}", "no request carries its entries"),
        (
            "{key: a, value: 'b\\*', rate_limit: {unit: day, requests_per_unit: 1}}",
            "a star behind a backslash",
        ),
        (
            "{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: b}]}}",
            "it replaces another limit or is replaced",
        ),
        (
            "{key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n  - {key: a, value: '*'}",
            "no request finds it: others on its level are found before",
        ),
        (
            "{key: a_b, rate_limit: {unit: day, requests_per_unit: 1}}\n  - {key: a, value: '*x'}",
            "the star of a pattern beside it or above it begins in the key",
        ),
        (
            "{key: 'a.b', rate_limit: {unit: day, requests_per_unit: 1}}\n  - {key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}",
            "the name of another limit reads the same",
        ),
    ];
    for (tree, why) in table {
        let place = place(&[("a.yaml", &format!("domain: a\ndescriptors:\n  - {tree}\n"))]);
        let output = import(&place, &["old"]);
        assert!(output.status.success(), "{output:?}");
        assert!(error(&output).contains(why), "{tree}: {}", error(&output));
    }
}
