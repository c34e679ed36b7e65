//! The command line: one file per command.

mod acquire;
mod admin_client;
mod ask;
mod bench;
pub mod check;
mod client;
mod completions;
mod dashboard;
mod describe;
#[doc(hidden)]
pub mod doctor;
mod explain;
mod fleet;
mod generate;
mod record;
pub mod replay;
mod running;
mod signals;
mod status;
mod suggest;
mod test;
mod top;
mod verbs;
mod why;

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use serde::Serialize;

use crate::daemon::{self, log};
use crate::protocol::Op;
use crate::terms::{LAYOUT, printable, without_number};
use admin_client::AdminFailure;
use client::ClientFailure;

/// A per-host rate limiter and load shedder for APIs
///
/// A daemon decides over a Unix socket, in microseconds, whether a request may start. When it fails, requests pass without
/// limits.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(daemon::serve::Args),
    Check(check::Args),
    Why(why::Args),
    Explain(explain::Args),
    Test(test::Args),
    /// Decides whether a request may start, and charges it if so
    Hit(ask::Args),
    /// Prints the decision of `hit` without charging the request
    Peek(ask::Args),
    Acquire(acquire::Args),
    Record(record::Args),
    Replay(replay::Args),
    Suggest(suggest::Args),
    Status(status::Args),
    Top(top::Args),
    Dashboard(dashboard::Args),
    Fleet(fleet::Args),
    Reload(verbs::ReloadArgs),
    Healthcheck(verbs::HealthArgs),
    Switch(verbs::SwitchArgs),
    Block(verbs::BlockArgs),
    Unblock(verbs::UnblockArgs),
    /// Clears the state of one key of a rule, its block included; leases stay
    #[command(after_help = verbs::RESET_HELP)]
    Reset(verbs::KeyArgs),
    Bench(bench::Args),
    Doctor(doctor::Args),
    Gen(generate::Args),
}

const EXAMPLES: &str = "\
Begin with:
  tidegate check config/rules                  check the rules
  tidegate serve --rules config/rules          start the daemon
  tidegate hit api user=u1 method=POST         send a request, in another shell
  tidegate acquire jobs user=u1 -- make all    run a command under a lease";

/// Groups the commands in the help by what they are for. A command in no group would be missing: a test looks.
fn grouped(command: clap::Command) -> clap::Command {
    let mut groups = String::new();
    for (name, commands) in GROUPS {
        let _ = writeln!(groups, "{name}:");
        for name in commands {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(groups, "  {name:<12} {about}");
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["serve", "reload", "healthcheck", "gen"]),
    ("Ask", &["hit", "peek", "acquire", "why", "bench"]),
    ("Rules", &["check", "explain", "test"]),
    ("Traces", &["record", "replay", "suggest"]),
    ("Operate", &["status", "top", "dashboard", "fleet", "switch", "block", "unblock", "reset", "doctor"]),
];

/// Reads the arguments and runs the command.
#[must_use]
pub fn run() -> ExitCode {
    if completions::answered() {
        return ExitCode::SUCCESS;
    }
    let parsed =
        grouped(Arguments::command()).try_get_matches().and_then(|found| Arguments::from_arg_matches(&found));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version go to standard output and are no failure.
            let code = if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
            let _ = error.print();
            return code;
        }
    };
    let to = Printable { to: std::io::stdout().lock(), kept: kept(&arguments.command) };
    let mut out = Output { to, failure: None };
    let done = match &arguments.command {
        Command::Serve(args) => Ok(daemon::serve::run(args)),
        Command::Check(args) => check::run(args, &mut out),
        Command::Why(args) => why::run(args, &mut out),
        Command::Explain(args) => explain::run(args, &mut out),
        Command::Test(args) => test::run(args, &mut out),
        Command::Hit(args) => args.run(Op::Hit, true, &mut out),
        Command::Peek(args) => args.run(Op::Peek, false, &mut out),
        Command::Acquire(args) => acquire::run(args),
        Command::Status(args) => status::run(args, &mut out),
        Command::Top(args) => top::run(args, &mut out),
        Command::Dashboard(args) => dashboard::run(args, &mut out),
        Command::Fleet(args) => fleet::run(args, &mut out),
        Command::Reload(args) => args.run(&mut out),
        Command::Healthcheck(args) => args.run(&mut out),
        Command::Switch(args) => args.run(&mut out),
        Command::Block(args) => args.key.carry_out("/block", args, &mut out),
        Command::Unblock(args) => args.key.carry_out("/unblock", args, &mut out),
        Command::Reset(args) => args.carry_out("/reset", args, &mut out),
        Command::Bench(args) => bench::run(args, &mut out),
        Command::Doctor(args) => doctor::run(args, &mut out),
        Command::Gen(args) => generate::run(args, &mut out),
        Command::Record(args) => record::run(args, &mut out.to),
        Command::Replay(args) => replay::run(args, &mut out.to),
        Command::Suggest(args) => suggest::run(args, &mut out),
    };
    let _ = out.flush();
    let is_request = matches!(arguments.command, Command::Hit(_) | Command::Peek(_));
    let is_closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    let (code, message) = match (done, out.failure) {
        (Err(CliError::Io(error)), _) if is_closed(&error) => return ExitCode::SUCCESS,
        (Err(CliError::Io(error)), _) => (ExitCode::FAILURE, without_number(&error)),
        (Err(CliError::Message(code, message)), _) => (ExitCode::from(code), message),
        (Ok(code), Some(error)) if !is_closed(&error) => {
            let is_done = code != ExitCode::SUCCESS || is_request;
            let message = format!("the output is not written: {}", without_number(&error));
            (if is_done { code } else { ExitCode::FAILURE }, message)
        }
        (Ok(code), _) => return code,
    };
    log::plainly(&format!("tidegate: {message}"));
    code
}

/// Returns the characters that the output of a command keeps, although they hide: those of its own layout and colours.
fn kept(command: &Command) -> Vec<char> {
    let escape = matches!(command, Command::Check(args) if args.color.is_on()).then_some('\x1b');
    LAYOUT.into_iter().chain(escape).collect()
}

/// Standard output, in which texts of callers and rules cannot move the cursor or turn the direction of others.
struct Printable<W> {
    to: W,
    kept: Vec<char>,
}

impl<W: Write> Write for Printable<W> {
    /// Writes whole texts: no writer above cuts a line within a character.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match str::from_utf8(bytes).map(|text| printable(text, &self.kept)) {
            Ok(Cow::Owned(escaped)) => self.to.write_all(escaped.as_bytes()).map(|()| bytes.len()),
            _ => self.to.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Standard output of a command whose exit code is its result: after a failure the rest is dropped, so that neither a closed
/// pipe nor a full disk turns a refusal or an error into success, or an admitted request into a failure.
struct Output<W> {
    to: W,
    failure: Option<io::Error>,
}

impl<W: Write> Output<W> {
    /// Returns the result, or `dropped` after a failure.
    fn unless_failed<T>(&mut self, result: io::Result<T>, dropped: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                self.failure.get_or_insert(error);
                Ok(dropped)
            }
            result => result,
        }
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failure.is_some() {
            return Ok(bytes.len());
        }
        let written = self.to.write(bytes);
        self.unless_failed(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.unless_failed(flushed, ())
    }
}

/// The result of a command. A reply of the daemon may be a failure with its own exit code.
type CliResult = Result<ExitCode, CliError>;

/// Why a command ended early.
#[derive(Debug)]
pub enum CliError {
    /// The output or the process failed. A reader that closed the pipe (`| head`) is no failure.
    Io(io::Error),
    /// An exit code, and a message for standard error.
    Message(u8, String),
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> CliError {
        CliError::Io(error)
    }
}

impl From<AdminFailure> for CliError {
    fn from(failure: AdminFailure) -> CliError {
        failed(failure)
    }
}

impl From<ClientFailure> for CliError {
    fn from(failure: ClientFailure) -> CliError {
        failed(failure)
    }
}

/// The format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object, for programs
    Json,
}

/// The format of the output, for every command that has one
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct FormatArgs {
    /// How to print the answer
    #[arg(long, value_enum, default_value_t)]
    format: OutputFormat,
    /// Short for --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl FormatArgs {
    fn is_json(self) -> bool {
        self.json || self.format == OutputFormat::Json
    }

    /// Prints an answer as JSON, or as `text` prints it.
    fn print<J: Serialize>(
        self,
        out: &mut dyn Write,
        json: impl FnOnce() -> J,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.is_json() { writeln!(out, "{:#}", serde_json::json!(json())) } else { text(out) }
    }
}

impl From<OutputFormat> for FormatArgs {
    fn from(format: OutputFormat) -> FormatArgs {
        FormatArgs { format, json: false }
    }
}

/// Parses a span such as `30s` or `1h 30m`.
fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).ok().filter(|span| !span.is_zero());
    span.ok_or_else(|| "write a number above 0 and a unit, such as 500ms, 30s, 15m, 1h or 1d".to_owned())
}

/// Returns a failure: exit code 1.
fn failed(reason: impl Display) -> CliError {
    CliError::Message(1, reason.to_string())
}

/// Returns a report of wrong usage: exit code 2.
fn usage(reason: impl Display) -> CliError {
    CliError::Message(2, reason.to_string())
}
