//! The worked examples of the literature, through `tidegate test`: the real program, in virtual time.
//!
//! The examples stand in `examples.yaml`, which says how to write one; nothing here knows of any of them.

mod example;

use std::collections::HashSet;
use std::process::Command;

use example::{Example, Request};
use tidegate::rules::read_text;

/// What keeps the rules of an example from being read, if anything.
fn unreadable(example: &Example) -> Option<String> {
    let loaded = read_text("rules.yaml", &example.rules);
    let error = loaded.problems.into_iter().find(tidegate::rules::Problem::is_error)?;
    Some(format!("“{}”: {}", example.name, error.message))
}

#[test]
fn the_rules_of_every_example_can_be_read() {
    let unreadable: Vec<String> = Example::all().iter().filter_map(unreadable).collect();
    assert!(unreadable.is_empty(), "{} cannot be read:\n{}", unreadable.len(), unreadable.join("\n"));
}

#[test]
fn every_example_comes_out_as_written() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pure/literature/examples.yaml");
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["test", file]).output().unwrap();
    let [out, said] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success() && out.ends_with(": all as expected\n"), "{out}{said}");
    assert!(out.starts_with(&format!("{} tests, ", Example::all().len())), "{out}");
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

const NANOS_PER_MICROSECOND: u64 = 1_000;
