//! Queries a running daemon for the counts of matching rules and the state of fleet keys. It charges nothing.

use std::io::{Result, Write};

use serde_json::{Map, Value, json};

use super::finding::{Counted, ExplainFinding, Explained};
use crate::cli::admin_client::{AdminClient, AdminFailure};
use crate::cli::fleet;
use crate::cli::status::page::{list, number, passed, word};
use crate::rules::Rule;
use crate::trace::table::count;

/// The daemon's answer for each rule, as JSON.
pub(super) type Live = Map<String, Value>;

pub(super) fn ask(explained: &Explained<'_>, admin: &AdminClient) -> std::result::Result<Live, AdminFailure> {
    let status = admin.get_json("/status")?;
    let domain = explained.domain.name();
    let judging = explained
        .rules
        .iter()
        .filter_map(|ExplainFinding { rule, stands }| Some((rule, stands.as_ref().ok()?)));
    let of = |(rule, counted): (&&Rule, &Counted)| {
        let counts = list(&status, "/counts");
        let counts = counts
            .iter()
            .find(|counts| word(counts, "/domain") == domain && word(counts, "/rule") == &*rule.name);
        let counts = counts.map(|counts| {
            json!({
                "passed": passed(counts),
                "refused": number(counts, "/refuse"),
                "would_refuse": number(counts, "/would_refuse"),
            })
        });
        let share = rule.fleet.map(|_| share(admin, &format!("{domain}/{}", rule.name), counted));
        (rule.name.to_string(), json!({"counts": counts, "share": share.flatten()}))
    };
    Ok(judging.map(of).collect())
}

/// Returns this host's state of the key; `None` if the key is not shared, or the daemon has other rules.
fn share(admin: &AdminClient, rule: &str, counted: &Counted) -> Option<Value> {
    admin.post("/fleet/key", &json!({"rule": rule, "key": counted.key})).ok()
}

/// Prints a line for each rule, and one for its fleet budget.
pub(super) fn print(live: &Live, out: &mut dyn Write) -> Result<()> {
    for (rule, told) in live {
        match told.get("counts").filter(|counts| counts.is_object()) {
            Some(counts) => writeln!(
                out,
                "live      {rule}: {} passed, {} refused, {} would be refused, since the daemon started",
                count(number(counts, "/passed")),
                count(number(counts, "/refused")),
                count(number(counts, "/would_refuse")),
            )?,
            None => writeln!(out, "live      {rule}: the daemon has no such rule in force")?,
        }
        if let Some(share) = told.get("share").filter(|share| share.is_object()) {
            for line in fleet::here(share) {
                writeln!(out, "          {line}")?;
            }
        }
    }
    Ok(())
}
