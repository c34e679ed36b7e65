//! Checks the settings, the rules and the state directory: readable, valid, with enough space.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use strum::VariantArray;

use super::Finding;
use super::reach::{self, User};
use crate::daemon::file_owners::{self, ExposedFile};
use crate::daemon::settings::Settings;
use crate::rules::{self, Problem, Scopes};
use crate::state::{ASIDE, EVIDENCE, StateFile};
use crate::terms::{counted, without_number};

/// Returns the settings, read as by the daemon, and the findings on them.
pub(super) fn settings(file: Option<&Path>) -> (Option<Settings>, Vec<Finding>) {
    const WHAT: &str = "settings";
    let shown = file.map_or_else(|| "the defaults".to_owned(), |file| file.display().to_string());
    match Settings::load(file) {
        Ok((settings, warnings)) => {
            let mut findings = vec![Finding::well(WHAT, format!("{shown} can be read"))];
            findings.extend(warnings.iter().map(|warning| of_problem(WHAT, warning)));
            (Some(settings), findings)
        }
        Err(problems) => (None, problems.iter().map(|problem| of_problem(WHAT, problem)).collect()),
    }
}

pub(super) fn rules(path: &Path, scopes: &Scopes) -> Finding {
    const WHAT: &str = "rules";
    let loaded = rules::read_scoped(path, scopes);
    let errors = loaded.problems.iter().filter(|problem| problem.is_error()).count();
    let count: usize = loaded.domains.iter().map(|domain| domain.rules().len()).sum();
    let (rules, domains) = (counted(count, "rule"), counted(loaded.domains.len(), "domain"));
    let message = format!("{}: {rules} in {domains}", path.display());
    let check = format!("tidegate check {} shows them, each with its help", path.display());
    match (errors, count) {
        (1.., _) => Finding::wrong(WHAT, format!("{message}, and {}", counted(errors, "error")), check),
        (_, 0) => {
            let help = "write one: docs/rules.md, or copy from /usr/share/doc/tidegate/examples";
            Finding::warning(WHAT, format!("{message}: everything is allowed"), help)
        }
        _ if !loaded.problems.is_empty() => {
            Finding::warning(WHAT, format!("{message}, {}", counted(loaded.problems.len(), "warning")), check)
        }
        _ => Finding::well(WHAT, message),
    }
}

/// Checks the state directory and the files that were set aside there. systemd names the directory in the environment of
/// the daemon, which this user may not see (`is_seen`).
pub(super) fn state(settings: &Settings, of_daemon: Option<&User>, is_seen: bool) -> Vec<Finding> {
    let packaged = Path::new(STATE_DIRECTORY);
    let is_packaged = of_daemon.is_none() || !is_seen;
    let packaged = (is_packaged && packaged.exists()).then_some(packaged);
    let Some(path) = settings.state.as_deref().or(packaged) else {
        if !is_seen {
            let message = "the settings name no directory, and the daemon's environment cannot be read";
            return vec![Finding::unseen(STATE, message, "run this as root")];
        }
        let help = "write `state: /var/lib/tidegate`, a directory of the daemon's user";
        return vec![Finding::warning(STATE, "no directory is set: a restart forgets every count", help)];
    };
    let found = std::iter::once(directory(path, settings.memory_max_bytes, of_daemon));
    let foreign = file_owners::of_state(path, of_daemon.map(|user| user.uid));
    found.chain(foreign.into_iter().map(|foreign| of_foreign(STATE, foreign))).chain(left(path)).collect()
}

/// Checks that no user besides root and the daemon's may change the settings, the rules and the secrets, or read these.
pub(super) fn owners(file: Option<&Path>, settings: &Settings, of_daemon: Option<&User>) -> Vec<Finding> {
    let foreign = file_owners::of_settings(file, settings, of_daemon.map(|user| user.uid));
    foreign.into_iter().map(|foreign| of_foreign("files", foreign)).collect()
}

fn of_foreign(what: &'static str, foreign: ExposedFile) -> Finding {
    Finding::warning(what, format!("{}: {}", foreign.path.display(), foreign.message), foreign.help)
}

/// Returns findings on files that a start set aside or a crash loop left, and that were not removed since. `directory`
/// reports an unreadable directory.
fn left(directory: &Path) -> impl Iterator<Item = Finding> + '_ {
    let there = move |extension| {
        let files = StateFile::VARIANTS.iter().map(|file| file.name());
        let files = files.map(move |file| (file, directory.join(file).with_added_extension(extension)));
        files.filter(|(_, path)| path.symlink_metadata().is_ok())
    };
    let aside = there(ASIDE).map(|(file, aside)| {
        let aside = aside.display();
        let message = format!("{aside}: `{file}` could not be used at a start, and its state is lost");
        Finding::warning(STATE, message, format!("the log of that start says why; then: rm {aside}"))
    });
    aside.chain(there(EVIDENCE).map(|(_, aside)| {
        let aside = aside.display();
        let message = format!("{aside}: the daemon was in a crash loop, and this is evidence of it");
        Finding::warning(STATE, message, format!("report it, with the log of that time; then: rm {aside}"))
    }))
}

/// Checks that the directory exists, is private to its owner, and has space for the tables twice.
fn directory(path: &Path, memory_max_bytes: u64, of_daemon: Option<&User>) -> Finding {
    let shown = path.display();
    let found = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => found,
        Ok(_) => {
            let message = format!("{shown} is not a directory");
            return Finding::wrong(STATE, message, "remove it, or name another");
        }
        Err(error) => {
            let user = of_daemon.map_or("tidegate", |user| &user.name);
            let help = format!("install -d -m 0700 -o {user} {shown}");
            let message = format!("{shown}: {}: a restart forgets every count", without_number(&error));
            return Finding::wrong(STATE, message, help);
        }
    };
    if let Some(obstacle) = of_daemon.and_then(|user| reach::state(STATE, path, user)) {
        return obstacle;
    }
    if found.mode() & 0o077 != 0 {
        let message = format!("{shown} has mode {:04o}: others can look into it", found.mode() & 0o7777);
        return Finding::warning(STATE, message, format!("chmod 0700 {shown}"));
    }
    let needed = memory_max_bytes.saturating_mul(2);
    match rustix::fs::statvfs(path) {
        Ok(system) if system.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) => {
            Finding::wrong(STATE, format!("{shown} is mounted read-only"), "mount it to be written")
        }
        Ok(system) => {
            let free = system.f_bavail.saturating_mul(system.f_frsize);
            let message = format!("{shown} has {} MiB free", free >> 20);
            if free < FREE_BYTES_MIN {
                let message =
                    format!("{shown} is full: switches, blocks and counts are lost at the next start");
                Finding::wrong(STATE, message, "make room there")
            } else if free < needed {
                let help = format!("make room for twice `memory.max`, {} MiB", needed >> 20);
                Finding::warning(STATE, message, help)
            } else {
                Finding::well(STATE, message)
            }
        }
        Err(error) => {
            Finding::unseen(STATE, format!("{shown}: {}", without_number(&error.into())), "run this as root")
        }
    }
}

pub(super) fn of_problem(what: &'static str, problem: &Problem) -> Finding {
    // The text of the problem ends with its help, which is printed separately here.
    let message = format!("{}: {}", problem.position, problem.message);
    let finding = if problem.is_error() { Finding::wrong } else { Finding::warning };
    finding(what, message, problem.help.clone())
}

const STATE: &str = "state";

/// Switches and blocks take less.
const FREE_BYTES_MIN: u64 = 64 << 10;

/// The state directory of the packaged unit.
const STATE_DIRECTORY: &str = "/var/lib/tidegate";
