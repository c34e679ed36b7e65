//! Queries a running daemon for the counts of matching rules and the state of fleet keys. It charges nothing.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

use super::finding::Explained;
use crate::admin::{DaemonStatus, FleetKeyStatus};
use crate::cli::admin_client::{AdminClient, AdminFailure};
use crate::cli::fleet;
use crate::trace::table::count;

/// The daemon's view of each matching rule, by name.
pub(super) type LiveRules = BTreeMap<String, LiveRule>;

/// A rule in a running daemon.
#[derive(Debug, Serialize)]
pub(super) struct LiveRule {
    /// `None` if the daemon has no such rule in force.
    counts: Option<LiveCounts>,
    /// This host's state of the key; `None` if the key is not shared, or the daemon has other rules.
    share: Option<FleetKeyStatus>,
}

#[derive(Debug, Serialize)]
struct LiveCounts {
    passed: u64,
    refused: u64,
    would_refuse: u64,
}

pub(super) fn ask(explained: &Explained<'_>, admin: &AdminClient) -> Result<LiveRules, AdminFailure> {
    let status: DaemonStatus = admin.get_json("/status")?;
    let domain = explained.domain.name();
    let matching =
        explained.rules.iter().filter_map(|found| Some((&found.rule, found.stands.as_ref().ok()?)));
    let live = matching.map(|(rule, counted)| {
        let mut rules = status.counts.iter().map(|rule| &rule.totals);
        let counts =
            rules.find(|counts| *counts.domain == *domain && *counts.rule == *rule.name).map(|counts| {
                let [passed, refused, would_refuse] = counts.outcomes();
                LiveCounts { passed, refused, would_refuse }
            });
        let key = json!({"rule": format!("{domain}/{}", rule.name), "key": counted.key});
        let share = rule.fleet.and_then(|_| admin.post("/fleet/key", &key).ok());
        (rule.name.to_string(), LiveRule { counts, share })
    });
    Ok(live.collect())
}

/// Prints a line for each rule, and one for its fleet budget.
pub(super) fn print(live: &LiveRules, out: &mut dyn Write) -> io::Result<()> {
    for (rule, LiveRule { counts, share }) in live {
        match counts {
            Some(LiveCounts { passed, refused, would_refuse }) => writeln!(
                out,
                "live      {rule}: {} passed, {} refused, {} would be refused, since the daemon started",
                count(*passed),
                count(*refused),
                count(*would_refuse),
            )?,
            None => writeln!(out, "live      {rule}: the daemon has no such rule in force")?,
        }
        for line in share.iter().flat_map(fleet::here) {
            writeln!(out, "          {line}")?;
        }
    }
    Ok(())
}
