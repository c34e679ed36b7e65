//! `tidegate top`: shows current activity, refreshed every second. It changes nothing.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::text::Text;
use serde_json::{Value, json};

use super::admin_client::AdminArgs;
use super::fleet::in_a_line;
use super::status::{held, name, pools_and_callers};
use super::{CliError, CliResult, FormatArgs, usage};
use crate::admin::{DaemonStatus, RuleStatus};
use crate::clock::read_boot_nanos;
use crate::engine::RuleTotals;
use crate::trace::summary::{TextTable, count};

/// Shows the busiest rules, callers and pools, each second anew
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Look for one second, print, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
q ends it. Rates are those of the last second; callers fade over some ten minutes.

Exit codes: 0 ended; 1 the daemon does not answer, with what to do; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    if args.format.is_json() && !args.once {
        return Err(usage("JSON is printed once: add --once"));
    }
    if args.once {
        once(args, out)?;
    } else if io::stdout().is_terminal() {
        live(args)?;
    } else {
        return Err(usage("standard output is no terminal: ask with --once"));
    }
    Ok(ExitCode::SUCCESS)
}

fn look(args: &Args) -> Result<TopSample, CliError> {
    Ok(TopSample { at_nanos: read_boot_nanos(), status: args.admin.client().get_json("/status")? })
}

fn once(args: &Args, out: &mut dyn Write) -> Result<(), CliError> {
    let before = look(args)?;
    std::thread::sleep(PERIOD);
    let after = look(args)?;
    let rates = after.since(&before);
    if args.format.is_json() {
        writeln!(out, "{:#}", rates.json())?;
    } else {
        write!(out, "{}", rates.text())?;
    }
    Ok(())
}

fn live(args: &Args) -> Result<(), CliError> {
    let before = look(args)?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(args, before, &mut terminal);
    ratatui::try_restore()?;
    shown
}

/// Refreshes the screen every second until a key ends it.
fn show(args: &Args, mut before: TopSample, terminal: &mut DefaultTerminal) -> Result<(), CliError> {
    let mut text = "looking for a second; q ends it".to_owned();
    loop {
        terminal.draw(|frame| frame.render_widget(Text::raw(&*text), frame.area()))?;
        if is_to_end()? {
            return Ok(());
        }
        let now = look(args)?;
        text = now.since(&before).text();
        before = now;
    }
}

/// Waits for the next refresh. Returns whether a key ended the command.
fn is_to_end() -> io::Result<bool> {
    let begin = read_boot_nanos();
    loop {
        let waited = Duration::from_nanos(read_boot_nanos().saturating_sub(begin));
        let Some(left) = PERIOD.checked_sub(waited).filter(|left| !left.is_zero()) else { return Ok(false) };
        if !event::poll(left)? {
            return Ok(false);
        }
        if let Event::Key(key) = event::read()? {
            let interrupted = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if interrupted || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(true);
            }
        }
    }
}

const PERIOD: Duration = Duration::from_secs(1);

/// The status at one time.
#[derive(Debug)]
struct TopSample {
    at_nanos: u64,
    status: DaemonStatus,
}

#[derive(Debug)]
struct TopRates<'l> {
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
    fn since(&self, before: &TopSample) -> TopRates<'_> {
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
    fn text(&self) -> String {
        let verdicts = self.verdicts.map(|(verdict, rate)| format!("{rate:.0} {verdict}")).join(", ");
        let (version, mode) = (&self.status.version, &self.status.mode);
        let mut text = format!("tidegate {version}, mode {mode}: {verdicts} a second\n");
        for line in self.summary_lines() {
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
    fn summary_lines(&self) -> Vec<String> {
        let DaemonStatus { leases, fleet, switches, warnings, .. } = self.status;
        let mut lines = vec![format!("{} leases", count(leases.live))];
        lines.extend(fleet.as_ref().map(|fleet| format!("fleet: {}", in_a_line(&fleet.summary))));
        lines.extend(held(switches.off, &switches.held));
        lines.extend(warnings.iter().take(WARNINGS_SHOWN).map(|warning| format!("warning: {warning}")));
        lines
    }

    fn json(&self) -> Value {
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
    fn rates_are_differences_over_time_and_never_negative() {
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
        let document = after.since(&before).json();
        assert_eq!(document["seconds"], 2.0);
        assert_eq!(document["rules"][0]["passed_per_s"], 10.0);
        assert_eq!(document["rules"][0]["refused_per_s"], 0.0);
        assert_eq!(document["decisions_per_s"]["allowed"], 0.0, "it was started again meanwhile");
        let text = after.since(&before).text();
        for words in ["api/a", "7 leases", "fleet: ", "warning: mind the gap"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
