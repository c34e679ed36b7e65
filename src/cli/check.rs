//! `tidegate check`: lists errors and warnings of settings and rules, and bound and memory of each rule.

mod block;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::admin_client::AdminClient;
use super::client::default_socket;
use super::describe::{self, conditions_or_none, object, position};
use super::running::RunningDaemon;
use super::{CliResult, FormatArgs};
use crate::admin::DaemonStatus;
use crate::daemon::redis_settings::fleet_alone;
use crate::daemon::redis_settings::fleet_secret;
use crate::daemon::settings::{MEMORY_BYTES, SETTINGS_FILE, Settings};
use crate::daemon::settings_file::holds_settings;
use crate::engine::KindsInUse;
use crate::rules::source::{Source, about_file};
use crate::rules::{self, Domain, Loaded, Prioritize, Problem, Rule, Scopes, Severity};
use crate::terms::counted;
use block::{BlockSettings, slowest_override};

/// Reads settings and rules as the daemon would, and prints errors and the bound of each rule
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A directory of rules, one file of rules, or a settings file with the rules that it names
    pub path: Option<PathBuf>,
    /// The settings to start from when no PATH is given [default: those of the running daemon, else
    /// /etc/tidegate/tidegate.yaml, if it exists]
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    pub config: Option<PathBuf>,
    /// Print bounds for this number of hosts; default: the number that the running daemon counts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub hosts: Option<u32>,
    /// Print every rule, however many there are; without it the first 200
    #[arg(long)]
    pub all: bool,
    /// The format of the output
    #[command(flatten)]
    pub format: FormatArgs,
    /// Whether to use colour
    #[arg(long, value_enum, default_value_t)]
    pub color: Color,
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
  tidegate check                       those of the running daemon, else the installed ones
  tidegate check config/rules          a directory, in CI: exit code 1 stops the build
  tidegate check --hosts 12 rules      the bound of twelve hosts together
  tidegate check --format json rules/api.yaml

Exit codes: 0 fine, perhaps with warnings; 1 errors; 2 wrong usage. \
A domain with an error anywhere in its files is left out whole: the daemon starts all the same, \
without limits for that domain, and says so.";

/// Runs the command.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let read = RulesRead::of(args.path.as_deref(), args.config.as_deref(), &default_socket());
    let hosts = args.hosts.or_else(|| hosts_counted(&read));
    let kinds = KindsInUse::of(read.domains.iter().flat_map(|domain| domain.rules()));
    let settings = BlockSettings { hosts, memory_bytes_max: read.memory_bytes_max, kinds };
    args.format.print(out, || to_json(&read, &settings), |out| print(&read, &settings, args, out))?;
    Ok(if read.count(true) > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Returns the host count of the running daemon, if a rule shares a fleet budget.
fn hosts_counted(read: &RulesRead) -> Option<u32> {
    let daemon = read.daemon.as_ref()?;
    read.domains.iter().flat_map(|domain| domain.rules()).find(|rule| rule.fleet.is_some())?;
    // The check does not need a running daemon.
    let status: DaemonStatus = daemon.get_json("/status").ok()?;
    u32::try_from(status.fleet?.summary.hosts).ok().filter(|hosts| *hosts > 0)
}

impl Color {
    pub(super) fn is_on(self) -> bool {
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }
}

/// Prints the problems, then each domain in file order, then a summary.
fn print(
    read: &RulesRead,
    settings: &BlockSettings,
    args: &Args,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    for problem in &read.problems {
        writeln!(out, "{}\n", problem.render(args.color.is_on()))?;
    }
    let blocks = read.domains.iter().flat_map(|domain| block::blocks(domain, settings));
    let shown = if args.all { usize::MAX } else { SHOWN_MAX };
    for block in blocks.take(shown) {
        writeln!(out, "{block}")?;
    }
    let count = |domain: &Arc<Domain>| domain.lists().len() + domain.rules().len() + domain.sheds().len();
    let there_are: usize = read.domains.iter().map(count).sum();
    if there_are > shown {
        writeln!(out, "… and {} more: --all prints them", there_are - shown)?;
    }
    for domain in &read.domains {
        for line in block::of_domain(domain) {
            writeln!(out, "{line}")?;
        }
    }
    if there_are > 0 {
        writeln!(out)?;
    }
    for name in &read.failed {
        writeln!(out, "domain {name}: {LEFT_OUT}")?;
    }
    writeln!(out, "{}", summary(read))
}

fn summary(read: &RulesRead) -> String {
    let rules: usize = read.domains.iter().map(|domain| domain.rules().len()).sum();
    let [domains, rules] = [counted(read.domains.len(), "domain"), counted(rules, "rule")];
    let [errors, warnings] = [counted(read.count(true), "error"), counted(read.count(false), "warning")];
    match read.rules {
        Some(_) => format!("{}: {domains}, {rules}; {errors}, {warnings}", read.read_from()),
        None => format!("{}: {errors}, {warnings}; the rules were not read", read.read_from()),
    }
}

pub(super) const LEFT_OUT: &str = "left out for its errors; a daemon keeps its last good rules, and has no limits for it \
    where it has none";

/// Longer lists are rarely read; `--all` prints them for a search.
const SHOWN_MAX: usize = 200;

fn to_json(read: &RulesRead, settings: &BlockSettings) -> Value {
    let path = |path: Option<&Path>| path.map(|path| path.to_string_lossy().into_owned());
    json!({
        "settings": path(read.settings.as_deref()),
        "rules": path(read.rules.as_deref()),
        "hosts": settings.hosts(),
        "memory_bytes_max": read.memory_bytes_max,
        "errors": read.count(true),
        "warnings": read.count(false),
        "problems": read.problems.iter().map(Problem::to_json).collect::<Vec<_>>(),
        "domains": read.domains.iter().map(|domain| of_domain(domain, settings)).collect::<Vec<_>>(),
        "failed": read.failed.iter().map(|name| &**name).collect::<Vec<_>>(),
    })
}

fn of_domain(domain: &Domain, settings: &BlockSettings) -> Value {
    let rules = (0..).zip(domain.rules()).map(|(number, rule)| of_rule(domain, number, rule, settings));
    json!({
        "name": domain.name(),
        "lists": domain.lists().iter().map(|listed| {
            let mut all = describe::listed(listed);
            all.insert("help".to_owned(), json!(listed.help.as_deref()));
            all
        }).collect::<Vec<_>>(),
        "priorities": domain.priorities().iter().map(|name| &**name).collect::<Vec<_>>(),
        "prioritize": domain.prioritize().iter().map(|entry| of_entry(domain, entry)).collect::<Vec<_>>(),
        "descriptors": domain.tree().nodes(),
        "rules": rules.collect::<Vec<_>>(),
        "sheds": domain.sheds().iter().map(|shed| describe::shed_json(domain, shed)).collect::<Vec<_>>(),
    })
}

fn of_rule(domain: &Domain, number: u32, rule: &Rule, settings: &BlockSettings) -> Map<String, Value> {
    let fleets: Vec<u32> = settings.fleets().collect();
    let mut all = describe::rule(rule, settings.hosts(), &fleets);
    all.extend(object(json!({
        "path": domain.tree().path(number),
        "overrides_slow_by_one_part_in": slowest_override(&rule.limit),
        "keys_held_at_least": settings.keys_held(rule),
    })));
    all
}

fn of_entry(domain: &Domain, entry: &Prioritize) -> Map<String, Value> {
    let mut all = position(&entry.position);
    all.extend(object(json!({
        "match": conditions_or_none(&entry.conditions),
        "priority": domain.priorities().get(entry.priority).map(|name| &**name),
    })));
    all
}

#[derive(Debug, Default)]
pub(super) struct RulesRead {
    pub(super) settings: Option<PathBuf>,
    pub(super) rules: Option<PathBuf>,
    pub(super) problems: Vec<Problem>,
    pub(super) domains: Vec<Arc<Domain>>,
    pub(super) failed: Vec<Box<str>>,
    pub(super) memory_bytes_max: u64,
    /// The daemon of these settings; `None` if no settings were read.
    pub(super) daemon: Option<AdminClient>,
}

impl RulesRead {
    /// Reads a path of rules or settings; without one, the settings in `config`, else those of the daemon that serves
    /// `socket`, else the installed ones.
    pub(super) fn of(path: Option<&Path>, config: Option<&Path>, socket: &Path) -> RulesRead {
        match (path, config) {
            (Some(path), _) if Source::read_anywhere(path).is_ok_and(|source| holds_settings(&source)) => {
                RulesRead::of_settings(Some(path), None)
            }
            (Some(path), _) => RulesRead::nothing().with_rules(path, &Scopes::default()),
            (None, Some(config)) => RulesRead::of_settings(Some(config), None),
            (None, None) => {
                let installed = Path::new(SETTINGS_FILE);
                let installed = installed.exists().then(|| installed.to_owned());
                let (config, rules) = RunningDaemon::find(socket)
                    .map_or((installed, None), |running| (running.config, running.rules));
                RulesRead::of_settings(config.as_deref(), rules.as_deref())
            }
        }
    }

    fn nothing() -> RulesRead {
        RulesRead { memory_bytes_max: MEMORY_BYTES, ..RulesRead::default() }
    }

    /// Reads settings, and the rules that they name or `rules`.
    fn of_settings(path: Option<&Path>, rules: Option<&Path>) -> RulesRead {
        let read = RulesRead { settings: path.map(Path::to_owned), ..RulesRead::nothing() };
        match Settings::load(path) {
            Ok((settings, problems)) => {
                let memory_bytes_max = settings.memory_max_bytes;
                let read = RulesRead { problems, memory_bytes_max, ..read };
                let mut read = read.with_rules(rules.unwrap_or(&settings.rules), &settings.scopes());
                // A domain left out for errors may have the rules that the settings expect.
                if read.count(true) == 0 {
                    read.problems.extend(settings.domains_without_rules(&read.domains).cloned());
                }
                if let Err(wrong) = settings.socket.group_number() {
                    let installed = Path::new(SETTINGS_FILE);
                    let problem = about_file(path.unwrap_or(installed), wrong);
                    // Other files may be of another host.
                    let is_of_here = path.is_none_or(|path| path == installed);
                    let severity = if is_of_here { problem.severity } else { Severity::Warning };
                    read.problems.push(Problem { severity, ..problem });
                }
                read.problems.extend(settings.unusable_files());
                match &settings.redis {
                    Some(redis) => {
                        let file = redis.fleet_secret_file.as_deref();
                        read.problems.extend(file.and_then(|file| fleet_secret(file).1));
                    }
                    None => read.problems.extend(fleet_alone(&read.domains)),
                }
                read.daemon = Some(AdminClient::of_settings(&settings));
                read
            }
            Err(problems) => RulesRead { problems, ..read },
        }
    }

    fn with_rules(mut self, path: &Path, scopes: &Scopes) -> RulesRead {
        let Loaded { domains, problems, failed, .. } = rules::read_scoped(path, scopes);
        self.problems.extend(problems);
        RulesRead { rules: Some(path.to_owned()), domains, failed, ..self }
    }

    pub(super) fn count(&self, errors: bool) -> usize {
        self.problems.iter().filter(|problem| problem.is_error() == errors).count()
    }

    pub(super) fn read_from(&self) -> String {
        match (&self.settings, &self.rules) {
            (Some(settings), Some(rules)) => format!("{}, {}", settings.display(), rules.display()),
            (Some(path), None) | (None, Some(path)) => path.display().to_string(),
            (None, None) => "nothing read".to_owned(),
        }
    }
}
