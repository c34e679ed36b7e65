//! The rules as last read, and their reload: each domain is swapped as a whole, or keeps its last valid
//! rules. Neither watches files nor applies the rules.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::condition::joined;
use super::contents::{FileFingerprints, Fingerprint, OpenFiles};
use super::difference::changes;
use super::load::{FileDomains, Loaded, read_kept, read_knowing};
use super::source::{NamedTable, Source};
use super::{Domain, Problem, Scopes};

/// The rules of one path across reloads.
#[derive(Debug, Default)]
pub struct Library {
    path: PathBuf,
    scopes: Scopes,
    /// The domains in force, each as last read without errors.
    good: Vec<ReadDomain>,
    /// The domains of each file, for files that no longer parse.
    homes: FileDomains,
    /// The domains with errors at the last reading that was applied.
    failed: Vec<Box<str>>,
    /// The files as last read; `None` forces the next reload.
    seen: Option<FileFingerprints>,
    begun: bool,
    /// Valid texts of an earlier process, until a reading has been applied.
    remembered: Vec<DomainTexts>,
}

#[derive(Clone, Debug)]
struct ReadDomain {
    domain: Arc<Domain>,
    content: Fingerprint,
    /// Whether the files did not change meanwhile. Only then does the fingerprint belong to the parsed text.
    settled: bool,
}

/// The texts of a domain as last valid, saved for a start with invalid files.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainTexts {
    pub(crate) domain: Box<str>,
    /// Its rules files, sorted: the name in problems, and the text.
    pub(crate) files: Vec<(String, String)>,
    /// The tables that its rules name, with their texts.
    pub(crate) tables: Vec<(String, String)>,
}

/// The result of one reading.
#[derive(Debug, Default)]
pub struct Reading {
    /// Errors and warnings, sorted by file, line and column.
    pub problems: Vec<Problem>,
    /// Domains with errors that keep their last valid rules.
    pub kept: Vec<Box<str>>,
    /// Domains with errors and no valid rules: they have no limits.
    pub without: Vec<Box<str>>,
    /// Domains of `kept` whose rules come from an earlier process.
    pub(crate) recalled: Vec<Box<str>>,
    /// Files without a domain, which may be without limits, of a reading that was applied.
    pub(crate) homeless: Vec<Arc<str>>,
    /// The reason if no domain was swapped.
    pub halt: Option<NotApplied>,
    /// Changes from the previous rules to the new ones.
    pub changes: Vec<String>,
}

/// Why a reading is not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotApplied {
    /// The files cannot be listed.
    #[error("the rules cannot be read")]
    Unlisted,
    /// The files changed repeatedly during reading, so the result may mix two versions.
    #[error("the files changed all the time while they were read")]
    Unsettled,
    /// These files do not name their domain and never did, so that any domain may be affected.
    #[error("the domain of these files cannot be read: {}", joined(.0.iter().take(FILES_SHOWN)))]
    Homeless(Vec<Arc<str>>),
}

impl Reading {
    /// Whether all files are valid and in force.
    pub fn is_good(&self) -> bool {
        let has_failed = !self.kept.is_empty() || !self.without.is_empty();
        self.halt.is_none() && !has_failed && !self.problems.iter().any(Problem::is_error)
    }
}

impl Library {
    /// Makes a library of a directory or a file; reads nothing yet.
    pub fn new(path: &Path) -> Library {
        Library { path: path.to_owned(), ..Library::default() }
    }

    /// Sets scopes from the settings, for rules without one.
    #[must_use]
    pub(crate) fn scoped(self, scopes: Scopes) -> Library {
        Library { scopes, ..self }
    }

    /// Sets valid texts of an earlier process, for domains with errors at the first reading, which follows.
    pub(crate) fn remember(&mut self, texts: Vec<DomainTexts>) {
        for DomainTexts { domain, files, .. } in &texts {
            for (file, _) in files {
                self.homes.entry(file.as_str().into()).or_default().push(domain.clone());
            }
        }
        self.remembered = texts;
    }

    /// Starts with texts of an earlier process instead of the files. The files are read when they change.
    pub(crate) fn begin_with(&mut self, texts: Vec<DomainTexts>) {
        self.seen = Some(FileFingerprints::of(&self.path));
        self.remember(texts);
        self.recall(|_| true);
        (self.begun, self.remembered) = (true, Vec::new());
    }

    /// Returns the texts of the domains in force whose files are unchanged. Empty if any file has changed
    /// since the last reading, as another one follows.
    pub(crate) fn texts(&self) -> Vec<DomainTexts> {
        let contents = FileFingerprints::of(&self.path);
        if self.seen.as_ref() != Some(&contents) {
            return Vec::new();
        }
        let stands =
            |good: &&ReadDomain| good.settled && good.content == self.content(&contents, good.domain.name());
        let texts = self.good.iter().filter(stands).filter_map(|good| {
            let name = good.domain.name();
            let files = self.homes.iter().filter(|(_, homes)| homes.iter().any(|home| **home == *name));
            DomainTexts::of(&good.domain, files.map(|(file, _)| &**file))
        });
        let texts = texts.collect();
        if self.is_outdated() { Vec::new() } else { texts }
    }

    /// Returns the changes from an earlier process to the domains in force, of those whose files are without errors.
    pub(crate) fn changes_since(&self, before: &[DomainTexts]) -> Vec<String> {
        let now = self.texts();
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for texts in before {
            let current = now.iter().find(|current| current.domain == texts.domain);
            let good = self.find(&texts.domain);
            // Texts that are the same, as most are at a restart, are not parsed.
            let may_differ = match current {
                Some(current) => current != texts,
                None => good.is_none(),
            };
            if let Some(domain) = may_differ.then(|| read_kept(texts, &self.scopes)).flatten() {
                old.push(domain);
                new.extend(good.map(|good| Arc::clone(&good.domain)));
            }
        }
        let is_named = |all: &[DomainTexts], name: &str| all.iter().any(|texts| *texts.domain == *name);
        let added = self.good.iter().filter(|good| {
            let name = good.domain.name();
            is_named(&now, name) && !is_named(before, name)
        });
        new.extend(added.map(|good| Arc::clone(&good.domain)));
        changes(&old, &new)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the files have changed since the last reading. Reads all files without parsing.
    pub fn is_outdated(&self) -> bool {
        self.is_outdated_beside(&OpenFiles::default())
    }

    /// Whether files other than these have changed since the last reading.
    pub fn is_outdated_beside(&self, open: &OpenFiles) -> bool {
        let seen = self.seen.clone().map(|seen| seen.without(open));
        seen != Some(FileFingerprints::of(&self.path).without(open))
    }

    /// Reads all files and swaps the valid domains.
    pub fn read(&mut self) -> Reading {
        self.read_beside(&OpenFiles::default())
    }

    /// Reads all files but the open ones and swaps the valid domains, except those that an open file adds to: half of a
    /// file may be valid. These stay as they are until a later reading.
    pub fn read_beside(&mut self, open: &OpenFiles) -> Reading {
        let (contents, mut loaded) = self.read_settled(open);
        let settled = self.seen.is_some();
        let held = self.hold(&mut loaded, open);
        let Loaded { domains, problems, failed, homes, homeless, unlisted } = loaded;
        let recalled = self.recall(|name| unlisted || failed.iter().any(|failed| **failed == *name));
        // The first reading has no earlier rules to keep, so the valid part is applied.
        let halt = match (unlisted, settled, homeless.is_empty()) {
            (true, ..) => Some(NotApplied::Unlisted),
            (false, false, _) if self.begun => Some(NotApplied::Unsettled),
            (false, true, false) if self.begun => Some(NotApplied::Homeless(homeless.clone())),
            _ => None,
        };
        if halt.is_some() {
            return Reading { problems, recalled, halt, ..Reading::default() };
        }
        self.homes = homes;
        let mut good: Vec<ReadDomain> = Vec::with_capacity(domains.len() + failed.len());
        for domain in domains {
            let content = self.content(&contents, domain.name());
            let same = |known: &&ReadDomain| known.settled && settled && known.content == content;
            let unchanged = self.find(domain.name()).filter(same);
            good.push(unchanged.cloned().unwrap_or(ReadDomain { domain, content, settled }));
        }
        self.failed.clone_from(&failed);
        let (kept, without): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|name| self.find(name).is_some());
        good.extend(held.iter().chain(&kept).filter_map(|name| self.find(name)).cloned());
        let changes = changes(&shared(&self.good), &shared(&good));
        (self.good, self.begun) = (good, true);
        self.remembered = Vec::new();
        Reading { problems, kept, without, recalled, homeless, halt, changes }
    }

    /// Takes the domains that an open file adds to, or an open table, out of a reading; returns those that had no errors
    /// before. The others count as failed still.
    fn hold(&self, loaded: &mut Loaded, open: &OpenFiles) -> Vec<Box<str>> {
        if open.is_empty() {
            return Vec::new();
        }
        loaded.problems.retain(|problem| !open.has(Path::new(&*problem.position.file)));
        let adds = |name: &str| {
            let mut files = loaded.homes.iter().filter(|(_, homes)| homes.iter().any(|home| **home == *name));
            files.any(|(file, _)| open.has(Path::new(&**file)))
        };
        let names_table = |domain: &Domain| tables_of(domain).iter().any(|(table, _)| open.has(table));
        let is_held =
            |name: &str| adds(name) || self.find(name).is_some_and(|good| names_table(&good.domain));
        let (mut held, failed): (Vec<_>, Vec<_>) =
            std::mem::take(&mut loaded.failed).into_iter().partition(|name| is_held(name));
        let (unread, domains): (Vec<_>, Vec<_>) = std::mem::take(&mut loaded.domains)
            .into_iter()
            .partition(|domain| is_held(domain.name()) || names_table(domain));
        held.extend(unread.iter().map(|domain| domain.name().into()));
        let (still_failed, held) = held.into_iter().partition(|name| self.failed.contains(name));
        (loaded.domains, loaded.failed) = (domains, [failed, still_failed].concat());
        held
    }

    /// Restores wanted domains of an earlier process, unless a reading was applied; returns their names.
    fn recall(&mut self, is_wanted: impl Fn(&str) -> bool) -> Vec<Box<str>> {
        if self.begun {
            return Vec::new();
        }
        let wanted: Vec<&DomainTexts> = self
            .remembered
            .iter()
            .filter(|texts| is_wanted(&texts.domain) && self.find(&texts.domain).is_none())
            .collect();
        let recalled: Vec<Arc<Domain>> =
            wanted.into_iter().filter_map(|texts| read_kept(texts, &self.scopes)).collect();
        let names = recalled.iter().map(|domain| domain.name().into()).collect();
        let good = |domain| ReadDomain { domain, content: Fingerprint::default(), settled: false };
        self.good.extend(recalled.into_iter().map(good));
        names
    }

    fn content(&self, contents: &FileFingerprints, name: &str) -> Fingerprint {
        contents.of_domain(|file| {
            self.homes
                .get(&*file.to_string_lossy())
                .is_some_and(|homes| homes.iter().any(|home| **home == *name))
        })
    }

    /// Returns the domains in force: each as last read without errors.
    pub fn domains(&self) -> Vec<Arc<Domain>> {
        shared(&self.good)
    }

    /// Returns the domains in force, each with the fingerprint of its files.
    pub fn fingerprints(&self) -> impl Iterator<Item = (&Domain, Fingerprint)> + '_ {
        self.good.iter().map(|good| (&*good.domain, good.content))
    }

    /// Reads until the files do not change meanwhile, so that versions are not mixed, at most
    /// [`READINGS_MAX`] times. Clears `seen` if they kept changing.
    fn read_settled(&mut self, open: &OpenFiles) -> (FileFingerprints, Loaded) {
        let mut before = FileFingerprints::of(&self.path).without(open);
        let mut readings = 1;
        loop {
            let loaded = read_knowing(&self.path, &self.homes, open, &self.scopes);
            let after = FileFingerprints::of(&self.path).without(open);
            self.seen = (before == after).then(|| after.clone());
            if self.seen.is_some() || readings == READINGS_MAX {
                return (after, loaded);
            }
            (before, readings) = (after, readings + 1);
        }
    }

    fn find(&self, name: &str) -> Option<&ReadDomain> {
        self.good.iter().find(|good| good.domain.name() == name)
    }
}

impl DomainTexts {
    /// Reads the files of a domain; `None` if one of them is no longer readable.
    pub(super) fn of<'f>(domain: &Domain, files: impl Iterator<Item = &'f str>) -> Option<DomainTexts> {
        let mut files: Vec<&str> = files.collect();
        files.sort_unstable();
        let read = |path: &Path| Source::read(path).ok().map(|source| source.text().to_owned());
        let tables = tables_of(domain);
        Some(DomainTexts {
            domain: domain.name().into(),
            files: files
                .iter()
                .map(|file| Some(((*file).to_owned(), read(Path::new(file))?)))
                .collect::<Option<_>>()?,
            tables: tables
                .iter()
                .map(|(path, name)| Some(((*name).to_owned(), read(path)?)))
                .collect::<Option<_>>()?,
        })
    }

    pub(super) fn sources(&self) -> impl Iterator<Item = Source> + '_ {
        let tables: Arc<[NamedTable]> = self.tables.clone().into();
        self.files.iter().map(move |(file, text)| Source::kept(file, text.clone(), Arc::clone(&tables)))
    }
}

/// Returns the tables that the rules of a domain name: path and name.
fn tables_of(domain: &Domain) -> BTreeSet<(PathBuf, &str)> {
    let rules = domain.rules().iter();
    let tables = rules.filter_map(|rule| {
        let table = rule.overrides.as_ref()?.file.as_deref()?;
        Some((Path::new(&*rule.position.file).with_file_name(table), table))
    });
    tables.collect()
}

fn shared(good: &[ReadDomain]) -> Vec<Arc<Domain>> {
    good.iter().map(|good| Arc::clone(&good.domain)).collect()
}

/// As many names as fit a line.
const FILES_SHOWN: usize = 16;

/// Each reading takes a fraction of a second at most. Later writes trigger another reload.
const READINGS_MAX: u32 = 4;
