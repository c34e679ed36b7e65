//! The rules as they were last read, and how they are read again: each domain is swapped whole, or keeps the last
//! rules that were good. It neither watches nor puts anything in force.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::contents::{Contents, Fingerprint};
use super::difference::Difference;
use super::load::{Homes, Loaded, read_kept, read_knowing};
use super::{Domain, Problem, RuleSet, Scopes, Texts};

/// The rules of one path, over many readings.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    /// Those that the settings give.
    scopes: Scopes,
    /// What is in force, each domain as it was last read well.
    good: Vec<Good>,
    /// Remembered for a file that cannot say it any more.
    homes: Homes,
    /// What the files held when they were last read; none: read again whatever they hold.
    seen: Option<Fingerprint>,
    /// Whether a reading has been put in force.
    begun: bool,
    /// What an earlier process found good, until a reading has been put in force.
    remembered: Vec<Texts>,
}

/// A domain read without errors, and the fingerprint of what it was read from.
#[derive(Clone, Debug)]
struct Good {
    domain: Arc<Domain>,
    content: Fingerprint,
    /// Whether the files stood still meanwhile: only then the fingerprint is surely that of what was read.
    settled: bool,
}

/// What one reading brought.
#[derive(Debug, Default)]
pub struct Reading {
    /// Errors and warnings, by file, line and column.
    pub problems: Vec<Problem>,
    /// Domains with errors that keep their last good rules.
    pub kept: Vec<Box<str>>,
    /// Domains with errors that never had good rules: they have no limits.
    pub without: Vec<Box<str>>,
    /// Of those that keep theirs, these have the rules that an earlier process had found good.
    pub recalled: Vec<Box<str>>,
    /// Why nothing at all was swapped.
    pub halt: Option<Halt>,
    /// What is in force now and was not before, and the other way round.
    pub difference: Difference,
}

/// Why a reading changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It is not known which files there are.
    Unlisted,
    /// The files changed again and again while they were read: what was read may be half of one version and half of
    /// another.
    Unsettled,
    /// These files do not say which domain they belong to and never did: it could be any.
    Homeless(Vec<Arc<str>>),
}

impl Reading {
    /// Whether everything that was written is in force.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.halt.is_none() && !self.problems.iter().any(Problem::is_error)
    }
}

impl Library {
    /// The rules at a path, a directory or one file, before the first reading.
    #[must_use]
    pub fn new(path: &Path) -> Library {
        Library {
            path: path.to_owned(),
            scopes: Scopes::default(),
            good: Vec::new(),
            homes: Homes::new(),
            seen: None,
            begun: false,
            remembered: Vec::new(),
        }
    }

    /// The same where the settings give scopes to rules that say none.
    #[must_use]
    pub fn scoped(self, scopes: Scopes) -> Library {
        Library { scopes, ..self }
    }

    /// What an earlier process found good, for domains that have errors at the first reading: to be called before it.
    pub fn remember(&mut self, texts: Vec<Texts>) {
        for Texts { domain, files, .. } in &texts {
            for (file, _) in files {
                self.homes.entry(file.as_str().into()).or_default().push(domain.clone());
            }
        }
        self.remembered = texts;
    }

    /// Begins with texts of an earlier process in place of the files, which are not read until they hold something else.
    pub fn begin_with(&mut self, texts: Vec<Texts>) {
        self.seen = Some(Contents::of(&self.path).fingerprint());
        self.remember(texts);
        self.recall(|_| true);
        (self.begun, self.remembered) = (true, Vec::new());
    }

    /// The texts of the domains that are in force as their files stand. Nothing where a file has changed since it was
    /// read: then there will be another reading.
    #[must_use]
    pub fn texts(&self) -> Vec<Texts> {
        let contents = Contents::of(&self.path);
        if self.seen != Some(contents.fingerprint()) {
            return Vec::new();
        }
        let stands =
            |good: &&Good| good.settled && good.content == self.content(&contents, good.domain.name());
        let texts = self.good.iter().filter(stands).filter_map(|good| {
            let name = good.domain.name();
            let files = self.homes.iter().filter(|(_, homes)| homes.iter().any(|home| **home == *name));
            Texts::of(&good.domain, files.map(|(file, _)| &**file))
        });
        let texts = texts.collect();
        if self.is_outdated() { Vec::new() } else { texts }
    }

    /// Where they are.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the files hold something else than at the last reading. Reads them all, and parses nothing.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.seen != Some(Contents::of(&self.path).fingerprint())
    }

    /// Reads everything again.
    pub fn read(&mut self) -> Reading {
        let (contents, loaded) = self.read_settled();
        let settled = self.seen.is_some();
        let Loaded { domains, problems, failed, homes, homeless, unlisted } = loaded;
        let recalled = self.recall(|name| unlisted || failed.iter().any(|failed| **failed == *name));
        // At the start there is nothing to lose: what can be read is better than nothing.
        let halt = match (unlisted, settled, homeless.is_empty()) {
            (true, ..) => Some(Halt::Unlisted),
            (false, false, _) if self.begun => Some(Halt::Unsettled),
            (false, true, false) if self.begun => Some(Halt::Homeless(homeless)),
            _ => None,
        };
        if halt.is_some() {
            return Reading { problems, recalled, halt, ..Reading::default() };
        }
        self.homes = homes;
        let mut good: Vec<Good> = Vec::with_capacity(domains.len() + failed.len());
        for domain in domains {
            let content = self.content(&contents, domain.name());
            let same = |known: &&Good| known.settled && settled && known.content == content;
            let unchanged = self.find(domain.name()).filter(same);
            good.push(unchanged.cloned().unwrap_or(Good { domain, content, settled }));
        }
        let (kept, without): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|name| self.find(name).is_some());
        good.extend(kept.iter().filter_map(|name| self.find(name)).cloned());
        let difference = Difference::between(&shared(&self.good), &shared(&good));
        (self.good, self.begun) = (good, true);
        self.remembered = Vec::new();
        Reading { problems, kept, without, recalled, halt, difference }
    }

    /// Before anything is in force, takes up what was good before, where it is wanted. Returns what was taken up.
    fn recall(&mut self, is_wanted: impl Fn(&str) -> bool) -> Vec<Box<str>> {
        if self.begun {
            return Vec::new();
        }
        let wanted: Vec<&Texts> = self
            .remembered
            .iter()
            .filter(|texts| is_wanted(&texts.domain) && self.find(&texts.domain).is_none())
            .collect();
        let recalled: Vec<Arc<Domain>> =
            wanted.into_iter().filter_map(|texts| read_kept(texts, &self.scopes)).collect();
        let names = recalled.iter().map(|domain| domain.name().into()).collect();
        let good = |domain| Good { domain, content: Fingerprint::default(), settled: false };
        self.good.extend(recalled.into_iter().map(good));
        names
    }

    /// What a domain is made of, by what its files hold.
    fn content(&self, contents: &Contents, name: &str) -> Fingerprint {
        contents.of_domain(|file| {
            self.homes
                .get(&*file.to_string_lossy())
                .is_some_and(|homes| homes.iter().any(|home| **home == *name))
        })
    }

    /// What is in force: each domain as it was last read well.
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        RuleSet::new(self.domains())
    }

    /// The domains in force.
    #[must_use]
    pub fn domains(&self) -> Vec<Arc<Domain>> {
        shared(&self.good)
    }

    /// The domains in force, each with the fingerprint of the files it was read from.
    pub fn fingerprints(&self) -> impl Iterator<Item = (&str, Fingerprint)> + '_ {
        self.good.iter().map(|good| (good.domain.name(), good.content))
    }

    /// Reads until nothing changes meanwhile, so that no half of one version is put in force with half of another;
    /// whether it came to that, `seen` says.
    fn read_settled(&mut self) -> (Contents, Loaded) {
        let mut before = Contents::of(&self.path);
        let mut readings = 1;
        loop {
            let loaded = read_knowing(&self.path, &self.homes, &self.scopes);
            let after = Contents::of(&self.path);
            self.seen = (before == after).then(|| after.fingerprint());
            if self.seen.is_some() || readings == READINGS_MAX {
                return (after, loaded);
            }
            (before, readings) = (after, readings + 1);
        }
    }

    fn find(&self, name: &str) -> Option<&Good> {
        self.good.iter().find(|good| good.domain.name() == name)
    }
}

fn shared(good: &[Good]) -> Vec<Arc<Domain>> {
    good.iter().map(|good| Arc::clone(&good.domain)).collect()
}

/// Each takes a fraction of a second at most. Whoever writes all the time rings for the next reading himself.
const READINGS_MAX: u32 = 4;
