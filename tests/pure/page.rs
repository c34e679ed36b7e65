//! Numbers, names and charts of pages.

use std::time::Duration;

use tidegate::page::{bar_edges, bytes, draw_bars, draw_lines, largest, name, percent, rate, span};

use crate::problems::has;

#[test]
fn formats_numbers_with_useful_digits() {
    let rates = [0.0, 0.001, 0.25, 1.0, 42.04, 99.94, 99.96, 1_234_567.0].map(rate);
    assert_eq!(rates, ["0", "0.01", "0.25", "1.0", "42.0", "99.9", "100", "1\u{202f}234\u{202f}567"]);
    let others = [percent(0.824), bytes(2_048), bytes(64 << 20)];
    assert_eq!(others, ["82\u{a0}%", "2\u{a0}KiB", "64\u{a0}MiB"]);
    let long = name(&"é".repeat(500)).into_string();
    assert_eq!((long.matches('é').count(), long.contains('…')), (120, true));
    assert_eq!([0, 59, 3_600, 90_061].map(Duration::from_secs).map(span), ["0s", "59s", "1h", "1day 1h"]);
}

#[test]
fn draws_lines_by_time_and_splits_at_gaps() {
    let lines = [("passed", vec![(700.0, 9.0), (600.0, 0.0), (595.0, 1.0), (300.0, 0.5), (0.0, 2.0)])];
    assert_eq!(largest(&lines, 1.0), 9.0);
    let chart = draw_lines("wide", "a < b", 600.0, (0.0, 1.0), &lines).into_string();
    let line = "d=\"M0 98L5 2M300 50h1M600 2h1\"";
    has(&chart, &["aria-label=\"a &lt; b\"", line, "M0 100L0 98L5 2L5 100Z"]);
    let empty = draw_lines("wide", "", 0.0, (0.0, 0.0), &[("passed", vec![(0.0, 0.0)])]).into_string();
    assert!(![chart, empty].iter().any(|chart| chart.contains("NaN") || chart.contains("inf")));
}

#[test]
fn assigns_each_value_one_bar() {
    for value in 1..5_000 {
        let (from, to) = bar_edges(value);
        assert!(from <= value && value < to, "{value}: {from} to {to}");
        let are_beside = bar_edges(from) == (from, to) && bar_edges(to).0 == to;
        assert!(are_beside, "{value}: {from} to {to}");
    }
    let starts = [0, 1, 2, 3, 4, 5, 6, 8, 12].map(|value| bar_edges(value).0);
    assert_eq!(starts, [1, 1, 2, 3, 4, 4, 6, 8, 12]);
    assert_eq!(bar_edges(u64::MAX).1, u64::MAX);
}

#[test]
fn draws_bars_within_bounds_and_escapes_text() {
    let bars = [((1, 2), 1_000), ((2, 3), 1), ((512, 768), 2)];
    let chart = draw_bars("a < b", bars, (1_024, 1_000), (100, "limit <100>")).into_string();
    let titles = ["<title>512 to 767: 2</title>", "<title>1: 1\u{202f}000<"];
    has(&chart, &titles);
    has(&chart, &["limit &lt;100&gt;", "aria-label=\"a &lt; b\"", "x=\"0.00%\" y=\"13.00%\""]);
    assert_eq!(chart.matches("<rect").count(), 3);
    let empty = draw_bars("", [], (1, 0), (2, "")).into_string();
    assert!(![chart, empty].iter().any(|chart| chart.contains("NaN") || chart.contains("inf")));
}
