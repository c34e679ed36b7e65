//! One proposed limit, and its text in a rules file.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::census::CallerAttributes;
use super::{Args, CliError, failed, play};
use crate::clock::Micros;
use crate::engine::RuleTotals;
use crate::rules::{Problem, read_text, read_with_text, shown};
use crate::terms::{count, counted};
use crate::trace::player::Player;
use crate::trace::recording::directory;
use crate::trace::stage::ReplayStage;
use crate::trace::summary::TextTable;

/// A token bucket for each caller of a key, and its refusals in the trace.
#[derive(Clone, Debug)]
pub(super) struct Proposal<'k> {
    name: String,
    pub(super) key: &'k CallerAttributes,
    pub(super) window: Duration,
    /// The share of callers that it suffices for.
    pub(super) share: CallerShare,
    /// Requests per window.
    pub(super) count: u64,
    pub(super) burst: u64,
    /// Requests that it counted, and those that it would have refused.
    requests: u64,
    refused: u64,
    /// Callers, likewise; the numbers are too high if callers could not be distinguished.
    callers: u64,
    callers_refused: u64,
}

pub(super) type CallerShare = (&'static str, f64);

impl<'k> Proposal<'k> {
    pub(super) fn new(
        key: &'k CallerAttributes,
        window: Duration,
        share: CallerShare,
        count: u64,
    ) -> Proposal<'k> {
        let of_key = key.join("-");
        // A name has at most 64 bytes; the other parts take at most 20.
        let of_key = of_key.get(..of_key.floor_char_boundary(NAME_BYTES_OF_KEY)).unwrap_or_default();
        let name = format!("{of_key}-per-{}-{}", unit(window), share.0);
        let (burst, requests, refused, callers, callers_refused) = Default::default();
        Proposal { name, key, window, share, count, burst, requests, refused, callers, callers_refused }
    }

    /// Returns a rate such as `20/min`.
    fn rate(&self) -> String {
        format!("{}/{}", self.count, unit(self.window))
    }

    /// Whether key, window, rate and burst are equal.
    pub(super) fn is_equal(&self, other: &Proposal<'_>) -> bool {
        self.is_like(other) && self.count == other.count && self.burst == other.burst
    }

    pub(super) fn is_like(&self, other: &Proposal<'_>) -> bool {
        self.key == other.key && self.window == other.window
    }

    pub(super) fn share_refused(&self) -> f64 {
        share(self.refused, self.requests)
    }

    /// Returns the rule, in shadow. A JSON string is valid YAML.
    fn yaml(&self) -> String {
        let key: Vec<String> = self.key.iter().map(|name| json!(name).to_string()).collect();
        format!(
            "  - {{name: {}, key: [{}], rate: {}, burst: {}, mode: shadow}}\n",
            json!(self.name),
            key.join(", "),
            self.rate(),
            self.burst
        )
    }
}

/// Formats a window as in a rate: `s`, `15min`.
fn unit(window: Duration) -> String {
    let unit = UNITS.into_iter().find(|(seconds, _)| window.as_secs().is_multiple_of(*seconds));
    let (seconds, name) = unit.unwrap_or((1, "s"));
    match window.as_secs() / seconds {
        1 => name.to_owned(),
        times => format!("{times}{name}"),
    }
}

/// Units of rates, longest first.
const UNITS: [(u64, &str); 4] = [(86_400, "day"), (3_600, "h"), (60, "min"), (1, "s")];

fn file(domain: &str, rules: &str) -> String {
    format!("domain: {}\nlimits:\n{rules}", json!(domain))
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
pub(super) struct Suggestions<'s> {
    pub(super) domain: &'s str,
    pub(super) lines: u64,
    pub(super) span: Duration,
    pub(super) keys: &'s [CallerAttributes],
    pub(super) proposals: &'s [Proposal<'s>],
    pub(super) remarks: &'s [String],
}

impl Suggestions<'_> {
    pub(super) fn text(&self) -> String {
        let keys: Vec<String> = self.keys.iter().map(|key| shown(&key.join(","))).collect();
        let mut text = format!(
            "{} over {}, the domain {}, counted by {}\n",
            counted(self.lines, "line"),
            Micros::from(self.span),
            shown(self.domain),
            keys.join(" and by ")
        );
        for remark in self.remarks {
            text += &format!("{remark}\n");
        }
        let rows = self.proposals.iter().map(|proposal| {
            let Proposal { requests, refused, callers, callers_refused, .. } = *proposal;
            vec![
                proposal.name.clone(),
                proposal.rate(),
                proposal.burst.to_string(),
                count(refused),
                percent(refused, requests),
                count(callers_refused),
                percent(callers_refused, callers),
            ]
        });
        let headings = ["rule", "rate", "burst", "refused", "of requests", "callers refused", "of callers"];
        let table = TextTable::new(&headings, rows).shown();
        text + &table.unwrap_or_else(|| "no limit refuses so little".to_owned())
    }

    pub(super) fn json(&self) -> Value {
        let proposals = self.proposals.iter().map(|proposal| {
            let Proposal { name, key, window, share, burst, requests, refused, .. } = proposal;
            json!({
                "rule": name, "key": key, "window_s": window.as_secs(), "enough_for": share.0,
                "rate": proposal.rate(), "burst": burst, "requests": requests, "refused": refused,
                "callers": proposal.callers, "callers_refused": proposal.callers_refused,
            })
        });
        json!({
            "domain": self.domain, "lines": self.lines, "span_s": self.span.as_secs_f64(), "keys": self.keys,
            "proposals": proposals.collect::<Vec<_>>(), "remarks": self.remarks,
        })
    }

    /// Returns a rules file; the comment above each rule contains its refusals in this trace.
    pub(super) fn yaml(&self, trace: &Path) -> String {
        let rules = self.proposals.iter().map(|proposal| {
            format!(
                "  # would have refused {} of {} and {} of {}\n{}",
                count(proposal.refused),
                counted(proposal.requests, "request"),
                count(proposal.callers_refused),
                counted(proposal.callers, "caller"),
                proposal.yaml()
            )
        });
        let rules: String = rules.collect();
        // Quoted, because a file name may contain a line feed.
        format!(
            "# By `tidegate suggest` from {:?}. All are in shadow and refuse no request: keep one for\n# each key, look at it \
             for a while, then take its `mode` away.\n{}",
            trace.display().to_string(),
            file(self.domain, if rules.is_empty() { "  []\n" } else { &rules })
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

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Returns the proposals that are valid rules. Reports the others as remarks.
pub(super) fn readable<'k>(proposals: Vec<Proposal<'k>>, remarks: &mut Vec<String>) -> Vec<Proposal<'k>> {
    let is_readable = |proposal: &Proposal<'_>| !read_text(FILE, &file("any", &proposal.yaml())).has_errors();
    let (readable, others): (Vec<_>, Vec<_>) = proposals.into_iter().partition(is_readable);
    remarks.extend(others.iter().map(|proposal| {
        let (rate, burst, name) = (proposal.rate(), proposal.burst, shown(&proposal.name));
        format!("left out, for no rule can say it: {rate}, burst {burst} ({name})")
    }));
    readable
}

/// Plays the trace with all proposals in shadow, beside the rules that stay in force.
pub(super) fn judge<'k>(
    args: &Args,
    domain: &str,
    mut proposals: Vec<Proposal<'k>>,
    remarks: &mut Vec<String>,
) -> Result<Vec<Proposal<'k>>, CliError> {
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
    for proposal in &mut proposals {
        let name = proposal.name.as_str();
        let totals = totals.rules.iter().find(|rule| *rule.domain == *domain && *rule.rule == *name);
        let [passed, _, refused] = totals.map(RuleTotals::outcomes).unwrap_or_default();
        (proposal.requests, proposal.refused) = (passed + refused, refused);
        if let Some(record) = stage.player.records.find(domain, name) {
            proposal.callers = record.callers.count().0;
            proposal.callers_refused = record.refused.count().0;
        }
    }
    Ok(proposals)
}

/// The file name of the proposals in error messages.
const FILE: &str = "suggested.yaml";
