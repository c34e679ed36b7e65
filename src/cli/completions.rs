//! Completions for shells. Their scripts run this program, which asks the running daemon for its domains and rules; without a
//! daemon there are none to offer.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, ValueEnum};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use serde::Deserialize;

use super::Arguments;
use super::admin_client::AdminArgs;
use crate::engine::Mode;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the candidates if a completion script runs this program, and returns whether it does.
pub(super) fn answered() -> bool {
    let command = || super::generate::without_help(Arguments::command());
    let directory = std::env::current_dir().ok();
    let completed = CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .try_complete(std::env::args_os(), directory.as_deref());
    // A word that cannot be completed has no candidates.
    completed.unwrap_or(true)
}

pub(super) fn script(shell: Shell) -> std::io::Result<Vec<u8>> {
    let completer: &dyn EnvCompleter = match shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, NAME, NAME, NAME, &mut script)?;
    if shell == Shell::Zsh {
        // The shell loads the file of a package at the first completion, which it is to answer.
        script.extend_from_slice(ZSH_FIRST);
    }
    Ok(script)
}

/// Completes a domain of the daemon.
pub(super) fn domains() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        rules_in_force().into_iter().map(|domain| CompletionCandidate::new(domain.name)).collect()
    })
}

/// Completes a rule of the daemon that counts keys, with or without its domain.
pub(super) fn rules() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        rules_from(word, |kind| !["exempt", "deny", "shed"].contains(&kind))
    })
}

/// Completes the words of `switch`: a rule of the daemon, or a mode.
pub(super) fn rules_and_modes() -> ArgValueCompleter {
    ArgValueCompleter::new(|word: &OsStr| {
        let modes = Mode::ALL.iter().map(|mode| mode.name());
        let modes = modes.filter(|mode| mode.starts_with(&*word.to_string_lossy()));
        rules_from(word, |_| true).into_iter().chain(modes.map(CompletionCandidate::new)).collect()
    })
}

/// Returns the rules whose names with the domain begin with a word; if there are none, those whose names do.
fn rules_from(word: &OsStr, is_wanted: impl Fn(&str) -> bool) -> Vec<CompletionCandidate> {
    let (word, domains) = (word.to_string_lossy(), rules_in_force());
    let of = |name: &dyn Fn(&str, &str) -> String| {
        let rules = domains.iter().flat_map(|domain| domain.rules.iter().map(move |rule| (domain, rule)));
        let rules = rules.filter(|(_, rule)| is_wanted(&rule.kind));
        let named = rules.map(|(domain, rule)| (name(&domain.name, &rule.name), rule));
        let begun = named.filter(|(name, _)| name.starts_with(&*word));
        let candidate = |(name, rule): (String, &ListedRule)| {
            CompletionCandidate::new(name).help(Some(format!("{}, {}", rule.kind, rule.mode).into()))
        };
        begun.map(candidate).collect::<Vec<_>>()
    };
    let full = of(&|domain, rule| format!("{domain}/{rule}"));
    if full.is_empty() { of(&|_, rule| rule.to_owned()) } else { full }
}

/// Asks the daemon for its domains; without an answer there are none.
fn rules_in_force() -> Vec<ListedDomain> {
    // The words after `--` are those of the command line.
    let words: Vec<OsString> = std::env::args_os().collect();
    let value = |option: &str| {
        let place = words.iter().position(|word| word == option)?;
        words.get(place + 1).map(PathBuf::from)
    };
    let (admin, socket) = (value("--admin"), value("--socket"));
    let client = AdminArgs { admin, socket }.client().within(PATIENCE);
    let mut domains = client.get_json::<RulesPage>("/rules").map(|page| page.domains).unwrap_or_default();
    domains.retain(|domain| is_plain(&domain.name));
    domains.iter_mut().for_each(|domain| domain.rules.retain(|rule| is_plain(&rule.name)));
    domains
}

/// Whether a shell reads a name as it stands: bash does not quote candidates, and a rules file may have a command in a name.
fn is_plain(name: &str) -> bool {
    let is_plain = |character: char| character.is_alphanumeric() || "-_.@%+,".contains(character);
    !name.starts_with('-') && name.chars().all(is_plain)
}

#[derive(Debug, Deserialize)]
struct RulesPage {
    domains: Vec<ListedDomain>,
}

#[derive(Debug, Deserialize)]
struct ListedDomain {
    name: String,
    rules: Vec<ListedRule>,
}

#[derive(Debug, Deserialize)]
struct ListedRule {
    name: String,
    kind: String,
    mode: String,
}

const NAME: &str = "tidegate";

/// Set by the scripts alone.
const VARIABLE: &str = "TIDEGATE_COMPLETE";

const ZSH_FIRST: &[u8] =
    b"if [ \"$funcstack[1]\" = \"_tidegate\" ]; then _clap_dynamic_completer_tidegate \"$@\"; fi\n";

/// The shell waits meanwhile.
const PATIENCE: Duration = Duration::from_millis(100);
