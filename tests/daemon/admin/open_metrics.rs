//! A strict parser of OpenMetrics text: any deviation is an error.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By name.
    pub(crate) families: BTreeMap<String, Family>,
    /// By name and labels, verbatim.
    pub(crate) series: BTreeMap<String, f64>,
}

#[derive(Debug)]
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
    try_read(text).unwrap_or_else(|wrong| panic!("{wrong}"))
}

pub(crate) fn try_read(text: &str) -> Result<Metrics, String> {
    let mut metrics = Metrics::default();
    let mut current: Option<String> = None;
    let body = text.strip_suffix("# EOF\n").ok_or("no end")?;
    for line in body.lines() {
        let wrong = |what: &str| format!("{what}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or(wrong("no help"))?;
            let family = Family { kind: String::new(), help: help.to_owned(), labels: BTreeSet::new() };
            if !is_name(name) || metrics.families.insert(name.to_owned(), family).is_some() {
                return Err(wrong("a family twice, or no name"));
            }
            current = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or(wrong("no type"))?;
            let family = metrics.families.get_mut(name).filter(|family| family.kind.is_empty());
            if current.as_deref() != Some(name) || !KINDS.contains(&kind) {
                return Err(wrong("not behind its help, or no kind"));
            }
            family.ok_or(wrong("a second type"))?.kind = kind.to_owned();
        } else {
            sample(line, current.as_deref(), &mut metrics).map_err(|what| wrong(&what))?;
        }
    }
    histograms(&metrics)?;
    Ok(metrics)
}

fn sample(line: &str, current: Option<&str>, metrics: &mut Metrics) -> Result<(), String> {
    let (series, value) = line.rsplit_once(' ').ok_or("no value")?;
    let value: f64 = value.parse().map_err(|_| "no number")?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, read_labels(labels.strip_suffix('}').ok_or("no brace")?)?),
        None => (series, Vec::new()),
    };
    let current = current.ok_or("before any family")?;
    let family = metrics.families.get_mut(current).ok_or("before any family")?;
    let suffix = name.strip_prefix(current).ok_or("of another family")?;
    let fits = match &*family.kind {
        "counter" => {
            let is_whole = value.fract() == 0.0 || current.ends_with("_seconds");
            suffix == "_total" && value >= 0.0 && is_whole
        }
        "gauge" => suffix.is_empty() && value.is_finite(),
        "info" => suffix == "_info" && value == 1.0,
        "histogram" => ["_sum", "_count", "_bucket"].contains(&suffix) && value >= 0.0,
        _ => false,
    };
    if !fits {
        return Err(format!("a {} has no such sample", family.kind));
    }
    for (place, (label, _)) in labels.iter().enumerate() {
        if !is_name(label) || labels[..place].iter().any(|(other, _)| other == label) {
            return Err(format!("the label {label}"));
        }
        if family.kind != "histogram" {
            family.labels.insert(label.clone());
        }
    }
    if metrics.series.insert(series.to_owned(), value).is_some() {
        return Err("a series twice".to_owned());
    }
    Ok(())
}

/// Parses `a="b",c="d"`: only quotes, backslashes and line feeds in a value are escaped.
fn read_labels(mut text: &str) -> Result<Vec<(String, String)>, String> {
    let mut labels = Vec::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").ok_or("a label without a value")?;
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next().ok_or("an open value")? {
                (at, '"') => break at,
                (_, '\\') => match characters.next() {
                    Some((_, character @ ('\\' | '"'))) => value.push(character),
                    Some((_, 'n')) => value.push('\n'),
                    _ => return Err("an unknown escape".to_owned()),
                },
                (_, character) => value.push(character),
            }
        };
        labels.push((name.to_owned(), value));
        let rest = &rest[end + 1..];
        text = match rest.strip_prefix(',') {
            Some("") => return Err("a comma at the end".to_owned()),
            Some(rest) => rest,
            None if rest.is_empty() => rest,
            None => return Err("no comma between labels".to_owned()),
        };
    }
    Ok(labels)
}

fn histograms(metrics: &Metrics) -> Result<(), String> {
    for (name, _) in metrics.families.iter().filter(|(_, family)| family.kind == "histogram") {
        let prefix = format!("{name}_bucket{{le=\"");
        let bound = |series: &str| -> Option<f64> {
            series.strip_prefix(&prefix)?.strip_suffix("\"}")?.replace("+Inf", "inf").parse().ok()
        };
        let buckets = metrics.series.iter().filter_map(|(series, count)| Some((bound(series)?, *count)));
        let mut buckets: Vec<(f64, f64)> = buckets.collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        if !buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1) {
            return Err(format!("{name} falls"));
        }
        let last = buckets.last().ok_or("no buckets")?;
        if last.0 != f64::INFINITY || last.1 != metrics.of(&format!("{name}_count")) {
            return Err(format!("{name} does not end in its count"));
        }
    }
    Ok(())
}

fn is_name(text: &str) -> bool {
    let is_first = |first: char| first.is_ascii_alphabetic() || first == '_';
    text.starts_with(is_first) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

const KINDS: [&str; 4] = ["counter", "gauge", "histogram", "info"];

#[test]
fn rejects_invalid_open_metrics() {
    let good = "# HELP a b\n# TYPE a counter\na_total{x=\"y\\\"\\\\\\n\",z=\"\"} 1\n# EOF\n";
    assert_eq!(read(good).series.len(), 1);
    for (old, new) in [
        ("# EOF\n", ""),
        ("# TYPE a counter\n", ""),
        ("# HELP a b\n", ""),
        ("counter", "thing"),
        ("a_total", "a"),
        ("a_total", "b_total"),
        (" 1\n", " -1\n"),
        (" 1\n", " x\n"),
        ("\\n", "\\t"),
        ("\\\"", "\""),
        (",z", "z"),
        ("z=", "x="),
        ("z=", "1="),
        ("\"\"}", "\"\",}"),
        ("# EOF", "a_total{x=\"y\\\"\\\\\\n\",z=\"\"} 2\n# EOF"),
        ("# EOF", "# HELP a b\n# EOF"),
    ] {
        let bad = good.replace(old, new);
        assert!(try_read(&bad).is_err(), "{bad}");
    }
}
