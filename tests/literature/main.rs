//! The worked examples of the literature, through `tidegate replay`: the real program, in virtual time.
//!
//! The examples stand in `examples.yaml`, which says how to write one; nothing here knows of any of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod example;

use std::collections::HashSet;
use std::fmt::Write;
use std::process::Command;

use example::{Example, Request};
use serde_json::{Value, json};
use tidegate::rules::read_text;

/// What keeps the rules of an example from being read, if anything.
fn unreadable(example: &Example) -> Option<String> {
    let loaded = read_text("rules.yaml", &example.rules);
    let error = loaded.problems.into_iter().find(tidegate::rules::Problem::is_error)?;
    Some(format!("“{}”: {}", example.name, error.message))
}

/// The decision on each request, as `--decisions` writes it.
fn replay(example: &Example, requests: &[Request]) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let [rules, trace] = ["rules.yaml", "trace.jsonl"].map(|name| directory.path().join(name));
    std::fs::write(&rules, &example.rules).unwrap();
    let lines = requests.iter().map(|request| trace_line(example.domain(), request));
    std::fs::write(&trace, lines.collect::<String>()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = command.arg("replay").arg(&trace).arg("--rules").arg(&rules).args(["--decisions", "-"]);
    let output = output.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "“{}”: {said}", example.name);
    let decisions = String::from_utf8(output.stdout).unwrap();
    decisions.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn trace_line(domain: &str, request: &Request) -> String {
    let Request { nanos, attributes, .. } = request;
    let descriptor: Vec<&str> = attributes.iter().flat_map(|(key, value)| [&**key, value]).collect();
    let descriptors = json!([descriptor]);
    let (seconds, fraction) = (nanos / NANOS_PER_SECOND, nanos % NANOS_PER_SECOND);
    format!(r#"{{"t": {seconds}.{fraction:09}, "domain": "{domain}", "descriptors": {descriptors}}}"#) + "\n"
}

/// What of a decision is not as the example says.
fn differences(request: &Request, decision: &Value) -> String {
    let expected = [
        ("verdict", Some(json!(request.verdict))),
        ("retry_us", request.retry_us.map(Value::from)),
        ("remaining", request.left.map(Value::from)),
        ("rule", request.rule.as_ref().map(|rule| json!(rule))),
    ];
    let mut wrong = String::new();
    for (key, expected) in expected {
        let was = decision.get(key).unwrap();
        if let Some(expected) = expected
            && expected != *was
        {
            write!(wrong, " · {key} is {was}, not {expected}").unwrap();
        }
    }
    wrong
}

/// The first requests of an example that do not come out as written.
fn failures(example: &Example) -> Vec<String> {
    let requests = example.requests();
    let decisions = replay(example, &requests);
    assert_eq!(decisions.len(), requests.len(), "“{}”", example.name);
    let judged = requests.iter().zip(&decisions);
    let wrong = judged.map(|(request, decision)| (request, differences(request, decision)));
    let wrong = wrong.filter(|(_, differences)| !differences.is_empty()).take(SHOWN_MAX);
    wrong.map(|(request, differences)| format!("“{}”: {request}{differences}", example.name)).collect()
}

#[test]
fn the_rules_of_every_example_can_be_read() {
    let unreadable: Vec<String> = Example::all().iter().filter_map(unreadable).collect();
    assert!(unreadable.is_empty(), "{} cannot be read:\n{}", unreadable.len(), unreadable.join("\n"));
}

#[test]
fn every_example_that_can_be_read_comes_out_as_written() {
    let examples = Example::all();
    let readable = examples.iter().filter(|example| unreadable(example).is_none());
    let failures: Vec<String> = readable.flat_map(failures).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_example_shows_the_edge() {
    let mut names = HashSet::new();
    for example in Example::all() {
        assert!(!example.source.is_empty(), "“{}” has no source", example.name);
        assert!(names.insert(example.name.clone()), "“{}” stands there twice", example.name);
        let requests = example.requests();
        let refused: HashSet<u64> = requests
            .iter()
            .filter(|request| request.verdict == "limit")
            .map(|request| request.nanos)
            .collect();
        let is_edge = |request: &Request| {
            request.verdict == "allow" && refused.contains(&request.nanos.wrapping_sub(NANOS_PER_MICROSECOND))
        };
        assert!(requests.iter().any(is_edge), "“{}” has no refusal a microsecond too early", example.name);
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MICROSECOND: u64 = 1_000;

/// Where one request comes out wrong the rest often does.
const SHOWN_MAX: usize = 3;
