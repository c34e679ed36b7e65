//! `tidegate doctor`: finds problems on this host and suggests repairs. It changes nothing.

pub mod daemon;
mod files;
pub mod machine;
pub mod reach;
pub mod redis;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;

use super::running::RunningDaemon;
use super::{CliResult, FormatArgs};
use crate::daemon::settings::{Environment, Settings, file_or_installed};

/// Reports faults of this host with help for each
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Checks the access of this user, by name or number [default: the current user]
    #[arg(long = "as", value_name = "USER")]
    as_user: Option<String>,
    /// The settings file [default: that of the running daemon, else /etc/tidegate/tidegate.yaml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the daemon listens [default: `socket.path` of --config, else $TIDEGATE_SOCKET, else that of the settings]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The admin socket of the daemon, instead of that of the settings
    #[arg(long, value_name = "PATH")]
    admin: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate doctor                   as root: sees everything
  tidegate doctor --as www-data     could that application ask?
  tidegate doctor --socket /srv/shop/shop.sock      the daemon that serves this socket

It examines the daemon that runs: the settings and rules of its command line, its user, limits and status.

Exit codes: 0 all is well, perhaps with warnings; 1 something is wrong, with its help; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let findings = examine(args);
    let wrong = findings.iter().any(|finding| finding.severity == FindingSeverity::Wrong);
    if args.format.is_json() {
        writeln!(out, "{:#}", json!({"well": !wrong, "findings": findings}))?;
    } else {
        for finding in &findings {
            write!(out, "{finding}")?;
        }
        let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        let (wrongs, warnings) = (count(FindingSeverity::Wrong), count(FindingSeverity::Warning));
        match (wrongs, warnings) {
            (0, 0) => writeln!(out, "\nall is well")?,
            (0, _) => writeln!(out, "\nnothing wrong, {warnings} to look at")?,
            _ => writeln!(out, "\n{wrongs} wrong, {warnings} to look at: each line of help says what to do")?,
        }
    }
    out.flush()?;
    Ok(if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Runs all checks, prerequisites first.
fn examine(args: &Args) -> Vec<Finding> {
    let named = file_or_installed(args.config.as_deref());
    let (found, mut findings) = files::settings(named);
    let mut settings = found.unwrap_or_else(Settings::by_default);
    let variable =
        std::env::var_os("TIDEGATE_SOCKET").filter(|path| !path.is_empty() && args.config.is_none());
    match args.socket.clone().or(variable.map(PathBuf::from)) {
        Some(path) => settings.listen_at(&path, args.config.is_some()),
        // The same socket as clients use: that of the user's own daemon, if it exists.
        None if named.is_none() => settings.socket.path = super::client::default_socket(),
        None => {}
    }
    let running = RunningDaemon::find(&settings.socket.path);
    let mut file = named;
    if let Some(daemon) = &running {
        let own = daemon.config.as_deref().filter(|own| args.config.is_none() && Some(*own) != named);
        if let Some(own) = own {
            file = Some(own);
            let socket = settings.socket.path.clone();
            let (found, of_settings) = files::settings(Some(own));
            findings = of_settings;
            settings = found.unwrap_or_else(Settings::by_default);
            settings.listen_at(&socket, true);
        }
        settings.rules = daemon.rules.clone().unwrap_or(settings.rules);
    }
    settings.admin_socket = args.admin.clone().or(settings.admin_socket);
    let environment = running.as_ref().and_then(|daemon| Environment::of_process(daemon.pid));
    settings.state = settings.state.or_else(|| environment.as_ref()?.default_state());
    // Without settings and a daemon, nothing says that rules should be there.
    if named.is_some() || running.is_some() || settings.rules.exists() {
        findings.push(files::rules(&settings.rules, &settings.scopes()));
    }
    let of_daemon = running.as_ref().and_then(RunningDaemon::user);
    findings.extend(of_daemon.as_ref().and_then(|user| reach::rules(&settings.rules, user)));
    findings.extend(files::owners(file, &settings, of_daemon.as_ref()));
    let user = match &args.as_user {
        Some(name) => reach::User::named(name),
        None => Ok(reach::User::of_this_process()),
    };
    match user {
        Ok(user) => {
            findings.push(reach::socket(&settings.socket.path, &user));
            findings.extend(args.as_user.as_ref().and_then(|_| daemon::closed_domains(&settings, &user)));
        }
        Err(finding) => findings.push(finding),
    }
    findings.extend(daemon::all(&settings, running.as_ref()));
    findings.extend(redis::all(&settings, of_daemon.as_ref()));
    findings.extend(files::state(&settings, of_daemon.as_ref(), running.is_none() || environment.is_some()));
    findings.extend(machine::all());
    findings.extend(machine::units(Path::new("/")));
    findings
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingSeverity {
    Well,
    /// It works, but not as well as it could.
    Warning,
    /// Requests bypass limits, or will.
    Wrong,
    /// It could not be checked.
    Unseen,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    severity: FindingSeverity,
    /// The subject, in one or two words.
    what: &'static str,
    pub(super) message: String,
    #[serde(rename = "mend")]
    pub(super) help: Option<String>,
}

impl Finding {
    fn is_well(&self) -> bool {
        self.severity == FindingSeverity::Well
    }

    fn well(what: &'static str, message: impl Into<String>) -> Finding {
        Finding { severity: FindingSeverity::Well, what, message: message.into(), help: None }
    }

    fn warning(what: &'static str, message: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding { severity: FindingSeverity::Warning, ..Finding::wrong(what, message, help) }
    }

    fn wrong(what: &'static str, message: impl Into<String>, help: impl Into<String>) -> Finding {
        let (message, help) = (message.into(), Some(help.into()));
        Finding { severity: FindingSeverity::Wrong, what, message, help }
    }

    fn unseen(what: &'static str, message: impl Into<String>, help: impl Into<String>) -> Finding {
        Finding { severity: FindingSeverity::Unseen, ..Finding::wrong(what, message, help) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.severity {
            FindingSeverity::Well => "well ",
            FindingSeverity::Warning => "look ",
            FindingSeverity::Wrong => "WRONG",
            FindingSeverity::Unseen => "?    ",
        };
        writeln!(f, "{mark}  {}: {}", self.what, self.message)?;
        self.help.iter().try_for_each(|help| writeln!(f, "       help: {help}"))
    }
}
