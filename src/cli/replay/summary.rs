//! What a replay came to: one table.

use std::fmt;
use std::time::Duration;

use super::player::Player;
use crate::engine::Totals;

/// The totals of a replay, by rule.
pub(super) struct Summary {
    lines: u64,
    span: Duration,
    totals: Totals,
}

impl Summary {
    pub(super) fn of(player: &Player) -> Summary {
        Summary { lines: player.lines(), span: player.span(), totals: player.engine().totals() }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { allowed, limited, unmatched_domain, unmatched_rule, evictions, rules, .. } =
            &self.totals;
        // Sub-second digits of a long trace tell nobody anything.
        let span = if self.span > MINUTE { Duration::from_secs(self.span.as_secs()) } else { self.span };
        let span = humantime::format_duration(span);
        writeln!(f, "{} lines over {span}: {allowed} allowed, {limited} limited", self.lines)?;
        for (count, what) in [
            (unmatched_domain, "were for a domain without rules"),
            (unmatched_rule, "matched no rule"),
            (evictions, "keys were dropped for lack of memory"),
        ] {
            if *count > 0 {
                writeln!(f, "{count} {what}")?;
            }
        }
        let rules: Vec<_> = rules.iter().filter(|rule| !rule.domain.is_empty()).collect();
        let name = |rule: &&crate::engine::RuleTotals| format!("{}/{}", rule.domain, rule.rule);
        let width = rules.iter().map(|rule| name(rule).chars().count()).max().unwrap_or(0).max("rule".len());
        write!(f, "{:width$}  {:>12}  {:>12}  {:>12}", "rule", "passed", "refused", "would refuse")?;
        for rule in &rules {
            let name = name(rule);
            let (pass, refuse, would_refuse) = (rule.pass, rule.refuse, rule.would_refuse);
            write!(f, "\n{name:width$}  {pass:>12}  {refuse:>12}  {would_refuse:>12}")?;
        }
        Ok(())
    }
}

const MINUTE: Duration = Duration::from_secs(60);
