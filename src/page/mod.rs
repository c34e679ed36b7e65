//! HTML PAGES: documents, tables, charts and formatted numbers. The macro of `maud` escapes all text. The meaning of a
//! page, and the access to it, are outside of this room.

mod chart;

use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::terms::is_deceptive;

pub use chart::{ChartLine, bar_edges, draw_bars, draw_lines, largest};
pub(crate) use chart::{frame, legend};

/// Returns a document with its style: light and dark, narrow and wide, screen and paper. Control characters, which
/// names of files and clients may contain, are replaced.
pub(crate) fn document(title: &str, nonce: &str, head: &Markup, own_style: &str, body: &Markup) -> String {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                (head)
                title { (title) }
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                style nonce=(nonce) { (PreEscaped(include_str!("page.css"))) (PreEscaped(own_style)) }
            }
            (body)
        }
    };
    let is_bad = |character: char| is_deceptive(character) && character != '\n';
    document.into_string().replace(is_bad, "\u{fffd}") + "\n"
}

/// Returns a table: its class and caption, the headings of columns of text and of numbers, and the cells of each row.
pub(crate) fn table(
    class: &str,
    caption: &str,
    headings: &[&str],
    numbers: &[&str],
    rows: impl Iterator<Item = Markup>,
) -> Markup {
    html! {
        div.wide {
            table class=(class) {
                caption { (prose(caption)) }
                thead {
                    tr {
                        @for heading in headings { th scope="col" { (heading) } }
                        @for heading in numbers { th.number scope="col" { (heading) } }
                    }
                }
                tbody { @for row in rows { tr { (row) } } }
            }
        }
    }
}

/// Shows text; words in backticks are code.
pub(crate) fn prose(text: &str) -> Markup {
    let parts = text.split('`').enumerate();
    html! { @for (index, part) in parts { @if index % 2 == 1 { code { (part) } } @else { (part) } } }
}

/// Returns 128 random bits in hexadecimal: the nonce by which the content security policy of a page allows the page's
/// own style and script. Empty without randomness: the policy then allows nothing, and the page is unstyled.
pub(crate) fn nonce() -> String {
    let mut bytes = [0; 16];
    match getrandom(&mut bytes[..], GetRandomFlags::NONBLOCK) {
        Ok(16) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => String::new(),
    }
}

/// Isolates a name from the direction of the text around it, because some scripts run right to left, and shortens it: a
/// name in a file has no bound, a page needs one.
pub fn name(name: &str) -> Markup {
    let end = name.char_indices().nth(NAME_CHARS_MAX).map(|(end, _)| end);
    html! { bdi { (name.get(..end.unwrap_or(name.len())).unwrap_or_default()) @if end.is_some() { "…" } } }
}

/// Returns the name of a rule with its domain; the sum of the other rules has none.
pub(crate) fn rule_name(domain: &str, rule: &str) -> Markup {
    match domain {
        "" => html! { "all others together" },
        domain => html! { span.domain { (name(domain)) "/" } (name(rule)) },
    }
}

/// Formats a count in groups of three digits, which no line break parts.
pub(crate) fn count(number: u64) -> String {
    crate::terms::count(number).replace(' ', "\u{202f}")
}

/// Formats a count with the singular or the plural of its noun.
pub(crate) fn counted(number: u64, one: &str, more: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { more })
}

/// Formats a rate per second with as many digits as are useful.
pub fn rate(rate: f32) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and rounded")]
    match rate {
        rate if rate >= 99.95 => count(rate.round() as u64),
        rate if rate >= 0.95 => format!("{rate:.1}"),
        rate if rate > 0.0 => format!("{:.2}", rate.max(0.01)),
        _ => "0".to_owned(),
    }
}

pub fn percent(share: f64) -> String {
    format!("{:.0}\u{a0}%", share * 100.0)
}

/// Formats bytes in KiB, or in MiB from 10 MiB on.
pub fn bytes(bytes: u64) -> String {
    let (shift, unit) = if bytes >= 10 << 20 { (20, "MiB") } else { (10, "KiB") };
    format!("{}\u{a0}{unit}", count(bytes >> shift))
}

/// Formats a duration in its two largest units.
pub fn span(span: Duration) -> String {
    let all = humantime::format_duration(span).to_string();
    all.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

const NAME_CHARS_MAX: usize = 120;
