//! Selects the rules of a request among many similar ones: 10 000 should cost little more than 33.

#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a benchmark may stop where it stands; criterion's macros document nothing"
)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tidegate::rules::{Domain, Selection, read_text};

/// The kind and text of a condition by rule number, and the attribute that matches number 20.
const WRITTEN: [(&str, Write, &str, &str); 8] = [
    ("equal", |n| format!("path: /v1/x{n}"), "path", "/v1/x20"),
    ("start", |n| format!("path: '/v1/x{n}/*'"), "path", "/v1/x20/items"),
    ("end", |n| format!("host: '*.t{n}.example.com'"), "host", "www.t20.example.com"),
    ("part", |n| format!("agent: '*bot{n}-*'"), "agent", "Mozilla/5.0 (compatible; bot20-x; +https://x)"),
    ("cidr", |n| format!("ip: {{cidr: 10.{}.{}.0/24}}", n / 256, n % 256), "ip", "10.0.20.7"),
    (
        "any case",
        |n| format!("agent: {{glob: 'Bot{n}/*', ignore_case: true}}"),
        "agent",
        "BOT20/1.0 (+https://x)",
    ),
    ("not", |n| format!("org: o{n}, plan: {{not: free}}"), "org", "o20"),
    ("absent", |n| format!("org: o{n}, agent: {{present: false}}"), "org", "o20"),
];

type Write = fn(usize) -> String;

fn domain(rules: &str) -> Arc<Domain> {
    let loaded = read_text("rules.yaml", &format!("domain: api\n{rules}"));
    assert!(!loaded.has_errors(), "{:?}", loaded.problems.first());
    loaded.domains.into_iter().next().unwrap_or_else(|| panic!("one domain"))
}

fn select(
    criterion: &mut Criterion,
    group: &str,
    name: &str,
    domain: &Domain,
    attributes: &[(&str, &str)],
    found: usize,
) {
    let mut matching = Vec::new();
    criterion.benchmark_group(group).bench_function(BenchmarkId::from_parameter(name), |bencher| {
        bencher.iter(|| {
            let mut selection = Selection::default();
            domain.select(black_box(attributes), &mut selection, &mut matching);
            assert_eq!(matching.len(), found);
        });
    });
}

fn rules(criterion: &mut Criterion) {
    for (name, write, attribute, value) in WRITTEN {
        for count in [33, 10_000] {
            let rule = |number| {
                format!("- {{name: r{number}, match: {{{}}}, key: [user], rate: 1/s}}\n", write(number))
            };
            let rules: String = (0..count).map(rule).collect();
            let attributes = [("user", "u1"), ("plan", "paid"), (attribute, value)];
            select(
                criterion,
                name,
                &format!("{count} rules"),
                &domain(&format!("limits:\n{rules}")),
                &attributes,
                1,
            );
        }
    }
}

/// One entry of `deny` with 1, 33 and 1 000 values.
fn deny(criterion: &mut Criterion) {
    let values = |count: usize| {
        (0..count).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect::<Vec<_>>().join(", ")
    };
    for count in [1, 33, 1_000] {
        let entry = format!("deny: [{{name: a, match: {{ip: {{cidr: [{}]}}, user: '*'}}}}]\n", values(count));
        let attributes = [("user", "u1"), ("ip", "10.0.0.7")];
        select(criterion, "one deny", &format!("{count} networks"), &domain(&entry), &attributes, 1);
    }
}

criterion_group!(benches, rules, deny);
criterion_main!(benches);
