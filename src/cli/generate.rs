//! `tidegate gen`: man pages and shell completions, from the texts of `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory, Subcommand};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::completions::{self, Shell};
use super::{Arguments, CliError, CliResult, failed};

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
    #[command(after_help = EXAMPLES)]
    Man {
        /// Where to: made if it is not there
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Prints the completions of a shell: commands, options, and domains and rules of the running daemon
    #[command(after_help = EXAMPLES)]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

const EXAMPLES: &str = "\
Examples:
  tidegate gen man /usr/share/man/man1
  tidegate gen completions bash > /usr/share/bash-completion/completions/tidegate
  tidegate gen completions zsh > /usr/share/zsh/vendor-completions/_tidegate
  tidegate gen completions fish > /usr/share/fish/vendor_completions.d/tidegate.fish
  source <(tidegate gen completions bash)      for this shell only

The scripts run `tidegate` of the PATH, which asks the daemon of $TIDEGATE_SOCKET, --socket or --admin for its domains and \
rules, and waits for 0.1 s at most.

Exit codes: 0 written; 1 a page cannot be written, with the reason; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    match &args.what {
        GeneratedKind::Man { directory } => {
            fs::create_dir_all(directory).map_err(|error| unwritable(directory, &error))?;
            let mut command = without_help(Arguments::command());
            // Building gives each command its full name.
            command.build();
            write_pages(&command, directory)?;
        }
        GeneratedKind::Completions { shell } => out.write_all(&completions::script(*shell)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes the commands `help`, which have no pages and no completions of their own.
pub(super) fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

fn write_pages(command: &Command, directory: &Path) -> Result<(), CliError> {
    let path = directory.join(format!("{}.1", full_name(command)));
    page(command).and_then(|text| fs::write(&path, text)).map_err(|error| unwritable(&path, &error))?;
    command.get_subcommands().try_for_each(|command| write_pages(command, directory))
}

fn unwritable(path: &Path, error: &io::Error) -> CliError {
    failed(format_args!("{}: {error}: name a directory that may be written to", path.display()))
}

/// Returns a name such as `tidegate-fleet-show`.
fn full_name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let man = Man::new(command.clone());
    // The library omits an empty date, which shifts the arguments after it. A date would make builds differ.
    let name = full_name(command);
    writeln!(text, ".TH {name} 1 \"\" \"{SOURCE}\" \"{MANUAL}\"")?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut more = Roff::default();
    if let Some(words) = command.get_after_help() {
        write_sections(&words.to_string(), &mut more);
    }
    see_also(&mut more, command);
    more.to_writer(&mut text)?;
    Ok(text)
}

fn write_sections(words: &str, page: &mut Roff) {
    for (heading, lines) in sections(words) {
        let is_verbatim = heading == "EXAMPLES";
        let paragraphs = lines.split(|line| line.is_empty()).filter(|paragraph| !paragraph.is_empty());
        for (index, paragraph) in paragraphs.enumerate() {
            match index {
                0 => page.control("SH", [heading]),
                _ => page.control("PP", []),
            };
            if is_verbatim {
                page.control("EX", []);
            }
            for line in paragraph {
                page.text([roman(*line)]);
            }
            if is_verbatim {
                page.control("EE", []);
            }
        }
    }
}

/// Splits the text below the options of `--help` into lines by section. An empty line of prose ends a paragraph.
fn sections(words: &str) -> [(&'static str, Vec<&str>); 3] {
    let (mut notes, mut exit_codes, mut examples) = (Vec::new(), Vec::new(), Vec::new());
    let mut lines = words.lines().peekable();
    while let Some(line) = lines.next() {
        let is_above_examples =
            line.ends_with(':') && lines.peek().is_some_and(|next| next.starts_with("  "));
        if let Some(codes) = line.strip_prefix("Exit codes: ") {
            exit_codes.push(codes);
        } else if let Some(example) = line.strip_prefix("  ") {
            examples.push(example);
        } else if !is_above_examples {
            notes.push(line);
        } else if !HEADINGS.contains(&line) {
            examples.push(line);
        }
    }
    [("NOTES", notes), ("EXIT STATUS", exit_codes), ("EXAMPLES", examples)]
}

/// The page of the program already lists its commands.
fn see_also(page: &mut Roff, command: &Command) {
    let name = full_name(command);
    if let Some((above, _)) = name.rsplit_once('-') {
        page.control("SH", ["SEE ALSO"]);
        page.text([bold(above), roman("(1)")]);
    }
}

/// Lines above examples that only repeat the heading of the section.
const HEADINGS: [&str; 3] = ["Example:", "Examples:", "Begin with:"];

const MANUAL: &str = "tidegate manual";

const SOURCE: &str = concat!("tidegate ", env!("CARGO_PKG_VERSION"));
