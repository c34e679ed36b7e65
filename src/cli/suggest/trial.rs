//! Counts the refusals of each proposal: the daemon's own engine plays the trace with all in shadow.

use super::proposal::{Proposal, file};
use super::{Args, CliError, failed, play};
use crate::rules::{Problem, read_text, read_with_text, shown};
use crate::trace::player::Player;
use crate::trace::recording::directory;
use crate::trace::stage::ReplayStage;
use crate::trace::summary::passed;
use crate::trace::table::counted;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct TrialResult {
    pub(super) proposal: Proposal,
    /// Requests that it counted, and those that it would have refused.
    pub(super) requests: u64,
    pub(super) refused: u64,
    /// Callers, likewise; the numbers are too high if callers could not be distinguished.
    pub(super) callers: u64,
    pub(super) callers_refused: u64,
}

impl TrialResult {
    /// Returns the refused share of its requests.
    pub(super) fn share(&self) -> f64 {
        share(self.refused, self.requests)
    }
}

/// Returns a share of a whole; 0 if the whole is 0.
pub(super) fn share(part: u64, whole: u64) -> f64 {
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
        let told: Vec<String> = errors.map(|problem: &Problem| problem.render(false)).collect();
        return Err(failed(format_args!("the rules have errors\n{}", told.join("\n"))));
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
