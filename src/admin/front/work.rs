//! Leases, memory, and how this host stands with others.

use std::fmt::Write;

use serde_json::Value;

use super::health::is;
use crate::admin::told::{number, word};
use crate::page::{EscapedText, bytes, count, span};

pub(super) fn write(status: &Value, page: &mut String) {
    page.push_str("<div class=\"columns\">");
    leases(status, page);
    fleet(status, page);
    memory(status, page);
    page.push_str("</div>");
}

fn leases(status: &Value, page: &mut String) {
    let of = |field: &str| count(number(status, field));
    let not_held = ["ended", "foreign", "unknown"];
    let not_held: u64 = not_held.iter().map(|why| number(status, &format!("/leases/not_held/{why}"))).sum();
    list(
        page,
        ("leases", "Leases"),
        &[
            ("held", of("/leases/held")),
            ("by processes", of("/sessions")),
            ("released", of("/leases/released")),
            ("expired", of("/leases/expired")),
            ("ended with their process", of("/leases/session")),
            ("abandoned", of("/leases/abandoned")),
            ("given back, but not held", count(not_held)),
        ],
    );
}

fn fleet(status: &Value, page: &mut String) {
    let Some(fleet) = status.get("fleet").filter(|fleet| fleet.is_object()) else { return };
    let of = |field: &str| count(number(fleet, field));
    let heard = fleet.pointer("/stale_s").and_then(Value::as_f64);
    list(
        page,
        ("fleet", "Fleet"),
        &[
            ("this host", format!("<code>{}</code>", EscapedText(word(fleet, "/host")))),
            ("Redis", if is(fleet, "/linked") { "✔ heard" } else { "✖ not heard" }.to_owned()),
            ("last heard", heard.map_or_else(|| "never".to_owned(), |age| format!("{age:.1} s ago"))),
            ("round trip", format!("{:.2}\u{a0}ms", number(fleet, "/round_trip_us") as f64 / 1e3)),
            ("hosts", format!("{} alive, {} counted", of("/alive"), of("/hosts"))),
            ("rules that share", of("/rules")),
            ("keys in touch", of("/keys")),
            ("cells a second", of("/cells_per_s")),
            ("admitted beyond budgets", of("/excess")),
        ],
    );
}

fn memory(status: &Value, page: &mut String) {
    let of = |field: &str| number(status, field);
    let written = match of("/state/last_write") {
        0 => "nothing is kept".to_owned(),
        at => format!("{} ago", span(now(status).saturating_sub(at))),
    };
    list(
        page,
        ("memory", "Memory"),
        &[
            ("tables", format!("{} of {}", bytes(of("/memory/bytes")), bytes(of("/memory/max_bytes")))),
            ("keys", count(of("/memory/keys"))),
            ("dropped for want of room", count(of("/memory/evictions"))),
            ("last written to disk", written),
            ("requests without a domain", count(of("/unmatched/domain"))),
            ("requests without a rule", count(of("/unmatched/rule"))),
        ],
    );
}

/// Unix time as the status has it.
fn now(status: &Value) -> u64 {
    let started = status.pointer("/started").and_then(Value::as_f64).unwrap_or_default();
    let started = std::time::Duration::try_from_secs_f64(started).unwrap_or_default();
    started.as_secs() + number(status, "/uptime_s")
}

fn list(page: &mut String, (id, title): (&str, &str), facts: &[(&str, String)]) {
    let _ =
        write!(page, "<section aria-labelledby=\"{id}\"><h2 id=\"{id}\">{title}</h2><dl class=\"facts\">");
    for (what, says) in facts {
        let _ = write!(page, "<div><dt>{what}</dt><dd>{says}</dd></div>");
    }
    page.push_str("</dl></section>");
}
