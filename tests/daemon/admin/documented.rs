//! Compares the table of docs/metrics.md with the metrics that a daemon serves: both have the same.

use std::collections::BTreeMap;

use super::daemon::Plan;
use super::scrape::{EVERYTHING, scrape};

/// By family name: its type, and its labels in order.
type Table = BTreeMap<String, (String, Vec<String>)>;

fn documented() -> Table {
    let page = include_str!("../../../docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `tidegate_"));
    let rows = rows.map(|line| {
        let cells: Vec<Vec<&str>> =
            line.split('|').map(|cell| cell.split('`').skip(1).step_by(2).collect()).collect();
        let kind = line.split('|').nth(3).unwrap().trim().to_owned();
        let mut labels: Vec<String> = cells[2].iter().map(ToString::to_string).collect();
        labels.sort();
        (cells[1][0].to_owned(), (kind, labels))
    });
    rows.collect()
}

#[test]
fn documents_every_served_metric() {
    let daemon = Plan::new().rules("app.yaml", EVERYTHING).start();
    let metrics = scrape(&daemon);
    let served = metrics.families.iter().map(|(name, family)| {
        assert!(!family.help.is_empty(), "{name}");
        let name = match &*family.kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.clone(),
        };
        (name, (family.kind.clone(), family.labels.iter().cloned().collect()))
    });
    let (served, documented): (Table, Table) = (served.collect(), documented());
    for (name, entry) in &served {
        assert_eq!(documented.get(name), Some(entry), "{name} in docs/metrics.md");
    }
    assert_eq!(
        documented.len(),
        served.len(),
        "{:?}",
        documented.keys().filter(|name| !served.contains_key(*name)).collect::<Vec<_>>()
    );
}
