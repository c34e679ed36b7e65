//! One proposed limit, and its text in a rules file.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::census::CallerAttributes;
use super::demand::{CallerShare, SufficientRate};
use super::{Args, CliError, WholeSecondsWindow, failed, play};
use crate::clock::Micros;
use crate::rules::{Problem, read_text, read_with_text, shown};
use crate::terms::{count, counted};
use crate::trace::player::Player;
use crate::trace::recording::directory;
use crate::trace::stage::ReplayStage;
use crate::trace::summary::{TextTable, passed};

/// A token bucket for each caller of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Proposal {
    pub(super) name: String,
    pub(super) key: CallerAttributes,
    pub(super) window: WholeSecondsWindow,
    /// The share of callers that it suffices for.
    pub(super) share: CallerShare,
    pub(super) count: u64,
    pub(super) burst: u64,
}

impl Proposal {
    pub(super) fn new(key: &CallerAttributes, rate: &SufficientRate, burst: u64) -> Proposal {
        let SufficientRate { window, share, count, .. } = *rate;
        let of_key = key.attributes.join("-");
        // A name has at most 64 bytes; the other parts take at most 20.
        let of_key = of_key.get(..of_key.floor_char_boundary(NAME_BYTES_OF_KEY)).unwrap_or_default();
        let name = format!("{of_key}-per-{window}-{}", share.0);
        Proposal { name, key: key.clone(), window, share, count, burst }
    }

    /// Returns a rate such as `20/min`.
    pub(super) fn rate(&self) -> String {
        format!("{}/{}", self.count, self.window)
    }

    /// Whether key, window, rate and burst are equal.
    pub(super) fn is_equal(&self, other: &Proposal) -> bool {
        self.is_like(other) && self.count == other.count && self.burst == other.burst
    }

    pub(super) fn is_like(&self, other: &Proposal) -> bool {
        self.key == other.key && self.window == other.window
    }

    /// Returns the rule, in shadow. A JSON string is valid YAML.
    pub(super) fn yaml(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let key: Vec<String> = self.key.attributes.iter().map(|name| quoted(name)).collect();
        format!(
            "  - {{name: {}, key: [{}], rate: {}, burst: {}, mode: shadow}}\n",
            quoted(&self.name),
            key.join(", "),
            self.rate(),
            self.burst
        )
    }
}

pub(super) fn file(domain: &str, rules: &str) -> String {
    format!("domain: {}\nlimits:\n{rules}", serde_json::Value::from(domain))
}

/// Shares of callers that are never refused, from the strictest limit to the loosest.
pub(super) const SHARES: &[CallerShare] = &[("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Finer shares, to find the strictest limit with few enough refusals.
pub(super) const SHARES_FINER: &[CallerShare] = &[
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.5", 0.995),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
    ("max", 1.0),
];

const NAME_BYTES_OF_KEY: usize = 32;

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
        let span = Micros::from(self.span);
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
            "# By `tidegate suggest` from {:?}. All are in shadow and refuse no request: keep one for\n# each key, look at it \
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

#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrialResult {
    pub(super) proposal: Proposal,
    /// Requests that it counted, and those that it would have refused.
    requests: u64,
    refused: u64,
    /// Callers, likewise; the numbers are too high if callers could not be distinguished.
    callers: u64,
    callers_refused: u64,
}

impl TrialResult {
    pub(super) fn share(&self) -> f64 {
        share(self.refused, self.requests)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Returns the proposals that are valid rules. Reports the others as remarks.
pub(super) fn readable(proposals: Vec<Proposal>, remarks: &mut Vec<String>) -> Vec<Proposal> {
    let (readable, others): (Vec<Proposal>, Vec<Proposal>) = proposals
        .into_iter()
        .partition(|proposal| !read_text(FILE, &file("any", &proposal.yaml())).has_errors());
    let left_out = |proposal: Proposal| {
        let (rate, burst) = (proposal.rate(), proposal.burst);
        remarks.push(format!(
            "left out, for no rule can say it: {rate}, burst {burst} ({})",
            shown(&proposal.name)
        ));
    };
    others.into_iter().for_each(left_out);
    readable
}

/// Plays the trace with all proposals in shadow, beside the rules that stay in force.
pub(super) fn judge(
    args: &Args,
    domain: &str,
    mut proposals: Vec<Proposal>,
    remarks: &mut Vec<String>,
) -> Result<Vec<TrialResult>, CliError> {
    if let Some(path) = &args.rules {
        let known = crate::rules::read(path);
        let known = known.domains.iter().find(|known| known.name() == domain);
        for proposal in &mut proposals {
            let is_taken =
                |name: &str| known.is_some_and(|known| known.rules().iter().any(|rule| *rule.name == *name));
            while is_taken(&proposal.name) {
                proposal.name.push_str("-new");
            }
        }
    }
    let rules: String = proposals.iter().map(Proposal::yaml).collect();
    let loaded = read_with_text(args.rules.as_deref(), FILE, &file(domain, &rules));
    if loaded.has_errors() {
        let errors = loaded.problems.iter().filter(|problem| problem.is_error());
        let messages: Vec<String> = errors.map(|problem: &Problem| problem.render(false)).collect();
        return Err(failed(format_args!("the rules have errors\n{}", messages.join("\n"))));
    }
    let player = Player::new(loaded.domains, 0, true);
    let mut stage = ReplayStage::of_rules_that_stay(player, &directory(&args.trace));
    play(args, &mut stage)?;
    remarks.extend(stage.unmatched_hashes());
    let totals = stage.player.totals();
    if totals.evictions > 0 {
        let dropped = counted(totals.evictions, "key");
        remarks.push(format!(
            "{dropped} dropped for lack of memory: more would have been refused, look at fewer keys"
        ));
    }
    let judged = proposals.into_iter().map(|proposal| {
        let name = proposal.name.as_str();
        let totals = totals.rules.iter().find(|rule| *rule.domain == *domain && *rule.rule == *name);
        let (passed, refused) = totals.map_or((0, 0), |totals| (passed(totals), totals.would_refuse));
        let record = stage.player.records.find(domain, name);
        let counts = record.map(|record| (record.callers.count().0, record.refused.count().0));
        let (callers, callers_refused) = counts.unwrap_or_default();
        TrialResult { requests: passed + refused, refused, callers, callers_refused, proposal }
    });
    Ok(judged.collect())
}

/// The file name of the proposals in error messages.
const FILE: &str = "suggested.yaml";
