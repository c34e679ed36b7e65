//! A parser of OpenMetrics text. Prometheus reads the same page in `tests/python/test_prometheus.py`.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By name.
    pub(crate) families: BTreeMap<String, Family>,
    /// By name and labels, verbatim.
    pub(crate) series: BTreeMap<String, f64>,
}

#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    /// The names of its labels, except `le` of a histogram.
    pub(crate) labels: BTreeSet<String>,
}

impl Metrics {
    /// The value of a series: `tidegate_leases`, `tidegate_x_total{a="b"}`.
    #[track_caller]
    pub(crate) fn of(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| panic!("no series {series}"))
    }

    /// The sum of all series whose name and labels contain each of these words.
    pub(crate) fn sum(&self, words: &[&str]) -> f64 {
        let has = |series: &String| words.iter().all(|word| series.contains(word));
        self.series.iter().filter(|(series, _)| has(series)).map(|(_, value)| value).sum()
    }
}

#[track_caller]
pub(crate) fn read(text: &str) -> Metrics {
    let mut metrics = Metrics::default();
    let mut current = String::new();
    let labels = Regex::new(r#"(?:^|,)([a-z_]+)="(?:[^"\\]|\\["\\n])*""#).unwrap();
    for line in text.strip_suffix("# EOF\n").expect("the end").lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(metrics.families.insert(name.to_owned(), family).is_none(), "a family twice: {line}");
            current = name.to_owned();
            continue;
        }
        let family = metrics.families.get_mut(&current).unwrap_or_else(|| panic!("of no family: {line}"));
        if let Some(kind) = line.strip_prefix(&format!("# TYPE {current} ")) {
            kind.clone_into(&mut family.kind);
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        let (name, braces) = series.split_at(series.find('{').unwrap_or(series.len()));
        assert!(name.starts_with(&*current), "of another family: {line}");
        let inside = braces.trim_start_matches('{').trim_end_matches('}');
        if family.kind != "histogram" {
            family.labels.extend(labels.captures_iter(inside).map(|label| label[1].to_owned()));
        }
        let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(metrics.series.insert(series.to_owned(), value).is_none(), "a series twice: {line}");
    }
    metrics
}
