//! Renders the status as text. Missing fields are left out: the daemon may be of another version.

use std::fmt::Write;

use serde_json::Value;

pub(in crate::cli) use crate::admin::{list, number, word};
use crate::cli::fleet::reserve_in_short;
use crate::cli::switch::held;
use crate::trace::table::{TextTable, count};

pub(in crate::cli) fn text(status: &Value) -> String {
    let mut text = String::new();
    head(status, &mut text);
    let parts = [rules(status), pools(status), callers(status, "refused"), callers(status, "busiest")];
    for part in parts.into_iter().flatten() {
        let _ = write!(text, "\n{part}\n");
    }
    let held = status.get("switches").map(held).unwrap_or_default();
    if !held.is_empty() {
        let _ = write!(text, "\n{}\n", held.join("\n"));
    }
    let warnings = list(status, "/warnings");
    if !warnings.is_empty() {
        text.push('\n');
    }
    for warning in warnings.iter().filter_map(Value::as_str) {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

fn head(status: &Value, text: &mut String) {
    let uptime = std::time::Duration::from_secs(number(status, "/uptime_s"));
    let _ = writeln!(
        text,
        "tidegate {}, mode {}, up {}",
        word(status, "/version"),
        word(status, "/mode"),
        humantime::format_duration(uptime),
    );
    let domains = list(status, "/rules/domains").len();
    let rules: u64 = list(status, "/rules/domains").iter().map(|domain| number(domain, "/rules")).sum();
    let good = if status.pointer("/rules/good") == Some(&Value::Bool(true)) {
        ""
    } else {
        ", NOT all that is written"
    };
    let _ = writeln!(
        text,
        "rules        {rules} in {domains} domains in force{good} ({})",
        word(status, "/rules/path"),
    );
    let _ = writeln!(
        text,
        "decisions    {} allowed, {} limited, {} waited, {} denied, {} shed",
        shown(status, "/decisions/allow"),
        shown(status, "/decisions/limit"),
        shown(status, "/decisions/wait"),
        shown(status, "/decisions/deny"),
        shown(status, "/decisions/shed"),
    );
    let _ = writeln!(
        text,
        "connections  {} of {} processes, {} leases",
        shown(status, "/connections/now"),
        shown(status, "/sessions"),
        shown(status, "/leases/held"),
    );
    let _ = writeln!(
        text,
        "memory       {} KiB of {} KiB, {} keys",
        count(number(status, "/memory/bytes") / 1_024),
        count(number(status, "/memory/max_bytes") / 1_024),
        shown(status, "/memory/keys"),
    );
    if let Some(fleet) = status.get("fleet").filter(|fleet| fleet.is_object()) {
        let _ = writeln!(text, "fleet        {}", crate::cli::fleet::in_a_line(fleet));
    }
}

/// Lists the rules that have counted requests.
fn rules(status: &Value) -> Option<String> {
    let mut table = TextTable::new(&["rule", "passed", "refused", "would refuse", "mode"]);
    let counts = list(status, "/counts");
    let counts = counts.iter().map(|rule| (passed(rule), rule));
    let seen: Vec<_> = counts
        .filter(|(passed, rule)| passed + number(rule, "/refuse") + number(rule, "/would_refuse") > 0)
        .collect();
    for (passed, rule) in &seen {
        table.push(vec![
            name(rule),
            count(*passed),
            shown(rule, "/refuse"),
            shown(rule, "/would_refuse"),
            word(rule, "/mode").to_owned(),
        ]);
    }
    (!seen.is_empty()).then(|| table.to_string())
}

/// Returns the requests that a rule allowed, also those that it would refuse.
pub(in crate::cli) fn passed(rule: &Value) -> u64 {
    ["/pass", "/near", "/over"].iter().map(|field| number(rule, field)).sum()
}

pub(in crate::cli) fn pools(status: &Value) -> Option<String> {
    let pools = list(status, "/pools");
    let mut table =
        TextTable::new(&["pool", "busy", "slots", "u", "s", "brake", "other work at most", "cannot be read"]);
    for pool in pools {
        let slots = pool.pointer("/slots").and_then(Value::as_u64);
        let unreadable: Vec<&str> = list(pool, "/signals")
            .iter()
            .filter(|signal| signal.pointer("/readable") == Some(&Value::Bool(false)))
            .map(|signal| word(signal, "/name"))
            .collect();
        let braking = pool.pointer("/braking") == Some(&Value::Bool(true));
        table.push(vec![
            word(pool, "/pool").to_owned(),
            shown(pool, "/busy"),
            slots.map_or_else(|| "unknown".to_owned(), count),
            pool.pointer("/u")
                .and_then(Value::as_f64)
                .map_or_else(|| "-".to_owned(), |u| format!("{:.0} %", u * 100.0)),
            pool.pointer("/s").and_then(Value::as_f64).map_or_else(|| "-".to_owned(), |s| format!("{s:.3}")),
            if braking { "ON" } else { "off" }.to_owned(),
            reserve_in_short(pool.get("reserve").unwrap_or(&Value::Null)),
            unreadable.join(" "),
        ]);
    }
    (!pools.is_empty()).then(|| table.to_string())
}

pub(in crate::cli) fn callers(status: &Value, kind: &str) -> Option<String> {
    let callers = list(status, &format!("/callers/{kind}"));
    let heading = format!("{kind} callers");
    if callers.is_empty() && kind == "busiest" {
        return Some(format!("{heading}: no caller stands out\n"));
    }
    let mut table = TextTable::new(&[&heading, "units at least", "up to more", "rule"]);
    for caller in callers.iter().take(CALLERS_SHOWN) {
        let digest = word(caller, "/digest");
        let text = caller.pointer("/text").and_then(Value::as_str).map(printable);
        let who = text.unwrap_or_else(|| digest.get(..DIGEST_SHOWN).unwrap_or(digest).to_owned());
        table.push(vec![who, shown(caller, "/count"), shown(caller, "/error"), name(caller)]);
    }
    (!callers.is_empty()).then(|| table.to_string())
}

/// Replaces control characters, so that a caller's text cannot move the cursor.
fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '\u{fffd}' } else { character }).collect()
}

/// Returns the name of a rule with its domain.
pub(in crate::cli) fn name(rule: &Value) -> String {
    match word(rule, "/domain") {
        "" => "(all others)".to_owned(),
        domain => format!("{domain}/{}", word(rule, "/rule")),
    }
}

fn shown(value: &Value, pointer: &str) -> String {
    count(number(value, pointer))
}

/// Callers per table.
const CALLERS_SHOWN: usize = 10;

/// Digits that suffice to distinguish callers by eye.
const DIGEST_SHOWN: usize = 16;
