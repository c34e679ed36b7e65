//! `tidegate gen`: man pages and shell completions, from the texts of `--help`. It contacts no daemon.

mod man;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Subcommand, ValueEnum};
use clap_complete::generate;
use clap_complete::shells::{Bash, Fish, Zsh};

use super::{Arguments, CliResult};

/// Writes man pages and completions for shells, as packages install them
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    what: GeneratedKind,
}

#[derive(Clone, Debug, Subcommand)]
enum GeneratedKind {
    /// Writes a man page for every command
    Man {
        /// Where to: made if it is not there
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Prints what a shell needs to complete commands and options
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// A shell that can be told how to complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

const EXAMPLES: &str = "\
Examples:
  tidegate gen man /usr/share/man/man1
  tidegate gen completions bash > /usr/share/bash-completion/completions/tidegate
  tidegate gen completions zsh > /usr/share/zsh/vendor-completions/_tidegate
  tidegate gen completions fish > /usr/share/fish/vendor_completions.d/tidegate.fish
  source <(tidegate gen completions bash)      in this shell alone

Exit codes: 0 written; 1 a page cannot be written, with the reason; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    match &args.what {
        GeneratedKind::Man { directory } => man::write(&Arguments::command(), directory)?,
        GeneratedKind::Completions { shell } => out.write_all(&completions(*shell))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: Shell) -> Vec<u8> {
    let mut command = shown(&Arguments::command());
    // The generators panic if a write fails; writes to memory do not.
    let mut text = Vec::new();
    match shell {
        Shell::Bash => generate(Bash, &mut command, NAME, &mut text),
        Shell::Zsh => generate(Zsh, &mut command, NAME, &mut text),
        Shell::Fish => generate(Fish, &mut command, NAME, &mut text),
    }
    text
}

/// Returns the command without its hidden parts, which are for this project's tests.
fn shown(command: &clap::Command) -> clap::Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(shown);
    // Leaked once, as the process exits afterwards.
    let name: &'static str = command.get_name().to_owned().leak();
    let mut seen = clap::Command::new(name)
        .disable_help_subcommand(true)
        .version(VERSION)
        .propagate_version(true)
        .args(arguments)
        .subcommands(commands);
    if let Some(about) = command.get_about() {
        seen = seen.about(about.clone());
    }
    seen
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

const NAME: &str = "tidegate";
