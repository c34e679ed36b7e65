//! `tidegate check`: every error and warning of settings and rules, and what each rule admits.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use super::settings::{SETTINGS_FILE, Settings};
use super::settings_file::holds_settings;
use crate::limit::Quota as AnyQuota;
use crate::limit::token_bucket::Quota;
use crate::rules::source::Source;
use crate::rules::{self, Domain, Loaded, Mode, Problem, Rule};

/// Reads settings and rules as the daemon would, and says what is wrong and what each rule admits
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A directory of rules, one file of rules, or a settings file with the rules that it names
    pub path: Option<PathBuf>,
    /// The settings to start from when no PATH is given; without it /etc/tidegate/tidegate.yaml if there is one
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    pub config: Option<PathBuf>,
    /// How to print what was found
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Whether to use colour
    #[arg(long, value_enum, default_value_t)]
    pub color: Color,
}

/// How the findings are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON object, for programs
    Json,
}

/// Whether the text is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

const EXAMPLES: &str = "\
Examples:
  tidegate check                       the installed settings and rules
  tidegate check config/rules          a directory, in CI: exit code 1 stops the build
  tidegate check --format json rules/api.yaml

Exit codes: 0 fine, perhaps with warnings; 1 errors; 2 wrong usage.
A domain with an error anywhere in its files is left out whole: the daemon starts all the same,
without limits for that domain, and says so.";

/// Runs the command.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> std::io::Result<ExitCode> {
    let checked = Checked::of(args);
    match args.format {
        Format::Text => checked.print(args.color.is_on(), out)?,
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, &checked.to_json())?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    Ok(if checked.count(true) > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

impl Color {
    fn is_on(self) -> bool {
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }
}

/// What was read and found.
#[derive(Debug, Default)]
struct Checked {
    settings: Option<PathBuf>,
    rules: Option<PathBuf>,
    problems: Vec<Problem>,
    domains: Vec<Arc<Domain>>,
    failed: Vec<Box<str>>,
}

impl Checked {
    fn of(args: &Args) -> Checked {
        match &args.path {
            Some(path) if Source::read(path).is_ok_and(|source| holds_settings(&source)) => {
                Checked::of_settings(Some(path))
            }
            Some(path) => Checked::default().with_rules(path),
            None => {
                let installed = Path::new(SETTINGS_FILE);
                let installed = installed.exists().then_some(installed);
                Checked::of_settings(args.config.as_deref().or(installed))
            }
        }
    }

    fn of_settings(path: Option<&Path>) -> Checked {
        let checked = Checked { settings: path.map(Path::to_owned), ..Checked::default() };
        match Settings::load(path) {
            Ok((settings, problems)) => {
                let mut checked = Checked { problems, ..checked }.with_rules(&settings.rules);
                // Where a domain was left out for its errors, it is not known whose rules there are.
                if checked.count(true) == 0 {
                    checked.problems.extend(settings.domains_without_rules(&checked.domains).cloned());
                }
                checked
            }
            Err(problems) => Checked { problems, ..checked },
        }
    }

    fn with_rules(mut self, path: &Path) -> Checked {
        let Loaded { domains, problems, failed, .. } = rules::read(path);
        self.problems.extend(problems);
        Checked { rules: Some(path.to_owned()), domains, failed, ..self }
    }

    fn count(&self, errors: bool) -> usize {
        self.problems.iter().filter(|problem| problem.is_error() == errors).count()
    }

    fn print(&self, styled: bool, out: &mut dyn Write) -> std::io::Result<()> {
        for problem in &self.problems {
            writeln!(out, "{}\n", problem.render(styled))?;
        }
        for domain in &self.domains {
            for rule in domain.rules() {
                writeln!(out, "{}", line(domain, rule))?;
            }
        }
        if self.domains.iter().any(|domain| !domain.rules().is_empty()) {
            writeln!(out)?;
        }
        for name in &self.failed {
            writeln!(out, "domain {name}: left out for its errors; the daemon starts without limits for it")?;
        }
        writeln!(out, "{}", self.summary())
    }

    fn summary(&self) -> String {
        let rules = self.domains.iter().map(|domain| domain.rules().len()).sum();
        let read = match (&self.settings, &self.rules) {
            (Some(settings), Some(rules)) => format!("{}, {}", settings.display(), rules.display()),
            (Some(path), None) | (None, Some(path)) => path.display().to_string(),
            (None, None) => "nothing read".to_owned(),
        };
        let [domains, rules] = [counted(self.domains.len(), "domain"), counted(rules, "rule")];
        let [errors, warnings] = [counted(self.count(true), "error"), counted(self.count(false), "warning")];
        format!("{read}: {domains}, {rules}; {errors}, {warnings}")
    }

    fn to_json(&self) -> serde_json::Value {
        let domain = |domain: &Arc<Domain>| {
            let rules: Vec<_> = domain.rules().iter().map(rule_json).collect();
            serde_json::json!({"name": domain.name(), "rules": rules})
        };
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        serde_json::json!({
            "settings": path(&self.settings),
            "rules": path(&self.rules),
            "errors": self.count(true),
            "warnings": self.count(false),
            "problems": self.problems.iter().map(Problem::to_json).collect::<Vec<_>>(),
            "domains": self.domains.iter().map(domain).collect::<Vec<_>>(),
            "failed": self.failed.iter().map(|name| &**name).collect::<Vec<_>>(),
        })
    }
}

/// What one rule means.
fn line(domain: &Domain, rule: &Rule) -> String {
    let name = &rule.name;
    let Some(AnyQuota::TokenBucket(quota)) = rule.limit.quota() else { return name.to_string() };
    let mode = match rule.mode {
        Mode::Enforce => "",
        Mode::Shadow => " (shadow: refuses nothing)",
        Mode::Disabled => " (disabled: not judged)",
    };
    let each = match rule.key.as_slice() {
        [] => "for all together".to_owned(),
        key => {
            let key: Vec<&str> = key.iter().map(|part| &*part.attribute).collect();
            format!("for each {}", key.join(" and "))
        }
    };
    format!(
        "{}/{name}{mode}: {}, burst {}: {} {each}, on N hosts N times that; {}",
        domain.name(),
        quota.rate(),
        quota.burst(),
        bound(quota),
        exactness(quota),
    )
}

fn rule_json(rule: &Rule) -> serde_json::Value {
    let Some(AnyQuota::TokenBucket(quota)) = rule.limit.quota() else { return serde_json::Value::Null };
    serde_json::json!({
        "name": &*rule.name,
        "file": &*rule.position.file,
        "line": rule.position.line,
        "column": rule.position.column,
        "mode": rule.mode.to_string(),
        "key": rule.key.iter().map(|part| &*part.attribute).collect::<Vec<_>>(),
        "algorithm": "token_bucket",
        "scope": "host",
        "rate": quota.rate().to_string(),
        "burst": quota.burst(),
        "window_us": quota.window().0,
        "bound": bound(quota),
        "exact": quota.rate().rounding_on(quota.scale()).is_none(),
        "slow_by_one_part_in": quota.rate().rounding_on(quota.scale()),
        "ticks_per_nanosecond": quota.scale().ticks_per_nano(),
        "help": rule.help.as_deref(),
    })
}

/// What a token bucket admits at most, whatever is sent.
fn bound(quota: &Quota) -> String {
    let rate = quota.rate().to_string();
    let (count, period) = rate.split_once('/').unwrap_or((&rate, "s"));
    let periods = match SPANS.iter().find(|(unit, _)| *unit == period) {
        Some((_, plural)) => (*plural).to_owned(),
        None => format!("(time ÷ {period})"),
    };
    format!("at most {} + {count} × {periods} in any span", quota.burst())
}

fn exactness(quota: &Quota) -> String {
    match (quota.rate().rounding_on(quota.scale()), quota.scale().ticks_per_nano()) {
        (Some(parts), _) => format!("kept slow by one part in {parts}"),
        (None, 1) => "exact in ticks of 1 ns".to_owned(),
        (None, ticks) => format!("exact in ticks of 1/{ticks} ns"),
    }
}

fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// How `Rate` writes a period, and how one speaks of many.
const SPANS: [(&str, &str); 6] = [
    ("ms", "milliseconds"),
    ("s", "seconds"),
    ("min", "minutes"),
    ("h", "hours"),
    ("day", "days"),
    ("week", "weeks"),
];
