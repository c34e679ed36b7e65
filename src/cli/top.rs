//! `tidegate top`: shows current activity, refreshed every second. It changes nothing.

mod screen;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};

use super::admin_client::AdminArgs;
use super::fleet::in_a_line;
use super::status::{callers, callers_shown, held, pools};
use super::{CliError, CliResult, FormatArgs, usage};
use crate::admin::{DaemonStatus, RuleStatus};
use crate::clock::read_boot_nanos;
use crate::engine::{Caller, PoolView, TopCallers};
use crate::page;
use crate::terms::{counted, printable};
use crate::trace::summary::{TextTable, name};

/// Shows the busiest rules, callers and pools, each second anew
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Look for one second, print, and end
    #[arg(long)]
    once: bool,
    /// Sort the rules by this
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t)]
    sort: SortColumn,
    /// Show only rules, callers and pools whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Examples:
  tidegate top
  tidegate top --sort refused --filter per-user
  tidegate top --once --json

Keys: q quits, s sorts, / filters, p pauses, ? explains. Rates are those of the last second; callers fade over some \
ten minutes. Colours: none with NO_COLOR=1.

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

impl Args {
    fn view(&self) -> TopView {
        TopView { sort: self.sort, filter: self.filter.clone(), ..TopView::default() }
    }
}

fn look(args: &Args) -> Result<TopSample, CliError> {
    Ok(TopSample { at_nanos: read_boot_nanos(), status: args.admin.client().get_json("/status")? })
}

fn once(args: &Args, out: &mut dyn Write) -> Result<(), CliError> {
    let before = look(args)?;
    std::thread::sleep(PERIOD);
    let after = look(args)?;
    let view = args.view();
    let rates = after.since(&before, &view);
    args.format.print(out, || rates.json(), |out| write!(out, "{}", rates.text(view.sort)))?;
    Ok(())
}

fn live(args: &Args) -> Result<(), CliError> {
    let before = look(args)?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(args, before, &mut terminal);
    ratatui::try_restore()?;
    shown
}

/// Refreshes the screen every second, and after each key, until a key or a signal ends it.
fn show(args: &Args, first: TopSample, terminal: &mut DefaultTerminal) -> Result<(), CliError> {
    let mut view = args.view();
    let (mut before, mut now) = (None::<TopSample>, first);
    let mut looked = read_boot_nanos();
    // A signal that ended the process here would leave the terminal as it is now.
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))?;
    }
    while !ended.load(Ordering::Relaxed) {
        let rates = before.as_ref().map(|before| now.since(before, &view));
        terminal.draw(|frame| screen::draw(frame, &view, rates.as_ref()))?;
        let waited = Duration::from_nanos(read_boot_nanos().saturating_sub(looked));
        let left = PERIOD.saturating_sub(waited);
        if event::poll(left)? {
            if let Event::Key(key) = event::read()?
                && view.press(key)
            {
                return Ok(());
            }
        } else {
            looked = read_boot_nanos();
            if !view.is_paused {
                before = Some(std::mem::replace(&mut now, look(args)?));
            }
        }
    }
    Ok(())
}

const PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TopView {
    sort: SortColumn,
    /// Rules, callers and pools whose names contain it are shown, in any case of letters.
    filter: String,
    is_paused: bool,
    open: OpenPanel,
}

/// The order of the rules; numbers descend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
enum SortColumn {
    /// All requests
    #[default]
    All,
    Passed,
    Refused,
    #[strum(serialize = "would refuse")]
    WouldRefuse,
    /// The name
    Rule,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OpenPanel {
    #[default]
    Tables,
    Filter,
    Help,
}

impl TopView {
    /// Applies a key. Returns whether it ends the command.
    fn press(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return key.code == KeyCode::Char('c');
        }
        match (self.open, key.code) {
            (OpenPanel::Filter, KeyCode::Char(letter)) => self.filter.push(letter),
            (OpenPanel::Filter, KeyCode::Backspace) => drop(self.filter.pop()),
            (OpenPanel::Filter, KeyCode::Enter) => self.open = OpenPanel::Tables,
            (OpenPanel::Filter, KeyCode::Esc) => {
                self.filter.clear();
                self.open = OpenPanel::Tables;
            }
            (OpenPanel::Filter, _) => {}
            (OpenPanel::Help, _) => self.open = OpenPanel::Tables,
            (OpenPanel::Tables, KeyCode::Esc) if !self.filter.is_empty() => self.filter.clear(),
            (OpenPanel::Tables, KeyCode::Char('q') | KeyCode::Esc) => return true,
            (OpenPanel::Tables, KeyCode::Char('s')) => self.sort = self.sort.next(),
            (OpenPanel::Tables, KeyCode::Char('/')) => self.open = OpenPanel::Filter,
            (OpenPanel::Tables, KeyCode::Char('p' | ' ')) => self.is_paused = !self.is_paused,
            (OpenPanel::Tables, KeyCode::Char('?' | 'h')) => self.open = OpenPanel::Help,
            (OpenPanel::Tables, _) => {}
        }
        false
    }

    fn accepts(&self, names: &[&str]) -> bool {
        let filter = self.filter.to_lowercase();
        names.iter().any(|name| name.to_lowercase().contains(&filter))
    }
}

impl SortColumn {
    fn next(self) -> SortColumn {
        SortColumn::value_variants().get(self as usize + 1).copied().unwrap_or_default()
    }

    fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the column of the table of rules; all requests have none.
    fn number(self) -> Option<usize> {
        match self {
            SortColumn::All => None,
            SortColumn::Rule => Some(0),
            outcome => Some(outcome as usize),
        }
    }

    fn apply(self, rules: &mut [RuleRate<'_>]) {
        let key = |rule: &RuleRate<'_>| match self {
            SortColumn::All => rule.all(),
            SortColumn::Passed => rule.outcomes[0],
            SortColumn::Refused => rule.outcomes[1],
            SortColumn::WouldRefuse => rule.outcomes[2],
            SortColumn::Rule => 0.0,
        };
        let name = |rule: &RuleRate<'_>| name(rule.domain, rule.rule);
        rules.sort_by(|one, other| key(other).total_cmp(&key(one)).then_with(|| name(one).cmp(&name(other))));
    }
}

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
    /// In the order of the view.
    rules: Vec<RuleRate<'l>>,
    pools: Vec<PoolView>,
    callers: TopCallers,
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

struct TopTable {
    rows: TextTable,
    /// Columns that a narrow terminal leaves out, the first one first.
    dispensable: Vec<usize>,
    /// Colours of columns, where they are not zero.
    colours: &'static [(usize, Color)],
    sorted: Option<usize>,
}

impl TopSample {
    fn since(&self, before: &TopSample, view: &TopView) -> TopRates<'_> {
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
        let of_rule = |rule: &RuleStatus| {
            ((rule.totals.domain.clone(), rule.totals.rule.clone()), rule.totals.outcomes())
        };
        let known: HashMap<_, _> = before.status.counts.iter().map(of_rule).collect();
        let rules = self.status.counts.iter().map(|RuleStatus { totals: rule, .. }| {
            let known = known.get(&(rule.domain.clone(), rule.rule.clone())).copied().unwrap_or_default();
            let [passed, refused, would_refuse] = rule.outcomes();
            let outcomes = [rate(passed, known[0]), rate(refused, known[1]), rate(would_refuse, known[2])];
            RuleRate { domain: &rule.domain, rule: &rule.rule, outcomes }
        });
        // A filter shows that its rules are idle.
        let is_shown = |rule: &RuleRate<'_>| match &*view.filter {
            "" => rule.all() > 0.0,
            _ => view.accepts(&[&name(rule.domain, rule.rule)]),
        };
        let mut rules: Vec<_> = rules.filter(is_shown).collect();
        view.sort.apply(&mut rules);
        let mut pools = self.status.pools.clone();
        pools.retain(|pool| view.accepts(&[&pool.pool]));
        let mut callers = self.status.callers.clone();
        for callers in [&mut callers.busiest, &mut callers.refused, &mut callers.would_refuse] {
            callers.retain(|caller: &Caller| {
                view.accepts(&[caller.name(), &caller.digest, &name(&caller.domain, &caller.rule)])
            });
        }
        TopRates { seconds, verdicts, rules, pools, callers, status: &self.status }
    }
}

impl RuleRate<'_> {
    fn all(&self) -> f64 {
        self.outcomes.iter().sum()
    }
}

impl TopRates<'_> {
    fn text(&self, sort: SortColumn) -> String {
        let verdicts =
            self.verdicts.map(|(verdict, rate)| format!("{} {verdict}", per_second(rate))).join(", ");
        let (version, mode) = (&self.status.version, &self.status.mode);
        let mut text = format!("tidegate {version}, mode {mode}: {verdicts} a second\n{}\n", self.leases());
        for line in self.fleet_line().into_iter().chain(self.conditions()) {
            let _ = writeln!(text, "{line}");
        }
        let [rules, pools, ..] = self.tables(sort);
        let tables = [rules, pools].into_iter().filter_map(|table| table.rows.shown());
        for table in tables.chain(callers_shown(&self.callers)) {
            let _ = write!(text, "\n{table}\n");
        }
        text
    }

    /// Returns the parts of the first lines of the screen: the state, and the decisions per second.
    fn head(&self) -> ([String; 3], [String; 5]) {
        let (version, mode) = (&self.status.version, &self.status.mode);
        let verdicts = self.verdicts.map(|(verdict, rate)| format!("{} {verdict}/s", per_second(rate)));
        ([format!("tidegate {version}"), format!("mode {mode}"), self.leases()], verdicts)
    }

    fn leases(&self) -> String {
        counted(self.status.leases.live, "lease")
    }

    fn fleet_line(&self) -> Option<String> {
        self.status.fleet.as_ref().map(|fleet| format!("fleet: {}", in_a_line(&fleet.summary)))
    }

    /// Returns the lasting conditions that are shown first, as on the daemon's page.
    fn conditions(&self) -> impl Iterator<Item = String> {
        let DaemonStatus { switches, warnings, .. } = self.status;
        let warnings = warnings.iter().take(WARNINGS_SHOWN).map(|warning| format!("warning: {warning}"));
        let lines = held(switches.off_line(), &switches.held).into_iter().chain(warnings);
        lines.map(|line| printable(&line, &[]).into_owned())
    }

    /// Returns the tables of rules, pools, refused callers and busiest callers.
    fn tables(&self, sort: SortColumn) -> [TopTable; 4] {
        let rows = self.rules.iter().take(RULES_SHOWN).map(|RuleRate { domain, rule, outcomes }| {
            [name(domain, rule)].into_iter().chain(outcomes.map(per_second)).collect()
        });
        let rules = TextTable::new(&["rule", "passed/s", "refused/s", "would refuse/s"], rows);
        // The column of the order goes last.
        let mut dispensable = vec![3, 1, 2];
        dispensable.sort_by_key(|column| Some(*column) == sort.number());
        let other = |rows, dispensable: &[usize], colours| TopTable {
            rows,
            dispensable: dispensable.to_vec(),
            colours,
            sorted: None,
        };
        [
            TopTable {
                rows: rules,
                dispensable,
                colours: &[(2, Color::Red), (3, Color::Yellow)],
                sorted: sort.number(),
            },
            other(pools(&self.pools), &[6, 4, 3, 7, 2], &[(5, Color::Red), (7, Color::Yellow)]),
            other(callers("refused callers", &self.callers.refused), &[2, 4], &[(1, Color::Red)]),
            other(callers("busiest callers", &self.callers.busiest), &[2, 4], &[]),
        ]
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
            "pools": self.pools,
            "callers": self.callers,
        })
    }
}

/// Formats a rate with as many digits as are useful.
fn per_second(rate: f64) -> String {
    #[allow(clippy::cast_possible_truncation, reason = "for people, to three digits")]
    page::rate(rate as f32).replace('\u{202f}', " ")
}

/// More than fit on a screen.
const RULES_SHOWN: usize = 100;

/// This screen is for rules; `tidegate status` has all warnings.
const WARNINGS_SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{SortColumn, TopSample, TopView};

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
        let document = after.since(&before, &TopView::default()).json();
        assert_eq!(document["seconds"], 2.0);
        assert_eq!(document["rules"][0]["passed_per_s"], 10.0);
        assert_eq!(document["rules"][0]["refused_per_s"], 0.0);
        assert_eq!(document["decisions_per_s"]["allowed"], 0.0, "it was started again meanwhile");
        let text = after.since(&before, &TopView::default()).text(SortColumn::All);
        for words in ["api/a", "7 leases", "fleet: ", "warning: mind the gap"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
