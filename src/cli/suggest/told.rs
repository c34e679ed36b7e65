//! The proposals: as a table, as JSON, and as a rules file.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::census::CallerAttributes;
use super::proposal::file;
use super::trial::{TrialResult, share};
use crate::rules::shown;
use crate::trace::table::{TextTable, count, counted};

#[derive(Debug)]
pub(super) struct Suggestions {
    pub(super) domain: String,
    pub(super) lines: u64,
    pub(super) span: Duration,
    pub(super) keys: Vec<CallerAttributes>,
    pub(super) shown: Vec<TrialResult>,
    pub(super) remarks: Vec<String>,
}

impl Suggestions {
    pub(super) fn text(&self) -> String {
        let span = humantime::format_duration(Duration::from_secs(self.span.as_secs()));
        let keys: Vec<String> = self.keys.iter().map(|key| shown(&key.text())).collect();
        let mut text = format!(
            "{} over {span}, the domain {}, counted by {}\n",
            counted(self.lines, "line"),
            shown(&self.domain),
            keys.join(" and by ")
        );
        for remark in &self.remarks {
            text += &format!("{remark}\n");
        }
        if self.shown.is_empty() {
            return text + "no limit refuses so little";
        }
        let mut table = TextTable::new(&[
            "rule",
            "rate",
            "burst",
            "refused",
            "of requests",
            "callers refused",
            "of callers",
        ]);
        for judged in &self.shown {
            let TrialResult { proposal, requests, refused, callers, callers_refused } = judged;
            table.push(vec![
                proposal.name.clone(),
                proposal.rate(),
                proposal.burst.to_string(),
                count(*refused),
                percent(*refused, *requests),
                count(*callers_refused),
                percent(*callers_refused, *callers),
            ]);
        }
        text + &table.to_string()
    }

    pub(super) fn json(&self) -> Value {
        let proposals = self.shown.iter().map(|judged| {
            let TrialResult { proposal, requests, refused, callers, callers_refused } = judged;
            json!({
                "rule": proposal.name, "key": proposal.key.attributes, "window_s": proposal.window.seconds(),
                "enough_for": proposal.share.0, "rate": proposal.rate(), "burst": proposal.burst,
                "requests": requests, "refused": refused, "callers": callers, "callers_refused": callers_refused,
            })
        });
        json!({
            "domain": self.domain, "lines": self.lines, "span_s": self.span.as_secs_f64(),
            "keys": self.keys.iter().map(|key| &key.attributes).collect::<Vec<_>>(),
            "proposals": proposals.collect::<Vec<_>>(), "remarks": self.remarks,
        })
    }

    /// Returns a rules file; the comment above each rule contains its refusals in this trace.
    pub(super) fn yaml(&self, trace: &Path) -> String {
        let rules = self.shown.iter().map(|judged| {
            let TrialResult { proposal, requests, refused, callers, callers_refused } = judged;
            format!(
                "  # would have refused {} of {} and {} of {}\n{}",
                count(*refused),
                counted(*requests, "request"),
                count(*callers_refused),
                counted(*callers, "caller"),
                proposal.yaml()
            )
        });
        let rules: String = rules.collect();
        // Quoted, because a file name may contain a line feed.
        format!(
            "# By `tidegate suggest` from {:?}. All are in shadow and refuse nobody: keep one for\n# each key, look at it \
             for a while, then take its `mode` away.\n{}",
            trace.display().to_string(),
            file(&self.domain, if rules.is_empty() { "  []\n" } else { &rules })
        )
    }
}

/// Formats a share in percent, with two decimals.
fn percent(part: u64, whole: u64) -> String {
    let hundredths = share(part, whole) * 100.0;
    match part {
        0 => "0 %".to_owned(),
        _ if hundredths < 0.01 => "< 0.01 %".to_owned(),
        _ => format!("{hundredths:.2} %"),
    }
}
