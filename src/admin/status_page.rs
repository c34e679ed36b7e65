//! The page at `/`: the state of the daemon for people. One file with its charts, its style and a short script, and
//! whole without them. It changes nothing.

use maud::{Markup, PreEscaped, Render, html};

use super::answer::{self, HttpAnswer};
use super::health::{CheckState, Health, HealthCheck};
use super::history::{HistorySample, PoolStep, RateHistory, RuleHistory};
use super::status::{DaemonStatus, FleetStatusPart, RuleStatus};
use super::switches::utc;
use super::{AdminState, router};
use crate::engine::{Caller, PoolView, UNIT_REQUESTS};
use crate::page::{
    ChartLine, bytes, count, counted, document, draw_lines, frame, largest, legend, name, nonce, percent,
    prose, rate, rule_name, span, table,
};

pub(super) fn render_page(admin: &AdminState) -> HttpAnswer {
    let story = admin.history.story(&HistorySample::take(admin));
    let now = admin.clock.now();
    let nonce = nonce();
    let host = std::fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
    let page = text(&DaemonStatus::read(admin), &story, [host.trim(), &utc(now.at, now), &nonce]);
    answer::html(page, &policy(&nonce))
}

/// Returns the page of a host at a time; the nonce admits the page's own style and script.
fn text(status: &DaemonStatus, story: &RateHistory, [host, at, nonce]: [&str; 3]) -> String {
    let health = Health::new(status, story);
    let (mark, _) = health.sign().mark_and_word();
    let colour = match health.sign() {
        CheckState::Absent | CheckState::Good => "%231a7f37",
        CheckState::Note => "%23bf8700",
        CheckState::Bad => "%23cf222e",
    };
    let icon = format!(
        "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 2 2'%3E%3Ccircle cx='1' cy='1' r='1' \
         fill='{colour}'/%3E%3C/svg%3E"
    );
    let head = html! {
        link id="icon" rel="icon" href=(icon);
        noscript { meta http-equiv="refresh" content="5"; }
    };
    let verbs = router::ROUTES.iter().filter(|route| route.action.is_verb()).map(|route| route.path);
    let body = html! {
        body {
            p id="silence" role="alert" hidden {}
            div id="page" {
                header {
                    h1 { "tidegate " span.host { (host) } }
                    p.when {
                        "as of " time datetime=(at) { (at.get(11..19).unwrap_or_default()) " UTC" } ", "
                        span id="pace" { "loaded anew every 5 s" }
                    }
                }
                main { (overview(&health)) (sections(status, story)) }
                footer {
                    details {
                        summary { "What else this socket has" }
                        ul {
                            @for (path, what) in router::others() { li { a href={ "." (path) } { (path) } " " (what) } }
                            @for path in verbs { li { "POST " code { (path) } } }
                        }
                    }
                    p {
                        "Pictures are drawn from " (counted(story.steps.len() as u64, "look", "looks"))
                        ", 5 s apart; they begin anew with the daemon."
                    }
                }
            }
            script nonce=(nonce) { (PreEscaped(include_str!("status_page/page.js"))) }
        }
    };
    document(&format!("{mark} tidegate {host}"), nonce, &head, "", &body)
}

/// Returns the content security policy: only the page's own content, and fetching the page again.
fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Shows the health overview, which is first on the page: each check with a sign, a word and a colour.
fn overview(health: &Health<'_>) -> Markup {
    let left = health.warnings.len().saturating_sub(WARNINGS_SHOWN);
    let mark = |mark| html! { span.mark aria-hidden="true" { (mark) } " " };
    let (worst, class) = health.sign().mark_and_word();
    html! {
        section.health aria-labelledby="health" {
            h2 id="health" class=(class) { (mark(worst)) (health.headline()) }
            ul.checks {
                @for (title, HealthCheck { sign, short, pools, more }) in &health.checks {
                    @let (sign, word) = sign.mark_and_word();
                    li class=(word) {
                        h3 { (mark(sign)) (title) span.unseen { ": " (word) } }
                        p.says {
                            (prose(short))
                            @for (place, pool) in pools.iter().take(3).enumerate() {
                                (if place == 0 { ": " } else { ", " }) (name(pool))
                            }
                            @if pools.len() > 3 { ", …" }
                        }
                        p.more { (prose(more)) }
                    }
                }
            }
            @if !health.warnings.is_empty() {
                ul.warnings {
                    @for warning in health.warnings.iter().take(WARNINGS_SHOWN) { li { (prose(warning)) } }
                    @if left > 0 { li { "and " (left) " more: " code { "tidegate status" } } }
                }
            }
        }
    }
}

fn sections(status: &DaemonStatus, story: &RateHistory) -> Markup {
    html! {
        (section("decisions", "Decisions", &decisions(status, story)))
        @if status.pools.iter().any(|pool| pool.configured) { (section("pools", "Pools", &pools(status, story))) }
        (section("rules", "Rules", &rules(status, story)))
        (section("callers", "Callers", &callers(status)))
        (overrides(status))
        div.columns {
            (facts("leases", "Leases", leases(status)))
            @if let Some(part) = &status.fleet { (facts("fleet", "Fleet", fleet(part))) }
            (facts("memory", "Memory", memory(status)))
        }
    }
}

fn section(id: &str, title: &str, content: &Markup) -> Markup {
    html! { section aria-labelledby=(id) { h2 id=(id) { (title) } (content) } }
}

fn facts<'f>(id: &str, title: &str, facts: impl IntoIterator<Item = (&'f str, String)>) -> Markup {
    let list =
        html! { dl.facts { @for (name, value) in facts { div { dt { (name) } dd { (prose(&value)) } } } } };
    section(id, title, &list)
}

/// Returns a line over the last steps of the history: a name that is new has fewer steps than the history.
fn line<S>(
    class: &'static str,
    story: &RateHistory,
    steps: &[S],
    of: impl Fn(&S) -> Option<f32>,
) -> ChartLine {
    let skipped = story.steps.len().saturating_sub(steps.len());
    let ages = story.steps.iter().skip(skipped).map(|(ago, _)| *ago);
    (class, ages.zip(steps).filter_map(|(ago, step)| Some((ago, of(step)?))).collect())
}

fn decisions(status: &DaemonStatus, story: &RateHistory) -> Markup {
    let ([allowed, limited, waited, denied, shed, _], ever) = (story.now, &status.decisions);
    let figures = [
        ("allowed", allowed, ever.allow),
        ("limited", limited, ever.limit),
        ("shed", shed, ever.shed),
        ("waited", waited, ever.wait),
        ("denied", denied, ever.deny),
    ];
    let steps = story.steps.get(1..).unwrap_or_default();
    let line = |class, of: fn(&[f32; 6]) -> f32| line(class, story, steps, |(_, step)| Some(of(step)));
    let lines = [
        line("passed", |[allowed, _, waited, ..]| allowed + waited),
        line("refused", |[_, limited, _, denied, ..]| limited + denied),
        line("shed", |[.., shed, _]| *shed),
    ];
    let most = largest(&lines, 1.0);
    let label = format!("Decisions a second over the last ten minutes, at most {}", rate(most));
    let chart = draw_lines("large", &label, TEN_MINUTES, (0.0, most), &lines);
    html! {
        dl.figures {
            @for (name, now, ever) in figures {
                div class=(name) {
                    dt { (name) }
                    dd { (rate(now)) span.unit { "/s" } }
                    dd.more { (count(ever)) " in all" }
                }
            }
        }
        (frame([&*format!("{}/s", rate(most)), "0"], &chart, &SPAN))
        (legend(&[("passed", "allowed"), ("refused", "limited or denied"), ("shed", "shed")]))
    }
}

/// Shows the pools that rules configure; the rest have nothing to show.
fn pools(status: &DaemonStatus, story: &RateHistory) -> Markup {
    let (watched, others): (Vec<_>, Vec<_>) = status.pools.iter().partition(|pool| pool.configured);
    let (left, others) = (watched.len().saturating_sub(POOLS_SHOWN), others.len());
    html! {
        div.pools { @for pool in watched.iter().take(POOLS_SHOWN) { (one_pool(pool, story)) } }
        @if left + others > 0 {
            p.none {
                (prose(&format!("Not shown: {left} more, and {others} without `shed` in the rules. `tidegate status` has them.")))
            }
        }
    }
}

fn one_pool(pool: &PoolView, story: &RateHistory) -> Markup {
    let steps = story.pools.get(&*pool.pool).map(Vec::as_slice).unwrap_or_default();
    let busy = [line("utilization", story, steps, |step: &PoolStep| step.utilization)];
    let severe = [line("severity", story, steps, |step: &PoolStep| Some(step.severity))];
    let chart =
        |lines: &[ChartLine], title: &str, now: &str, (least, most): (f32, &str), scale: [&str; 2]| {
            let label = format!("{title} over the last ten minutes: now {now}, at most {most}");
            frame(scale, &draw_lines("middle", &label, TEN_MINUTES, (least, 1.0), lines), &SPAN)
        };
    let signed = |severity: f64| format!("{severity:.2}").replace('-', "\u{2212}");
    let (u, s) = (pool.utilization.map_or_else(|| "unknown".to_owned(), percent), signed(pool.severity));
    let most_u = percent(f64::from(largest(&busy, 0.0)));
    let (most_s, least_s) = (signed(largest(&severe, SEVERITY_MIN).into()), signed(SEVERITY_MIN.into()));
    let slots = pool.slots.map_or_else(|| "unknown".to_owned(), |slots| count(slots.into()));
    let chances = pool.shed_probabilities.iter().filter(|(_, chance)| *chance > 0.0).enumerate();
    html! {
        article {
            h3 { (name(&pool.pool)) @if pool.braking { " " span.badge.bad { "✖ the brake is on" } } }
            p.facts {
                (count(pool.busy.into())) " of " (slots) " slots busy"
                @for (place, (priority, chance)) in chances {
                    (if place == 0 { "; refuses " } else { ", " }) (percent(*chance)) " of " (name(priority))
                }
            }
            h4 { "utilization " strong { (u) } }
            (chart(&busy, "Utilization", &u, (0.0, &most_u), ["100 %", "0"]))
            h4 { "s " strong { (s) } " " span.more { "sheds" @if pool.severity <= 0.0 { " nothing" } } }
            (chart(&severe, "s", &s, (SEVERITY_MIN, &most_s), ["1", &least_s]))
        }
    }
}

/// Lists the rules with passed, refused and would-refuse requests per second, the busiest first.
fn rules(status: &DaemonStatus, story: &RateHistory) -> Markup {
    let mut rules = story.busiest_first(&status.counts);
    rules.truncate(RULES_SHOWN);
    if rules.is_empty() {
        return html! { p.none { "No rule is in force: everything is allowed." } };
    }
    let mut caption =
        format!("Requests a second, over the last {:.0}\u{a0}s; the busiest first", story.seconds);
    let (all, left) = (status.rules.count(), status.rules.count().saturating_sub(rules.len() as u64));
    if left > 0 {
        let (left, all, are) = (count(left), count(all), if left == 1 { "is" } else { "are" });
        caption += &format!("; {left} of {all} {are} not shown: `tidegate status` has those that were asked");
    }
    let rows = rules
        .iter()
        .map(|(rule, rule_history)| rule_row(rule, rule_history.unwrap_or(&RuleHistory::default()), story));
    html! {
        (table("rules", &caption, &["Rule"], &["passed", "refused", "would refuse", "Ten minutes"], rows))
        (legend(&[("passed", "passed"), ("refused", "refused"), ("would", "would refuse")]))
    }
}

fn rule_row(rule: &RuleStatus, rule_history: &RuleHistory, story: &RateHistory) -> Markup {
    let [passed, refused, would_refuse] = rule_history.now;
    let class = |number: f32, class: &'static str| if number > 0.0 { class } else { "number" };
    let mode = rule.mode.as_deref().filter(|mode| *mode != "enforce");
    html! {
        th scope="row" {
            (rule_name(&rule.totals.domain, &rule.totals.rule))
            @if let Some(mode) = mode { " " span class={ "badge " (mode) } { (mode) } }
        }
        td.number { (rate(passed)) }
        td class=(class(refused, "number some refused")) { (rate(refused)) }
        td class=(class(would_refuse, "number some would")) { (rate(would_refuse)) }
        td.picture { (rule_chart(rule_history, story)) }
    }
}

/// Draws a line for each outcome, from pairs of steps: a small chart shows no more.
fn rule_chart(rule_history: &RuleHistory, story: &RateHistory) -> Markup {
    let line = |(outcome, class)| {
        let (_, points) = line(class, story, &rule_history.steps, |step| step.get::<usize>(outcome).copied());
        let mean = |pair: &[(f32, f32)]| {
            let sum: f32 = pair.iter().map(|(_, value)| value).sum();
            (pair.last().map(|(ago, _)| *ago).unwrap_or_default(), sum / pair.len() as f32)
        };
        (class, points.chunks(2).map(mean).collect::<Vec<_>>())
    };
    let mut lines = ["passed", "refused", "would"].into_iter().enumerate().map(line).collect::<Vec<_>>();
    lines.retain(|line| largest(std::slice::from_ref(line), 0.0) > 0.0);
    let most = largest(&lines, 0.0);
    let label = format!("at most {} a second in ten minutes", rate(most));
    match lines.is_empty() {
        true => html! { span.quiet { "quiet" } },
        false => draw_lines("small", &label, TEN_MINUTES, (0.0, most), &lines),
    }
}

/// Shows the callers with the most requests and refusals: digests, and text only if a rule allows it.
fn callers(status: &DaemonStatus) -> Markup {
    let callers = &status.callers;
    html! {
        div.columns {
            (ranking("Most refused", &callers.refused))
            (ranking("Busiest", &callers.busiest))
            @if !callers.would_refuse.is_empty() { (ranking("Most would-be refused", &callers.would_refuse)) }
        }
        p.none { (prose(CALLERS_NOTE)) }
    }
}

fn ranking(caption: &str, callers: &[Caller]) -> Markup {
    if callers.is_empty() {
        return html! { div { p.caption { (caption) } p.none { "no caller stands out" } } };
    }
    let rows = callers.iter().take(ROWS_SHOWN).map(|caller| {
        let caller_name = match caller.text {
            Some(_) => name(caller.name()),
            None => html! { code title=(caller.digest) { (caller.name()) } },
        };
        html! {
            th scope="row" { (caller_name) }
            td.name { (name(&format!("{}/{}", caller.domain, caller.rule))) }
            td { (name(caller.unit.as_deref().unwrap_or(UNIT_REQUESTS))) }
            td.number { (count(caller.count)) }
            td.number { (count(caller.count.saturating_add(caller.error))) }
        }
    });
    table("", caption, &["Caller", "Rule", "Unit"], &["About", "Or up to"], rows)
}

/// Shows active switches and blocks with their origin, and the latest changes.
fn overrides(status: &DaemonStatus) -> Markup {
    let (overrides, changes) = (&status.switches.held, &status.switches.changes);
    let by = |by: &str, fleet: bool| html! { (by) @if fleet { ", on all hosts" } };
    let until = |at: &Option<String>| at.as_deref().map_or_else(|| "it is switched back".render(), time);
    let switches = overrides.switches.iter().map(|switch| {
        let rule = switch.rule.as_deref().map_or_else(|| "everything".render(), name);
        vec![rule, html! { "to " (switch.mode) }, by(&switch.by, switch.fleet), until(&switch.until)]
    });
    let blocks = overrides.blocks.iter().map(|block| {
        let digest = html! { code { (block.key.get(..16).unwrap_or(&block.key)) } };
        let key = block.text.as_deref().map_or(digest, name);
        vec![name(&block.rule), key, by(&block.by, block.fleet), until(&block.until)]
    });
    let changes =
        changes.iter().map(|change| vec![time(&change.at), change.by.render(), change.what.render()]);
    let tables = html! {
        (overrides_table("Switches", &["What", "Switched", "By", "Until"], switches))
        (overrides_table("Keys blocked by hand", &["Rule", "Key", "By", "Until"], blocks))
        (overrides_table("Last changes", &["When", "By", "What"], changes))
    };
    let content = html! { div.columns { (tables) } };
    if tables.0.is_empty() { tables } else { section("held", "Over the rules", &content) }
}

fn overrides_table(
    caption: &str,
    headings: &[&str],
    rows: impl ExactSizeIterator<Item = Vec<Markup>>,
) -> Markup {
    let caption = match (rows.len(), rows.len().saturating_sub(ROWS_SHOWN)) {
        (0, _) => return html! {},
        (_, 0) => caption.to_owned(),
        (_, left) if headings.contains(&"When") => format!("{caption}; {left} more: `GET /switches`"),
        (_, left) => format!("{caption}; {left} more: `tidegate switch`"),
    };
    let row = |row: Vec<Markup>| {
        let mut cells = row.into_iter();
        html! { @for cell in cells.by_ref().take(1) { th scope="row" { (cell) } } @for cell in cells { td.name { (cell) } } }
    };
    table("", &caption, headings, &[], rows.take(ROWS_SHOWN).map(row))
}

/// A moment to the second, with its day.
fn time(at: &str) -> Markup {
    html! { time datetime=(at) { (at.replace('T', " ").replace('Z', " UTC")) } }
}

fn leases(status: &DaemonStatus) -> [(&'static str, String); 7] {
    let leases = &status.leases;
    let not_held = leases.not_held.ended + leases.not_held.foreign + leases.not_held.unknown;
    [
        ("held", count(leases.live)),
        ("in sessions", count(status.sessions)),
        ("released", count(leases.released)),
        ("expired", count(leases.expired)),
        ("ended with their process", count(leases.session)),
        ("abandoned", count(leases.abandoned)),
        ("released, but not held", count(not_held)),
    ]
}

fn fleet(part: &FleetStatusPart) -> [(&'static str, String); 9] {
    let fleet = &part.summary;
    [
        ("this host", format!("`{}`", fleet.host)),
        ("Redis", if fleet.linked { "✔ up" } else { "✖ down" }.to_owned()),
        ("last reply", fleet.stale_s.map_or_else(|| "never".to_owned(), |age| format!("{age:.1} s ago"))),
        (
            "round trip",
            match fleet.stale_s {
                None => "not measured yet".to_owned(),
                Some(_) => format!("{:.2}\u{a0}ms", fleet.round_trip_us as f64 / 1e3),
            },
        ),
        ("hosts", format!("{} alive, {} counted", count(fleet.alive), count(fleet.counted))),
        ("rules that share", count(part.rules)),
        ("keys in sync", count(fleet.keys)),
        ("cells a second", count(fleet.cells_per_s)),
        ("admitted beyond budgets", count(fleet.excess)),
    ]
}

fn memory(status: &DaemonStatus) -> [(&'static str, String); 6] {
    let (memory, unmatched) = (&status.memory, &status.unmatched);
    let written = match status.state.last_write {
        0 => "nothing is kept".to_owned(),
        at => format!("{} ago", span(status.age(at as f64))),
    };
    [
        ("tables", format!("{} of {}", bytes(memory.bytes), bytes(memory.max_bytes))),
        ("keys", count(memory.keys)),
        ("dropped for want of room", count(memory.evictions)),
        ("last written to disk", written),
        ("requests without a domain", count(unmatched.domain)),
        ("requests without a rule", count(unmatched.rule)),
    ]
}

/// Each unreadable signal of each pool is one warning.
const WARNINGS_SHOWN: usize = 12;

/// The time range of the charts, in seconds, and the axis labels below them.
const TEN_MINUTES: f32 = 600.0;
const SPAN: [&str; 3] = ["10 minutes ago", "5", "now"];

/// Two charts each: an operator reads no more.
const POOLS_SHOWN: usize = 8;

/// A page of those that matter just now, of some 60 KiB at most.
const RULES_SHOWN: usize = 40;

const CALLERS_NOTE: &str = "Units of cost, fading over some ten minutes. A caller is a digest, but for what a rule names in \
                            `show_keys`.";

/// Rows of callers, switches, blocks and changes.
const ROWS_SHOWN: usize = 10;

/// The lowest severity of the shedding controller: -28/120.
const SEVERITY_MIN: f32 = -28.0 / 120.0;

#[cfg(test)]
mod tests;
