//! Computes rates per second from two readings of the status.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::admin::{DaemonStatus, RuleStatus};
use crate::cli::fleet::in_a_line;
use crate::cli::status::page::{name, pools_and_callers};
use crate::cli::switch::held;
use crate::engine::RuleTotals;
use crate::trace::table::{TextTable, count};

/// The status at one time.
#[derive(Debug)]
pub(super) struct TopSample {
    pub(super) at_nanos: u64,
    pub(super) status: DaemonStatus,
}

#[derive(Debug)]
pub(super) struct TopRates<'l> {
    seconds: f64,
    /// Decisions per second, by verdict.
    verdicts: [(&'static str, f64); 5],
    /// The busiest first.
    rules: Vec<RuleRate<'l>>,
    /// The later status.
    status: &'l DaemonStatus,
}

/// Outcomes of one rule, in requests per second.
#[derive(Debug)]
struct RuleRate<'l> {
    domain: &'l str,
    rule: &'l str,
    /// Passed, refused, would refuse.
    outcomes: [f64; 3],
}

impl TopSample {
    pub(super) fn since(&self, before: &TopSample) -> TopRates<'_> {
        let seconds = self.at_nanos.saturating_sub(before.at_nanos).max(1) as f64 / 1e9;
        // Counters of a restarted daemon begin at zero.
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let (now, then) = (&self.status.decisions, &before.status.decisions);
        let verdicts = [
            ("allowed", rate(now.allow, then.allow)),
            ("limited", rate(now.limit, then.limit)),
            ("waited", rate(now.wait, then.wait)),
            ("denied", rate(now.deny, then.deny)),
            ("shed", rate(now.shed, then.shed)),
        ];
        let rules = self.status.counts.iter().map(|RuleStatus { totals: rule, .. }| {
            let mut before = before.status.counts.iter().map(|rule| &rule.totals);
            let known = before.find(|old| old.domain == rule.domain && old.rule == rule.rule);
            let known = known.map_or([0; 3], RuleTotals::outcomes);
            let [passed, refused, would_refuse] = rule.outcomes();
            let outcomes = [rate(passed, known[0]), rate(refused, known[1]), rate(would_refuse, known[2])];
            RuleRate { domain: &rule.domain, rule: &rule.rule, outcomes }
        });
        let all = |rule: &RuleRate<'_>| rule.outcomes.iter().sum::<f64>();
        let mut rules: Vec<_> = rules.filter(|rule| all(rule) > 0.0).collect();
        rules.sort_by(|one, other| all(other).total_cmp(&all(one)));
        rules.truncate(RULES_SHOWN);
        TopRates { seconds, verdicts, rules, status: &self.status }
    }
}

impl TopRates<'_> {
    pub(super) fn text(&self) -> String {
        let verdicts = self.verdicts.map(|(verdict, rate)| format!("{rate:.0} {verdict}")).join(", ");
        let (version, mode) = (&self.status.version, &self.status.mode);
        let mut text = format!("tidegate {version}, mode {mode}: {verdicts} a second\n");
        for line in self.standing() {
            let _ = writeln!(text, "{line}");
        }
        let mut table = TextTable::new(&["rule", "passed/s", "refused/s", "would refuse/s"]);
        for RuleRate { domain, rule, outcomes } in &self.rules {
            let outcomes = outcomes.map(|rate| format!("{rate:.0}"));
            table.push([name(domain, rule)].into_iter().chain(outcomes).collect());
        }
        let _ = write!(text, "\n{table}\n");
        for table in pools_and_callers(self.status).into_iter().flatten() {
            let _ = write!(text, "\n{table}\n");
        }
        text
    }

    /// Returns the lasting conditions that are shown first, as on the daemon's page.
    fn standing(&self) -> Vec<String> {
        let DaemonStatus { leases, fleet, switches, warnings, .. } = self.status;
        let mut lines = vec![format!("{} leases", count(leases.live))];
        lines.extend(fleet.as_ref().map(|fleet| format!("fleet: {}", in_a_line(&fleet.summary))));
        lines.extend(held(switches.off, &switches.held));
        lines.extend(warnings.iter().take(WARNINGS_SHOWN).map(|warning| format!("warning: {warning}")));
        lines
    }

    pub(super) fn json(&self) -> Value {
        let rules =
            self.rules.iter().map(|RuleRate { domain, rule, outcomes: [passed, refused, would_refuse] }| {
                json!({
                    "domain": domain,
                    "rule": rule,
                    "passed_per_s": passed,
                    "refused_per_s": refused,
                    "would_refuse_per_s": would_refuse,
                })
            });
        json!({
            "seconds": self.seconds,
            "decisions_per_s": std::collections::BTreeMap::from(self.verdicts),
            "rules": rules.collect::<Vec<_>>(),
            "leases": self.status.leases,
            "fleet": self.status.fleet,
            "switches": self.status.switches,
            "warnings": self.status.warnings,
            "pools": self.status.pools,
            "callers": self.status.callers,
        })
    }
}

/// Rules that fit on a screen.
const RULES_SHOWN: usize = 15;

/// This screen is for rules; `tidegate status` has all warnings.
const WARNINGS_SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::TopSample;

    #[test]
    fn rates_are_differences_by_time_and_never_below_zero() {
        let look = |at_nanos, pass: u64, allow: u64| {
            let rule = json!({"domain": "api", "rule": "a", "pass": pass, "near": 0, "over": 1, "refuse": 2});
            let fleet = json!({"redis": true, "needed": true, "linked": false});
            let status = json!({
                "decisions": {"allow": allow}, "counts": [rule], "leases": {"held": 7}, "fleet": fleet,
                "warnings": ["mind the gap"],
            });
            TopSample { at_nanos, status: serde_json::from_value(status).unwrap() }
        };
        let (before, after) = (look(0, 10, 100), look(2_000_000_000, 30, 50));
        let told = after.since(&before).json();
        assert_eq!(told["seconds"], 2.0);
        assert_eq!(told["rules"][0]["passed_per_s"], 10.0);
        assert_eq!(told["rules"][0]["refused_per_s"], 0.0);
        assert_eq!(told["decisions_per_s"]["allowed"], 0.0, "it was started again meanwhile");
        let text = after.since(&before).text();
        for words in ["api/a", "7 leases", "fleet: ", "warning: mind the gap"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
