//! Shows decision rates and pool utilization: now, and over the last ten minutes.

use std::fmt::Write;

use serde_json::Value;

use super::TEN_MINUTES;
use super::health::is;
use crate::admin::history::{PoolStep, Story};
use crate::admin::told::{list, number, word};
use crate::page::{ChartLine, IsolatedName, count, draw, frame, key, percent, rate, top};

/// The decisions.
pub(super) fn decisions(status: &Value, story: &Story, page: &mut String) {
    let [allowed, limited, waited, denied, shed, _] = story.now;
    let told = [
        ("allowed", allowed, "/decisions/allow"),
        ("limited", limited, "/decisions/limit"),
        ("shed", shed, "/decisions/shed"),
        ("waited", waited, "/decisions/wait"),
        ("denied", denied, "/decisions/deny"),
    ];
    page.push_str(
        "<section aria-labelledby=\"decisions\"><h2 id=\"decisions\">Decisions</h2><dl class=\"figures\">",
    );
    for (name, now, ever) in told {
        let _ = write!(
            page,
            "<div class=\"{name}\"><dt>{name}</dt><dd>{}<span class=\"unit\">/s</span></dd><dd class=\"more\">{} in all</dd></div>",
            rate(now),
            count(number(status, ever)),
        );
    }
    page.push_str("</dl>");
    let line = |class, is_filled, of: fn(&[f32; 6]) -> f32| {
        let points = story.steps.iter().skip(1).map(|(ago, step)| (*ago, of(step)));
        ChartLine { class, is_filled, points: points.collect() }
    };
    let lines = [
        line("passed", true, |[allowed, _, waited, ..]| allowed + waited),
        line("refused", false, |[_, limited, _, denied, ..]| limited + denied),
        line("shed", false, |[.., shed, _]| *shed),
    ];
    let most = top(&lines, 1.0);
    let label = format!("Decisions a second over the last ten minutes, at most {}", rate(most));
    let picture = draw("large", &label, &TEN_MINUTES, (0.0, most), &lines);
    frame(page, &[format!("{}/s", rate(most)), "0".to_owned()], &picture, &SPAN);
    key(page, &[("passed", "allowed"), ("refused", "limited or denied"), ("shed", "shed")]);
    page.push_str("</section>");
}

/// The pools that the rules watch over; the rest have nothing to show.
pub(super) fn write(status: &Value, story: &Story, page: &mut String) {
    let (watched, others): (Vec<&Value>, Vec<&Value>) =
        list(status, "/pools").iter().partition(|pool| is(pool, "/watched"));
    if watched.is_empty() {
        return;
    }
    page.push_str("<section aria-labelledby=\"pools\"><h2 id=\"pools\">Pools</h2><div class=\"pools\">");
    for pool in watched.iter().take(POOLS_SHOWN) {
        one(pool, story, page);
    }
    page.push_str("</div>");
    let left = watched.len().saturating_sub(POOLS_SHOWN);
    if left + others.len() > 0 {
        let _ = write!(
            page,
            "<p class=\"none\">Not shown: {left} more, and {} without <code>shed</code> in the rules. <code>tidegate \
             status</code> has them.</p>",
            others.len()
        );
    }
    page.push_str("</section>");
}

fn one(pool: &Value, story: &Story, page: &mut String) {
    let name = word(pool, "/pool");
    let severity = pool.pointer("/s").and_then(Value::as_f64).unwrap_or_default();
    let utilization = pool.pointer("/u").and_then(Value::as_f64);
    let slots = pool.pointer("/slots").and_then(Value::as_u64).map_or_else(|| "unknown".to_owned(), count);
    let braking = is(pool, "/braking");
    let _ = write!(
        page,
        "<article><h3>{}{}</h3><p class=\"facts\">{} of {slots} slots busy{}</p>",
        IsolatedName(name),
        if braking { " <span class=\"badge bad\">✖ the brake is on</span>" } else { "" },
        count(number(pool, "/busy")),
        chances(pool),
    );
    let steps = story.pools.get(name).map(Vec::as_slice).unwrap_or_default();
    let line = |class, is_filled, of: fn(&PoolStep) -> Option<f32>| {
        let skipped = story.steps.len().saturating_sub(steps.len());
        let ages = story.steps.iter().skip(skipped).map(|(ago, _)| *ago);
        let points = ages.zip(steps).filter_map(|(ago, step)| Some((ago, of(step)?)));
        ChartLine { class, is_filled, points: points.collect() }
    };
    let busy = line("utilization", true, |step| step.utilization);
    let now = utilization.map_or_else(|| "unknown".to_owned(), percent);
    let most = percent(f64::from(top(std::slice::from_ref(&busy), 0.0)));
    let _ = write!(page, "<h4>utilization <strong>{now}</strong></h4>");
    let label = format!("Utilization over the last ten minutes: now {now}, at most {most}");
    let picture = draw("middle", &label, &TEN_MINUTES, (0.0, 1.0), &[busy]);
    frame(page, &["100 %".into(), "0".into()], &picture, &SPAN);
    let severe = line("severity", true, |step| Some(step.severity));
    let most = top(std::slice::from_ref(&severe), SEVERITY_MIN);
    let state = if severity > 0.0 { "sheds" } else { "sheds nothing" };
    let _ =
        write!(page, "<h4>s <strong>{}</strong> <span class=\"more\">{state}</span></h4>", signed(severity));
    let label =
        format!("s over the last ten minutes: now {}, at most {}", signed(severity), signed(f64::from(most)));
    let scale = ["1".to_owned(), signed(f64::from(SEVERITY_MIN))];
    frame(page, &scale, &draw("middle", &label, &TEN_MINUTES, (SEVERITY_MIN, 1.0), &[severe]), &SPAN);
    page.push_str("</article>");
}

/// With which chance each priority is refused.
fn chances(pool: &Value) -> String {
    let chances = list(pool, "/chances").iter().filter_map(|chance| {
        let share = chance.pointer("/1")?.as_f64().filter(|share| *share > 0.0)?;
        Some(format!("{} of {}", percent(share), IsolatedName(word(chance, "/0"))))
    });
    let chances: Vec<String> = chances.collect();
    if chances.is_empty() { String::new() } else { format!("; refuses {}", chances.join(", ")) }
}

fn signed(severity: f64) -> String {
    format!("{severity:.2}").replace('-', "\u{2212}")
}

/// Axis labels below a picture.
const SPAN: [&str; 3] = ["10 minutes ago", "5", "now"];

/// Two pictures each: more are no longer looked at.
const POOLS_SHOWN: usize = 8;

/// From where the slow law climbs: -28/120.
const SEVERITY_MIN: f32 = -28.0 / 120.0;
