//! Draws `tidegate top` on a terminal of any size: columns and lines that do not fit are left out, and no number is cut.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};

use super::{OpenPanel, TopRates, TopTable, TopView};
use crate::trace::summary::GAP;

pub(super) fn draw(frame: &mut Frame<'_>, view: &TopView, rates: Option<&TopRates<'_>>) {
    let area = frame.area();
    let lines = match (view.open, rates) {
        (OpenPanel::Help, _) => KEYS.lines().map(Line::from).collect(),
        (_, None) => vec![Line::from("looking for a second; q ends it")],
        (_, Some(rates)) => lines(view, rates, area),
    };
    frame.render_widget(Text::from(lines), area);
    if area.height >= HEIGHT_WITH_FOOTER {
        let last = Rect { y: area.bottom() - 1, height: 1, ..area };
        frame.render_widget(Text::from(footer(view, area.width.into())), last);
    }
}

/// Returns the lines above the footer.
fn lines(view: &TopView, rates: &TopRates<'_>, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let plain = |line: String| Line::from(line);
    let (state, verdicts) = rates.head();
    let state = state.into_iter().chain(view.is_paused.then(|| "PAUSED".to_owned()));
    let mut lines: Vec<Line<'_>> = flow(state, width).into_iter().map(|line| plain(line).bold()).collect();
    lines.extend(flow(verdicts, width).into_iter().map(plain));
    let fleet = rates.fleet_line();
    lines.extend(
        fleet.map(|line| flow(line.split(", ").map(str::to_owned), width)).into_iter().flatten().map(plain),
    );
    lines.extend(rates.conditions().map(|line| plain(end_at_word(&line, width)).fg(Color::Yellow)));
    lines.push(Line::default());

    let tables: Vec<TopTable> =
        rates.tables(view.sort).into_iter().filter(|table| table.rows.len() > 0).collect();
    let used = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2);
    let available = usize::from(area.height.saturating_sub(used));
    let wanted: Vec<usize> = tables.iter().map(|table| table.rows.len() + 1).collect();
    let has_gaps = wanted.iter().sum::<usize>() + wanted.len() <= available + 1;
    for (table, height) in tables.iter().zip(heights(&wanted, available)) {
        lines.extend(shown(table, height, width));
        lines.extend(has_gaps.then(Line::default));
    }
    if tables.is_empty() {
        lines.push(plain(end_at_word("no rule has decided a request in the last second", width)));
    }
    lines
}

/// Returns a table as a heading and rows, in so many lines.
fn shown(table: &TopTable, height: usize, width: usize) -> impl Iterator<Item = Line<'static>> {
    let columns = table.rows.fit(width, &table.dispensable);
    let style = |row: usize, column: usize, cell: &str| {
        if row == 0 {
            let heading = Style::new().bold().underlined();
            return if table.sorted == Some(column) { heading.reversed() } else { heading };
        }
        let is_zero = ["0", "off", "-", ""].contains(&cell.trim());
        let colour = table.colours.iter().find(|(colored, _)| *colored == column && !is_zero);
        colour.map_or_else(Style::new, |(_, colour)| Style::new().fg(*colour))
    };
    (0..height).map(move |row| {
        let mut spans = Vec::new();
        for (column, cells) in &columns {
            let cell = cells.get(row).map(String::as_str).unwrap_or_default();
            // Only the words of a heading are underlined.
            let padding = cell.len() - cell.trim_start().len() + if *column == 0 { 0 } else { GAP };
            spans.push(Span::raw(" ".repeat(padding)));
            spans.push(Span::styled(cell.trim_start().to_owned(), style(row, *column, cell)));
        }
        Line::from(spans)
    })
}

/// Divides lines among tables. Each one before the last leaves the others a heading and two rows.
fn heights(wanted: &[usize], available: usize) -> Vec<usize> {
    let mut left = available;
    let mut later: usize = wanted.iter().map(|wanted| *wanted.min(&HEIGHT_MIN)).sum();
    let height = |wanted: &usize| {
        later -= *wanted.min(&HEIGHT_MIN);
        let height = *wanted.min(&left.saturating_sub(later).max(HEIGHT_MIN).min(left));
        // A heading alone says nothing.
        let height = if height < 2 { 0 } else { height };
        left -= height;
        height
    };
    wanted.iter().map(height).collect()
}

fn footer(view: &TopView, width: usize) -> Line<'static> {
    if view.open == OpenPanel::Filter {
        return Line::from(format!("filter: {}_", view.filter)).bold();
    }
    let mut keys = vec!["q quit".to_owned(), "? help".to_owned()];
    keys.push(if view.is_paused { "p go on" } else { "p pause" }.to_owned());
    keys.push(format!("s sort: {}", view.sort.name()));
    keys.push(match &*view.filter {
        "" => "/ filter".to_owned(),
        filter => format!("/ filter: {filter}"),
    });
    Line::from(flow(keys, width).into_iter().next().unwrap_or_default()).dim()
}

/// Joins parts with commas into lines of a width. Only a part wider than a line is cut.
fn flow(parts: impl IntoIterator<Item = String>, width: usize) -> Vec<String> {
    let mut lines = Vec::<String>::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + part.chars().count() + 2 <= width => {
                line.push_str(", ");
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines
}

/// Cuts a text after a word that is no number, so that it fits into a width.
fn end_at_word(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let fits = text.char_indices().nth(width.saturating_sub(1)).map_or(0, |(end, _)| end);
    let mut words = text.get(..fits).unwrap_or_default();
    while let Some((before, _)) = words.rsplit_once(' ') {
        words = before;
        if !words.ends_with(|end: char| end.is_ascii_digit()) {
            break;
        }
    }
    format!("{words}…")
}

const KEYS: &str = "\
s         sort the rules: all requests, passed, refused,
          would refuse, name
/ TEXT    show rules, callers and pools with this in their
          names; Enter keeps it, Esc clears it
p, space  pause, go on
?, h      this help
q, ^C     quit; Esc too, if there is no filter

Rates are those of the last second. Callers fade over some
ten minutes. Units of the busiest are estimated from a
sample, the others are lower bounds.

A key closes this.";

/// The footer takes a line from the tables, where there are some.
const HEIGHT_WITH_FOOTER: u16 = 8;

/// A heading and two rows.
const HEIGHT_MIN: usize = 3;
