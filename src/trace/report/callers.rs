//! The distribution of a rule's callers beside its limit, and the callers that it refused most.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::axis::span;
use crate::page::{BarMark, Bars, EscapedText, IsolatedName, count, of};
use crate::trace::refused::RefusedCaller;
use crate::trace::spread::{QUANTILES, Shape};

/// The callers of a rule in one set, and the rule's limit.
#[derive(Clone, Debug)]
pub(super) struct CallersReport {
    pub(super) shape: Shape,
    /// The rule's own, without overrides.
    pub(super) limit: u64,
    pub(super) unit: String,
}

/// The scale that two pictures share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChartScale {
    last: u64,
    top: u64,
}

impl ChartScale {
    /// A scale on which all of these fit.
    pub(super) fn of<'c>(all: impl Iterator<Item = &'c CallersReport>) -> ChartScale {
        all.fold(ChartScale { last: 2, top: 1 }, |scale, callers| {
            let most = callers.shape.busiest.last().copied().unwrap_or_default();
            ChartScale {
                last: scale.last.max(Bars::bar(most.max(callers.limit)).1),
                top: scale
                    .top
                    .max(bars(&callers.shape).iter().map(|(.., number)| *number).max().unwrap_or_default()),
            }
        })
    }
}

/// Writes the picture, the quantiles, and the number of callers above the limit.
pub(super) fn write(page: &mut String, callers: &CallersReport, scale: &ChartScale) {
    let CallersReport { shape, limit, unit } = callers;
    let window = span(Duration::from_nanos(shape.window_nanos));
    let (above, all) = (shape.above(*limit), shape.busiest.len());
    let all_of = of(all as u64, "caller", "callers");
    let sentence = format!(
        "{} of {} {all_of} asked for more than {} in one {window}",
        count(above as u64),
        count(all as u64),
        count(*limit),
    );
    let text = format!("limit {}", count(*limit));
    let bars = bars(shape);
    let picture = Bars {
        class: "spread",
        label: &format!("Callers by what they asked for in their busiest {window}: {sentence}"),
        edges: (1, scale.last),
        top: scale.top,
        bars: &bars,
        mark: Some(BarMark { at: *limit, text: &text }),
    };
    // One caller has no distribution.
    if all > 1 {
        let _ = write!(
            page,
            "<h4>Callers by the {} that they asked for in their busiest {window}</h4>{}<p class=\"none\">{}.{}</p>",
            EscapedText(unit),
            picture.draw(),
            EscapedText(&sentence),
            sampled(shape),
        );
    }
    table(page, shape, &window);
}

fn sampled(shape: &Shape) -> String {
    match shape.one_in {
        1 => String::new(),
        one_in => format!(" There were too many: one in {} was looked at.", count(one_in)),
    }
}

fn table(page: &mut String, shape: &Shape, window: &str) {
    let _ = write!(
        page,
        "<div class=\"wide\"><table class=\"quantiles\"><caption>So much or less</caption><thead><tr><th scope=\"col\">in</th>"
    );
    for (name, _) in QUANTILES {
        let _ = write!(page, "<th scope=\"col\" class=\"number\">{name}</th>");
    }
    page.push_str("</tr></thead><tbody>");
    let rows = [
        (format!("a caller’s busiest {window}"), shape.quantiles()),
        (format!("any {window} of a caller"), shape.windows),
    ];
    for (name, values) in rows {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", EscapedText(&name));
        for value in values {
            let _ = write!(page, "<td class=\"number\">{}</td>", count(value));
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div>");
}

/// Writes the table of callers that a rule refused most, with the number of all.
pub(super) fn most_refused(page: &mut String, most: &[RefusedCaller], (all, more): (u64, bool)) {
    let (Some(first), shown) = (most.first(), most.len() as u64) else { return };
    if most.len() == 1 && first.text.is_empty() {
        return;
    }
    let of_all = match all {
        all if all <= shown => String::new(),
        all => format!(", {shown} of {}{}", count(all), if more { "+" } else { "" }),
    };
    let _ = write!(
        page,
        "<div class=\"wide\"><table class=\"most\"><caption>Most refused{of_all}</caption><thead><tr><th \
         scope=\"col\">Caller</th><th scope=\"col\" class=\"number\">refused</th></tr></thead><tbody>"
    );
    for RefusedCaller { text, count: number, error } in most {
        let error = match error {
            0 => String::new(),
            error => format!(" <span class=\"quiet\">or up to {} fewer</span>", count(*error)),
        };
        let _ = write!(
            page,
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}{error}</td></tr>",
            IsolatedName(text),
            count(*number),
        );
    }
    page.push_str("</tbody></table></div>");
}

/// Bars as from, to and number of callers.
fn bars(shape: &Shape) -> Vec<(u64, u64, u64)> {
    let mut bars: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for most in &shape.busiest {
        *bars.entry(Bars::bar(*most)).or_default() += 1;
    }
    bars.into_iter().map(|((from, to), number)| (from, to, number)).collect()
}
