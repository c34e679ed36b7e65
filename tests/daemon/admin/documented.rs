//! The table of docs/metrics.md is that of the metrics which a daemon serves.

use super::docs::keep_part;
use super::open_metrics::{Family, read};
use super::scrape::EVERYTHING;
use crate::prelude::*;
use regex::Regex;
use std::collections::BTreeSet;
use std::fmt::Write;

#[test]
fn docs_table_matches_served_metrics() {
    let daemon = Plan::new().rules("app.yaml", EVERYTHING).start();
    let page = get(&daemon, "/metrics").body;
    let metrics = read(&page);
    let mut table = "| name | type | labels | meaning | act if |\n|---|---|---|---|---|\n".to_owned();
    for (name, _) in page.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' ')) {
        let family = &metrics.families[name];
        let name = match &*family.kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        };
        let series = metrics.series.keys().filter(|series| series.starts_with(&format!("{name}{{")));
        let labels = labels(family, &series.map(String::as_str).collect::<Vec<_>>().join("\n"));
        let (meaning, act) = family.help.split_once(". Act if ").unwrap_or((&family.help, ""));
        assert!(meaning.len() > 8 && !meaning.contains('|') && !act.contains('|'), "{name}: {meaning}");
        writeln!(table, "| `{name}` | {} | {labels} | {meaning} | {act} |", family.kind).unwrap();
    }
    keep_part("docs/metrics.md", &table, "daemon admin::documented");
}

/// Describes the labels of a family; those with fixed values with their values.
fn labels(family: &Family, series: &str) -> String {
    let described = family.labels.iter().map(|label| {
        if NOT_FIXED.contains(&&**label) {
            return format!("`{label}`");
        }
        let value = Regex::new(&format!("[{{,]{label}=\"([^\"]*)\"")).unwrap();
        let values: BTreeSet<&str> =
            value.captures_iter(series).map(|found| found.extract::<1>().1[0]).collect();
        format!("`{label}`: {}", Vec::from_iter(values).join(", "))
    });
    described.collect::<Vec<_>>().join("; ")
}

/// Labels whose values depend on the rules, the build or the settings.
const NOT_FIXED: [&str; 8] = ["domain", "pool", "priority", "rule", "sha", "signal", "thread", "version"];
