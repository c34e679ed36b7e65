//! Descriptor trees: the meaning of files, the node that limits a descriptor, the key of its state.

mod files;
mod finding;
mod reading;
mod requests;

use std::sync::Arc;

use tidegate::rules::{Domain, read_text};

/// The domain of a file without errors; warnings are ignored.
#[track_caller]
fn domain(text: &str) -> Arc<Domain> {
    let mut loaded = read_text("tree.yaml", text);
    assert!(!loaded.has_errors(), "{:#?}\n{text}", loaded.problems);
    assert_eq!(loaded.domains.len(), 1);
    loaded.domains.remove(0)
}

/// A file of the domain `api` with these descriptors, in flow style; `!` stands for a limit.
fn file(descriptors: &[&str]) -> String {
    let limit = "rate_limit: {unit: second, requests_per_unit: 1}";
    let lines = descriptors.iter().map(|one| format!("  - {{{}}}\n", one.replace('!', limit)));
    format!("domain: api\ndescriptors:\n{}", lines.collect::<String>())
}

/// `key=value key= …`: a descriptor as the tables write it. A value ends at a space.
fn descriptor(text: &str) -> Vec<(&str, &str)> {
    text.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect()
}

/// The rule that limits a descriptor, and its key: `name: key=value key=pattern`; `-` for none.
fn shown(domain: &Domain, descriptor: &[(&str, &str)]) -> String {
    let Some(hit) = domain.tree().find(descriptor) else { return "-".to_owned() };
    let values: Vec<&str> = domain.tree().key_values(hit, descriptor).collect();
    let pairs: Vec<_> = values.chunks(2).map(|pair| pair.join("=")).collect();
    format!("{}: {}", domain.rules()[hit.rule as usize].name, pairs.join(" "))
}

/// For each descriptor the name of the rule that limits it, or `-`.
#[track_caller]
fn check(text: &str, selections: &[(&str, &str)]) {
    let domain = domain(text);
    for (written, rule) in selections {
        let found = shown(&domain, &descriptor(written));
        assert_eq!(found.split(": ").next().unwrap(), *rule, "{written:?} in\n{text}");
    }
}
