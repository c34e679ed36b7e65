//! `tidegate top`: shows current activity, refreshed every second. It changes nothing.

mod rates;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::text::Text;

use super::admin_client::AdminArgs;
use super::{CliError, CliResult, usage};
use crate::clock::read_boot_nanos;
use rates::TopSample;

/// Shows what is going on: the busiest rules, callers and pools, each second anew
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Look for one second, print, and end
    #[arg(long)]
    once: bool,
    /// As JSON; together with --once
    #[arg(long, requires = "once")]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
q ends it. Rates are those of the last second; callers fade over some ten minutes.

Exit codes: 0 ended; 1 the daemon does not answer, with what to do; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
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
    if args.json {
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
