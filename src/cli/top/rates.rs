//! Computes rates per second from two readings of the status.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::cli::fleet::in_a_line;
use crate::cli::status::page::{callers, list, name, number, passed, pools, word};
use crate::cli::switch::held;
use crate::trace::table::{TextTable, count};

/// The status at one time.
#[derive(Debug)]
pub(super) struct TopSample {
    pub(super) at_nanos: u64,
    pub(super) status: Value,
}

#[derive(Debug)]
pub(super) struct TopRates<'l> {
    seconds: f64,
    /// Decisions per second, by verdict.
    verdicts: Vec<(&'static str, f64)>,
    /// The busiest first.
    rules: Vec<RuleRate<'l>>,
    /// The later status.
    status: &'l Value,
}

/// Outcomes of one rule, in requests per second.
#[derive(Debug)]
struct RuleRate<'l> {
    rule: &'l Value,
    passed: f64,
    refused: f64,
    would_refuse: f64,
}

impl RuleRate<'_> {
    fn all(&self) -> f64 {
        self.passed + self.refused + self.would_refuse
    }
}

impl TopSample {
    pub(super) fn since(&self, before: &TopSample) -> TopRates<'_> {
        let seconds = self.at_nanos.saturating_sub(before.at_nanos).max(1) as f64 / 1e9;
        // Counters of a restarted daemon begin at zero.
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let verdicts = VERDICTS.map(|(verdict, pointer)| {
            (verdict, rate(number(&self.status, pointer), number(&before.status, pointer)))
        });
        let known = list(&before.status, "/counts");
        let of_rule = |rule: &'_ Value| {
            let is_it = |other: &&Value| {
                word(other, "/domain") == word(rule, "/domain") && word(other, "/rule") == word(rule, "/rule")
            };
            known.iter().find(is_it).map_or([0; 3], counts)
        };
        let rules = list(&self.status, "/counts").iter().map(|rule| {
            let [passed, refused, would_refuse] = counts(rule);
            let [passed_before, refused_before, would_refuse_before] = of_rule(rule);
            RuleRate {
                rule,
                passed: rate(passed, passed_before),
                refused: rate(refused, refused_before),
                would_refuse: rate(would_refuse, would_refuse_before),
            }
        });
        let mut rules: Vec<_> = rules.filter(|rule| rule.all() > 0.0).collect();
        rules.sort_by(|one, other| other.all().total_cmp(&one.all()));
        rules.truncate(RULES_SHOWN);
        TopRates { seconds, verdicts: verdicts.to_vec(), rules, status: &self.status }
    }
}

impl TopRates<'_> {
    pub(super) fn text(&self) -> String {
        let mut text =
            format!("tidegate {}, mode {}: ", word(self.status, "/version"), word(self.status, "/mode"));
        let verdicts = self.verdicts.iter().map(|(verdict, rate)| format!("{rate:.0} {verdict}"));
        let _ = writeln!(text, "{} a second", verdicts.collect::<Vec<_>>().join(", "));
        for line in self.standing() {
            let _ = writeln!(text, "{line}");
        }
        let mut table = TextTable::new(&["rule", "passed/s", "refused/s", "would refuse/s"]);
        for RuleRate { rule, passed, refused, would_refuse } in &self.rules {
            let numbers = [passed, refused, would_refuse].map(|rate| format!("{rate:.0}"));
            table.push([name(rule)].into_iter().chain(numbers).collect());
        }
        let _ = write!(text, "\n{table}\n");
        let parts = [pools(self.status), callers(self.status, "refused"), callers(self.status, "busiest")];
        for part in parts.into_iter().flatten() {
            let _ = write!(text, "\n{part}\n");
        }
        text
    }

    /// Returns the lasting conditions that are shown first, as on the daemon's page.
    fn standing(&self) -> Vec<String> {
        let mut lines = vec![format!("{} leases", count(number(self.status, "/leases/held")))];
        if let Some(fleet) = self.status.get("fleet").filter(|fleet| fleet.is_object()) {
            lines.push(format!("fleet: {}", in_a_line(fleet)));
        }
        lines.extend(self.status.get("switches").map(held).unwrap_or_default());
        let warnings = list(self.status, "/warnings").iter().filter_map(Value::as_str);
        lines.extend(warnings.take(WARNINGS_SHOWN).map(|warning| format!("warning: {warning}")));
        lines
    }

    pub(super) fn json(&self) -> Value {
        let verdicts = self.verdicts.iter().map(|(verdict, rate)| ((*verdict).to_owned(), json!(rate)));
        let rules = self.rules.iter().map(|rate| {
            json!({
                "domain": word(rate.rule, "/domain"),
                "rule": word(rate.rule, "/rule"),
                "passed_per_s": rate.passed,
                "refused_per_s": rate.refused,
                "would_refuse_per_s": rate.would_refuse,
            })
        });
        json!({
            "seconds": self.seconds,
            "decisions_per_s": verdicts.collect::<Value>(),
            "rules": rules.collect::<Vec<_>>(),
            "leases": self.status.get("leases"),
            "fleet": self.status.get("fleet"),
            "switches": self.status.get("switches"),
            "warnings": self.status.get("warnings"),
            "pools": self.status.get("pools"),
            "callers": self.status.get("callers"),
        })
    }
}

fn counts(rule: &Value) -> [u64; 3] {
    [passed(rule), number(rule, "/refuse"), number(rule, "/would_refuse")]
}

const VERDICTS: [(&str, &str); 5] = [
    ("allowed", "/decisions/allow"),
    ("limited", "/decisions/limit"),
    ("waited", "/decisions/wait"),
    ("denied", "/decisions/deny"),
    ("shed", "/decisions/shed"),
];

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
            TopSample { at_nanos, status }
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
