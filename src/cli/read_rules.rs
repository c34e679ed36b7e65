//! Reads settings and rules like the daemon, for commands that only inspect them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::admin_client::AdminClient;
use crate::daemon::fleet_secret::fleet_secret;
use crate::daemon::redis_settings::fleet_alone;
use crate::daemon::settings::{MEMORY_BYTES, SETTINGS_FILE, Settings};
use crate::daemon::settings_file::holds_settings;
use crate::rules::source::Source;
use crate::rules::{self, Domain, Loaded, Problem, Scopes};

#[derive(Debug, Default)]
pub(super) struct RulesRead {
    pub(super) settings: Option<PathBuf>,
    pub(super) rules: Option<PathBuf>,
    pub(super) problems: Vec<Problem>,
    pub(super) domains: Vec<Arc<Domain>>,
    pub(super) failed: Vec<Box<str>>,
    /// The byte budget of the tables.
    pub(super) memory_bytes_max: u64,
    /// The daemon of these settings; `None` if no settings were read.
    pub(super) daemon: Option<AdminClient>,
}

impl RulesRead {
    /// Reads a path of rules or settings; without one, the settings in `config`, else the installed ones.
    pub(super) fn of(path: Option<&Path>, config: Option<&Path>) -> RulesRead {
        match path {
            Some(path) if Source::read_anywhere(path).is_ok_and(|source| holds_settings(&source)) => {
                RulesRead::of_settings(Some(path))
            }
            Some(path) => RulesRead::nothing().with_rules(path, &Scopes::default()),
            None => {
                let installed = Path::new(SETTINGS_FILE);
                let installed = installed.exists().then_some(installed);
                RulesRead::of_settings(config.or(installed))
            }
        }
    }

    fn nothing() -> RulesRead {
        RulesRead { memory_bytes_max: MEMORY_BYTES, ..RulesRead::default() }
    }

    fn of_settings(path: Option<&Path>) -> RulesRead {
        let read = RulesRead { settings: path.map(Path::to_owned), ..RulesRead::nothing() };
        match Settings::load(path) {
            Ok((settings, problems)) => {
                let memory_bytes_max = settings.memory_max_bytes;
                let read = RulesRead { problems, memory_bytes_max, ..read };
                let mut read = read.with_rules(&settings.rules, &settings.scopes());
                // A domain left out for errors may have the rules that the settings expect.
                if read.count(true) == 0 {
                    read.problems.extend(settings.domains_without_rules(&read.domains).cloned());
                }
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

    /// Counts the errors, or the warnings.
    pub(super) fn count(&self, errors: bool) -> usize {
        self.problems.iter().filter(|problem| problem.is_error() == errors).count()
    }

    /// Returns the paths that were read.
    pub(super) fn read_from(&self) -> String {
        match (&self.settings, &self.rules) {
            (Some(settings), Some(rules)) => format!("{}, {}", settings.display(), rules.display()),
            (Some(path), None) | (None, Some(path)) => path.display().to_string(),
            (None, None) => "nothing read".to_owned(),
        }
    }
}
