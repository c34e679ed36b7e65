//! The sections below the health overview: decisions, pools, rules, callers, switches, leases, fleet and memory.

use std::time::Duration;

use maud::{Markup, Render, html};

use crate::admin::history::{PoolStep, RuleStory, Story};
use crate::admin::status::{CallerStatus, DaemonStatus, PoolStatus, RuleStatus};
use crate::page::{
    ChartLine, bytes, count, draw_lines, frame, largest, legend, name, percent, rate, rule_name, span, table,
};

pub(super) fn all(status: &DaemonStatus, story: &Story) -> Markup {
    html! {
        (section("decisions", "Decisions", decisions(status, story)))
        @if status.pools.iter().any(|pool| pool.watched) { (section("pools", "Pools", pools(status, story))) }
        (section("rules", "Rules", rules(status, story)))
        (section("callers", "Callers", callers(status)))
        (held(status))
        div.columns {
            (facts("leases", "Leases", leases(status)))
            @if let Some(fleet) = fleet(status) { (facts("fleet", "Fleet", fleet)) }
            (facts("memory", "Memory", memory(status)))
        }
    }
}

fn section(id: &str, title: &str, content: Markup) -> Markup {
    html! { section aria-labelledby=(id) { h2 id=(id) { (title) } (content) } }
}

fn facts<'f>(id: &str, title: &str, facts: impl IntoIterator<Item = (&'f str, Markup)>) -> Markup {
    let list = html! { dl.facts { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } } };
    section(id, title, list)
}

/// Returns a line over the last steps of the history: a name that is new has fewer steps than the history.
fn line<S>(class: &'static str, story: &Story, steps: &[S], of: impl Fn(&S) -> Option<f32>) -> ChartLine {
    let skipped = story.steps.len().saturating_sub(steps.len());
    let ages = story.steps.iter().skip(skipped).map(|(ago, _)| *ago);
    (class, ages.zip(steps).filter_map(|(ago, step)| Some((ago, of(step)?))).collect())
}

fn decisions(status: &DaemonStatus, story: &Story) -> Markup {
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
fn pools(status: &DaemonStatus, story: &Story) -> Markup {
    let (watched, others): (Vec<_>, Vec<_>) = status.pools.iter().partition(|pool| pool.watched);
    let (left, others) = (watched.len().saturating_sub(POOLS_SHOWN), others.len());
    html! {
        div.pools { @for pool in watched.iter().take(POOLS_SHOWN) { (one_pool(pool, story)) } }
        @if left + others > 0 {
            p.none {
                "Not shown: " (left) " more, and " (others) " without " code { "shed" } " in the rules. "
                code { "tidegate status" } " has them."
            }
        }
    }
}

fn one_pool(pool: &PoolStatus, story: &Story) -> Markup {
    let steps = story.pools.get(&*pool.pool).map(Vec::as_slice).unwrap_or_default();
    let busy = [line("utilization", story, steps, |step: &PoolStep| step.utilization)];
    let severe = [line("severity", story, steps, |step: &PoolStep| Some(step.severity))];
    let chart =
        |lines: &[ChartLine], title: &str, now: &str, (least, most): (f32, &str), scale: [&str; 2]| {
            let label = format!("{title} over the last ten minutes: now {now}, at most {most}");
            frame(scale, &draw_lines("middle", &label, TEN_MINUTES, (least, 1.0), lines), &SPAN)
        };
    let signed = |severity: f64| format!("{severity:.2}").replace('-', "\u{2212}");
    let (u, s) = (pool.u.map_or_else(|| "unknown".to_owned(), percent), signed(pool.severity()));
    let most_u = percent(f64::from(largest(&busy, 0.0)));
    let (most_s, least_s) = (signed(largest(&severe, SEVERITY_MIN).into()), signed(SEVERITY_MIN.into()));
    let slots = pool.slots.map_or_else(|| "unknown".to_owned(), count);
    let chances = pool.chances.iter().filter(|(_, chance)| *chance > 0.0).enumerate();
    html! {
        article {
            h3 { (name(&pool.pool)) @if pool.braking { " " span.badge.bad { "✖ the brake is on" } } }
            p.facts {
                (count(pool.busy)) " of " (slots) " slots busy"
                @for (place, (priority, chance)) in chances {
                    (if place == 0 { "; refuses " } else { ", " }) (percent(*chance)) " of " (name(priority))
                }
            }
            h4 { "utilization " strong { (u) } }
            (chart(&busy, "Utilization", &u, (0.0, &most_u), ["100 %", "0"]))
            h4 { "s " strong { (s) } " " span.more { "sheds" @if pool.severity() <= 0.0 { " nothing" } } }
            (chart(&severe, "s", &s, (SEVERITY_MIN, &most_s), ["1", &least_s]))
        }
    }
}

/// Lists the rules with passed, refused and would-refuse requests per second, the busiest first.
fn rules(status: &DaemonStatus, story: &Story) -> Markup {
    let idle = RuleStory::default();
    let history =
        |rule: &RuleStatus| story.rules.get(&format!("{}/{}", rule.domain, rule.rule)).unwrap_or(&idle);
    let ever = |rule: &RuleStatus| rule.outcomes().iter().sum::<u64>();
    let busy = |story: &RuleStory| story.now.iter().sum::<f32>();
    let rules = status.counts.iter().filter(|rule| !rule.domain.is_empty() || ever(rule) > 0);
    let mut rules: Vec<(&RuleStatus, &RuleStory)> = rules.map(|rule| (rule, history(rule))).collect();
    // Refusals weigh as much as passes: an operator looks for either. Then by total activity, then by name.
    rules.sort_by(|(one, one_now), (other, other_now)| {
        busy(other_now).total_cmp(&busy(one_now)).then_with(|| ever(other).cmp(&ever(one)))
    });
    rules.truncate(RULES_SHOWN);
    if rules.is_empty() {
        return html! { p.none { "No rule is in force: everything is allowed." } };
    }
    let left = status.rules.count().saturating_sub(rules.len() as u64);
    let caption = html! {
        "Requests a second, over the last " (format!("{:.0}\u{a0}s", story.seconds)) "; the busiest first"
        @if left > 0 {
            "; " (count(left)) " of " (count(status.rules.count())) " " (if left == 1 { "is" } else { "are" })
            " not shown: " code { "tidegate status" } " has those that were asked"
        }
    };
    let numbers = ["passed", "refused", "would refuse"].map(|name| ("number", name));
    let headings: Vec<_> =
        [("", "Rule")].into_iter().chain(numbers).chain([("picture", "Ten minutes")]).collect();
    html! {
        (table("rules", caption, &headings, rules.iter().map(|(rule, told)| rule_row(rule, told, story))))
        (legend(&[("passed", "passed"), ("refused", "refused"), ("would", "would refuse")]))
    }
}

fn rule_row(rule: &RuleStatus, told: &RuleStory, story: &Story) -> Markup {
    let [passed, refused, would_refuse] = told.now;
    let class = |number: f32, class: &'static str| if number > 0.0 { class } else { "number" };
    let mode = rule.mode.as_deref().filter(|mode| *mode != "enforce");
    html! {
        th scope="row" {
            (rule_name(&rule.domain, &rule.rule))
            @if let Some(mode) = mode { " " span class={ "badge " (mode) } { (mode) } }
        }
        td.number { (rate(passed)) }
        td class=(class(refused, "number some refused")) { (rate(refused)) }
        td class=(class(would_refuse, "number some would")) { (rate(would_refuse)) }
        td.picture { (rule_chart(told, story)) }
    }
}

/// Draws a line for each outcome, from pairs of steps: a small chart shows no more.
fn rule_chart(told: &RuleStory, story: &Story) -> Markup {
    let line = |(outcome, class)| {
        let (_, points) = line(class, story, &told.steps, |step| step.get::<usize>(outcome).copied());
        let mean = |pair: &[(f32, f32)]| {
            let sum: f32 = pair.iter().map(|(_, value)| value).sum();
            (pair.last().map(|(ago, _)| *ago).unwrap_or_default(), sum / pair.len() as f32)
        };
        (class, points.chunks(2).map(mean).collect::<Vec<_>>())
    };
    let lines = ["passed", "refused", "would"].into_iter().enumerate().map(line);
    let lines: Vec<ChartLine> =
        lines.filter(|(_, points)| points.iter().any(|(_, value)| *value > 0.0)).collect();
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
        p.none {
            "Units of cost, fading over some ten minutes. A caller is a digest, but for what a rule names in "
            code { "show_keys" } "."
        }
    }
}

fn ranking(caption: &str, callers: &[CallerStatus]) -> Markup {
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
            td.number { (count(caller.count)) }
            td.number { (count(caller.error)) }
        }
    });
    let headings =
        [("", "Caller"), ("", "Rule"), ("number", "Units, at least"), ("number", "Up to so many more")];
    table("", caption, &headings, rows)
}

/// Shows active switches and blocks with their origin, and the latest changes.
fn held(status: &DaemonStatus) -> Markup {
    let (held, changes) = (&status.switches.held, &status.switches.changes);
    let by = |by: &str, fleet: bool| html! { (by) @if fleet { ", on all hosts" } };
    let until = |at: &Option<String>| at.as_deref().map_or_else(|| "it is switched back".render(), time);
    let switches = held.switches.iter().map(|switch| {
        let rule = switch.rule.as_deref().map_or_else(|| "everything".render(), name);
        vec![rule, html! { "to " (switch.mode) }, by(&switch.by, switch.fleet), until(&switch.until)]
    });
    let blocks = held.blocks.iter().map(|block| {
        let digest = html! { code { (block.key.get(..16).unwrap_or(&block.key)) } };
        let key = block.text.as_deref().map_or(digest, name);
        vec![name(&block.rule), key, by(&block.by, block.fleet), until(&block.until)]
    });
    let changes =
        changes.iter().map(|change| vec![time(&change.at), change.by.render(), change.what.render()]);
    let tables = html! {
        (held_table("Switches", &["What", "Switched", "By", "Until"], switches))
        (held_table("Keys blocked by hand", &["Rule", "Key", "By", "Until"], blocks))
        (held_table("Last changes", &["When", "By", "What"], changes))
    };
    let content = html! { div.columns { (tables) } };
    if tables.0.is_empty() { tables } else { section("held", "Over the rules", content) }
}

fn held_table(caption: &str, headings: &[&str], rows: impl ExactSizeIterator<Item = Vec<Markup>>) -> Markup {
    let (all, left) = (rows.len(), rows.len().saturating_sub(ROWS_SHOWN));
    let caption = html! { (caption) @if left > 0 { "; " (left) " more: " code { "tidegate switch" } } };
    let headings: Vec<_> = headings.iter().map(|heading| ("", *heading)).collect();
    let row = |row: Vec<Markup>| {
        let mut cells = row.into_iter();
        html! { @if let Some(first) = cells.next() { th scope="row" { (first) } } @for cell in cells { td.name { (cell) } } }
    };
    if all == 0 {
        html! {}
    } else {
        table("", caption, &headings, rows.take(ROWS_SHOWN).map(row))
    }
}

/// A moment to the second, with its day.
fn time(at: &str) -> Markup {
    html! { time datetime=(at) { (at.replace('T', " ").replace('Z', " UTC")) } }
}

fn leases(status: &DaemonStatus) -> [(&'static str, Markup); 7] {
    let leases = &status.leases;
    let not_held = leases.not_held.ended + leases.not_held.foreign + leases.not_held.unknown;
    let counts = [
        ("held", leases.held),
        ("by processes", status.sessions),
        ("released", leases.released),
        ("expired", leases.expired),
        ("ended with their process", leases.session),
        ("abandoned", leases.abandoned),
        ("given back, but not held", not_held),
    ];
    counts.map(|(name, number)| (name, count(number).render()))
}

fn fleet(status: &DaemonStatus) -> Option<[(&'static str, Markup); 9]> {
    let part = status.fleet.as_ref()?;
    let fleet = &part.summary;
    let age = fleet.stale_s.map_or_else(|| "never".to_owned(), |age| format!("{age:.1} s ago"));
    Some([
        ("this host", html! { code { (fleet.host) } }),
        ("Redis", html! { (if fleet.linked { "✔ heard" } else { "✖ not heard" }) }),
        ("last heard", age.render()),
        ("round trip", format!("{:.2}\u{a0}ms", fleet.round_trip_us as f64 / 1e3).render()),
        ("hosts", html! { (count(fleet.alive)) " alive, " (count(fleet.hosts)) " counted" }),
        ("rules that share", count(part.rules).render()),
        ("keys in touch", count(fleet.keys).render()),
        ("cells a second", count(fleet.cells_per_s).render()),
        ("admitted beyond budgets", count(fleet.excess).render()),
    ])
}

fn memory(status: &DaemonStatus) -> [(&'static str, Markup); 6] {
    let (memory, unmatched) = (&status.memory, &status.unmatched);
    let started = Duration::try_from_secs_f64(status.started).unwrap_or_default().as_secs();
    let written = match status.state.last_write {
        0 => "nothing is kept".to_owned(),
        at => format!("{} ago", span(Duration::from_secs((started + status.uptime_s).saturating_sub(at)))),
    };
    [
        ("tables", html! { (bytes(memory.bytes)) " of " (bytes(memory.max_bytes)) }),
        ("keys", count(memory.keys).render()),
        ("dropped for want of room", count(memory.evictions).render()),
        ("last written to disk", written.render()),
        ("requests without a domain", count(unmatched.domain).render()),
        ("requests without a rule", count(unmatched.rule).render()),
    ]
}

/// The time range of the charts, in seconds, and the axis labels below them.
const TEN_MINUTES: f32 = 600.0;
const SPAN: [&str; 3] = ["10 minutes ago", "5", "now"];

/// Two charts each: an operator reads no more.
const POOLS_SHOWN: usize = 8;

/// A page of those that matter just now, of some 60 KiB at most.
const RULES_SHOWN: usize = 40;

/// Rows of callers, switches, blocks and changes.
const ROWS_SHOWN: usize = 10;

/// The lowest severity of the shedding controller: -28/120.
const SEVERITY_MIN: f32 = -28.0 / 120.0;
