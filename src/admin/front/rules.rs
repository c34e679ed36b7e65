//! Lists the rules with passed, refused and would-refuse requests per second, the busiest first.

use std::fmt::Write;

use serde_json::Value;

use super::TEN_MINUTES;
use crate::admin::history::{RuleStory, Story};
use crate::admin::told::{list, number, word};
use crate::page::{ChartLine, EscapedText, IsolatedName, count, draw, key, of, rate, top};

pub(super) fn write(status: &Value, story: &Story, page: &mut String) {
    let nothing = RuleStory::default();
    let mut rules: Vec<(&Value, &RuleStory)> = list(status, "/counts")
        .iter()
        .map(|rule| {
            let full_name = format!("{}/{}", word(rule, "/domain"), word(rule, "/rule"));
            (rule, story.rules.get(&full_name).unwrap_or(&nothing))
        })
        .collect();
    let written: u64 = list(status, "/rules/domains").iter().map(|domain| number(domain, "/rules")).sum();
    // Refusals weigh as much as passes: an operator looks for either. Then by total activity, then by name.
    rules.sort_by(|(one, one_now), (other, other_now)| {
        let busy = |story: &RuleStory| story.now.iter().sum::<f32>();
        busy(other_now).total_cmp(&busy(one_now)).then_with(|| ever(other).cmp(&ever(one)))
    });
    rules.retain(|(rule, _)| !word(rule, "/domain").is_empty() || ever(rule) > 0);
    page.push_str("<section aria-labelledby=\"rules\"><h2 id=\"rules\">Rules</h2>");
    if rules.is_empty() {
        page.push_str("<p class=\"none\">No rule is in force: everything is allowed.</p></section>");
        return;
    }
    let shown = rules.len().min(RULES_SHOWN) as u64;
    let _ = write!(
        page,
        "<div class=\"wide\"><table class=\"rules\"><caption>Requests a second, over the last {:.0}&nbsp;s; the busiest \
         first{}</caption><thead><tr><th scope=\"col\">Rule</th><th scope=\"col\" class=\"number\">passed</th><th \
         scope=\"col\" class=\"number\">refused</th><th scope=\"col\" class=\"number\">would refuse</th><th \
         scope=\"col\" class=\"picture\">Ten minutes</th></tr></thead><tbody>",
        story.seconds,
        left_out(shown, written),
    );
    for (rule, told) in rules.iter().take(RULES_SHOWN) {
        row(rule, told, story, page);
    }
    page.push_str("</tbody></table></div>");
    key(page, &[("passed", "passed"), ("refused", "refused"), ("would", "would refuse")]);
    page.push_str("</section>");
}

fn left_out(shown: u64, written: u64) -> String {
    match written.saturating_sub(shown) {
        0 => String::new(),
        left => format!(
            "; {} of {} {} not shown: <code>tidegate status</code> has those that were asked",
            count(left),
            count(written),
            of(left, "is", "are")
        ),
    }
}

fn row(rule: &Value, told: &RuleStory, story: &Story, page: &mut String) {
    let [passed, refused, would_refuse] = told.now;
    let mode = word(rule, "/mode");
    let name = match word(rule, "/domain") {
        "" => "all others together".to_owned(),
        domain => {
            format!(
                "<span class=\"domain\">{}/</span>{}",
                IsolatedName(domain),
                IsolatedName(word(rule, "/rule"))
            )
        }
    };
    let badge = match mode {
        "" | "enforce" => String::new(),
        mode => format!(" <span class=\"badge {}\">{}</span>", EscapedText(mode), EscapedText(mode)),
    };
    let _ = write!(
        page,
        "<tr><th scope=\"row\">{name}{badge}</th><td class=\"number\">{}</td><td class=\"number{}\">{}</td><td \
         class=\"number{}\">{}</td><td class=\"picture\">{}</td></tr>",
        rate(passed),
        if refused > 0.0 { " some refused" } else { "" },
        rate(refused),
        if would_refuse > 0.0 { " some would" } else { "" },
        rate(would_refuse),
        picture(told, story),
    );
}

/// A line each, from pairs of steps: a small picture shows no more.
fn picture(told: &RuleStory, story: &Story) -> String {
    let skipped = story.steps.len().saturating_sub(told.steps.len());
    let ages: Vec<f32> = story.steps.iter().skip(skipped).map(|(ago, _)| *ago).collect();
    let line = |class, is_filled, of: fn(&[f32; 3]) -> f32| {
        let pairs = ages.chunks(2).zip(told.steps.chunks(2));
        let points = pairs.filter_map(|(ages, steps)| {
            let ago = ages.last()?;
            Some((*ago, steps.iter().map(of).sum::<f32>() / steps.len() as f32))
        });
        ChartLine { class, is_filled, points: points.collect() }
    };
    let lines = [
        line("passed", true, |[passed, ..]| *passed),
        line("refused", false, |[_, refused, _]| *refused),
        line("would", false, |[.., would]| *would),
    ];
    let lines: Vec<ChartLine> =
        lines.into_iter().filter(|line| line.points.iter().any(|(_, value)| *value > 0.0)).collect();
    if lines.is_empty() {
        return "<span class=\"quiet\">quiet</span>".to_owned();
    }
    let most = top(&lines, 0.0);
    let label = format!("at most {} a second in ten minutes", rate(most));
    draw("small", &label, &TEN_MINUTES, (0.0, most), &lines)
}

fn ever(rule: &Value) -> u64 {
    ["/pass", "/near", "/over", "/refuse", "/would_refuse"].iter().map(|field| number(rule, field)).sum()
}

/// A page of those that matter just now, of some 60 KiB at most.
const RULES_SHOWN: usize = 40;
