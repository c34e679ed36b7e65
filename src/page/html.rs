//! Formats texts and numbers for pages. All input from files and clients is escaped here.

use std::fmt::{self, Display, Formatter, Write};

/// A text, escaped for an element or a quoted attribute.
#[derive(Clone, Copy, Debug)]
pub struct EscapedText<'t>(pub &'t str);

impl Display for EscapedText<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '&' => out.write_str("&amp;"),
            '<' => out.write_str("&lt;"),
            '>' => out.write_str("&gt;"),
            '"' => out.write_str("&quot;"),
            '\'' => out.write_str("&#39;"),
            control if control.is_control() => out.write_char(char::REPLACEMENT_CHARACTER),
            other => out.write_char(other),
        })
    }
}

/// A name, isolated from the direction of the text around it, because some scripts run right to left.
#[derive(Clone, Copy, Debug)]
pub struct IsolatedName<'t>(pub &'t str);

impl Display for IsolatedName<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let shown: String = self.0.chars().take(NAME_CHARS_MAX).collect();
        let rest = if shown.len() < self.0.len() { "…" } else { "" };
        write!(out, "<bdi>{}{rest}</bdi>", EscapedText(&shown))
    }
}

/// Formats a count in groups of three digits.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() * 2);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(NARROW_SPACE);
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a rate per second with as many digits as are useful.
#[must_use]
pub fn rate(rate: f32) -> String {
    match rate {
        rate if rate >= 99.95 => count(round_rate(rate)),
        rate if rate >= 0.95 => format!("{rate:.1}"),
        rate if rate > 0.0 => format!("{:.2}", rate.max(0.01)),
        _ => "0".to_owned(),
    }
}

/// Formats a fraction as a percentage.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.0}\u{a0}%", share * 100.0)
}

/// Formats bytes in KiB, or in MiB from 10 MiB on.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    if bytes >= 10 << 20 {
        format!("{}\u{a0}MiB", count(bytes >> 20))
    } else {
        format!("{}\u{a0}KiB", count(bytes >> 10))
    }
}

/// Formats a duration in its two largest units.
#[must_use]
pub fn span(seconds: u64) -> String {
    let all = humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string();
    all.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Chooses the singular or the plural.
#[must_use]
pub fn of<'w>(number: u64, one: &'w str, more: &'w str) -> &'w str {
    if number == 1 { one } else { more }
}

fn round_rate(rate: f32) -> u64 {
    // A rate over five seconds fits.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "never below zero, and rounded"
    )]
    let whole = rate.round() as u64;
    whole
}

/// The longest name shown: a name in a file has no bound, a page needs one.
const NAME_CHARS_MAX: usize = 120;

const NARROW_SPACE: char = '\u{202f}';

#[cfg(test)]
mod tests {
    use super::{EscapedText, IsolatedName, bytes, count, percent, rate, span};

    #[test]
    fn escapes_hostile_text() {
        let hostile = "</bdi><script>alert('1')</script> \" onload=\"x & \u{1b}[2J\u{0}";
        let shown = EscapedText(hostile).to_string();
        assert!(!shown.contains(['<', '>', '"', '\'', '\u{1b}', '\u{0}']), "{shown}");
        assert!(shown.starts_with("&lt;/bdi&gt;&lt;script&gt;alert(&#39;1&#39;)"), "{shown}");
        assert!(shown.contains("&quot; onload=&quot;x &amp; \u{fffd}[2J\u{fffd}"), "{shown}");
        assert_eq!(IsolatedName("a<b").to_string(), "<bdi>a&lt;b</bdi>");
        let long = IsolatedName(&"&".repeat(500)).to_string();
        assert_eq!((long.matches("&amp;").count(), long.contains('…')), (120, true));
    }

    #[test]
    fn formats_numbers_with_useful_digits() {
        let rates = [0.0, 0.001, 0.25, 1.0, 42.04, 99.94, 99.96, 1_234.4, 1_234_567.0].map(rate);
        let read =
            ["0", "0.01", "0.25", "1.0", "42.0", "99.9", "100", "1\u{202f}234", "1\u{202f}234\u{202f}567"];
        assert_eq!(rates, read);
        assert_eq!(
            [0, 999, 1_000, 12_345_678].map(count),
            ["0", "999", "1\u{202f}000", "12\u{202f}345\u{202f}678"]
        );
        assert_eq!(
            (percent(0.824), bytes(2_048), bytes(64 << 20)),
            ("82\u{a0}%".into(), "2\u{a0}KiB".into(), "64\u{a0}MiB".into())
        );
        assert_eq!([0, 59, 3_600, 90_061].map(span), ["0s", "59s", "1h", "1day 1h"]);
    }
}
