//! Reader of a directory of rules files, or one file. An error in any file leaves its domain out.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::de::{self, Mapping};
use super::draft::Draft;
use super::file::RulesFile;
use super::lints::lint;
use super::meaning::{self, DefaultScope, ReadListEntry, ReadRule};
use super::pools::PoolIndex;
use super::problem::{Problem, Severity, ValueProblem};
use super::sight::domains_by_sight;
use super::source::{Report, Source, about_file};
use super::texts::DomainTexts;
use super::{Domain, ListKind, Position, Scopes, yaml};

/// The domains that were read, and the problems of the others.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The domains without errors, in the order in which files first name them.
    pub domains: Vec<Arc<Domain>>,
    /// Errors and warnings, sorted by file, line and column.
    pub problems: Vec<Problem>,
    /// The domains left out because of errors: they have no limits.
    pub failed: Vec<Box<str>>,
    /// The domains that each file adds to.
    pub(super) homes: FileDomains,
    /// Files whose domains are unknown.
    pub(super) homeless: Vec<Arc<str>>,
    /// Whether the files could not be listed, so that nothing is known of any domain.
    pub(super) unlisted: bool,
}

/// The domains that each file adds to, usually one. Keyed by the file name in problems.
pub(super) type FileDomains = HashMap<Arc<str>, Vec<Box<str>>>;

impl Loaded {
    /// Whether there are errors.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(Problem::is_error)
    }

    /// Merges with the domains in force: those read, and for failed ones the old version. `None` if an error
    /// cannot be attributed to a domain; the caller then changes nothing.
    #[must_use]
    pub fn over(self, before: &[Arc<Domain>]) -> Option<Vec<Arc<Domain>>> {
        if self.unlisted || !self.homeless.is_empty() {
            return None;
        }
        let kept = before.iter().filter(|domain| self.failed.iter().any(|failed| **failed == *domain.name()));
        Some(self.domains.into_iter().chain(kept.cloned()).collect())
    }
}

/// Reads the rules at a path: every `*.yaml` of a directory, sorted by name, or one file.
#[must_use]
pub fn read(path: &Path) -> Loaded {
    read_scoped(path, &Scopes::default())
}

/// Like [`read`], with scopes from the settings for rules without one.
#[must_use]
pub fn read_scoped(path: &Path, scopes: &Scopes) -> Loaded {
    read_knowing(path, &FileDomains::default(), scopes)
}

/// Reads the rules at a path. A file without a readable domain breaks the domains it had at the last reading.
pub(super) fn read_knowing(path: &Path, known: &FileDomains, scopes: &Scopes) -> Loaded {
    let mut reading = FileReading::new(known, scopes);
    reading.path(path);
    reading.finish()
}

/// Reads one domain from saved texts. `None` if this version finds errors in texts saved by another.
pub(super) fn read_kept(texts: &DomainTexts, scopes: &Scopes) -> Option<Arc<Domain>> {
    let known = FileDomains::default();
    let mut reading = FileReading::new(&known, scopes);
    texts.sources().for_each(|source| reading.source(source));
    reading.finish().domains.into_iter().find(|domain| domain.name() == &*texts.domain)
}

/// Reads the rules of one text as a file of this name.
#[must_use]
pub fn read_text(file: &str, text: &str) -> Loaded {
    read_text_scoped(file, text, &Scopes::default())
}

/// Like [`read_text`], with scopes from the settings for rules without one.
#[must_use]
pub fn read_text_scoped(file: &str, text: &str, scopes: &Scopes) -> Loaded {
    let known = FileDomains::default();
    let mut reading = FileReading::new(&known, scopes);
    reading.source(Source::new(file, text.to_owned()));
    reading.finish()
}

/// Reads the rules at a path, if given, and then one text as another file.
#[must_use]
pub fn read_with_text(path: Option<&Path>, file: &str, text: &str) -> Loaded {
    let (known, scopes) = (FileDomains::default(), Scopes::default());
    let mut reading = FileReading::new(&known, &scopes);
    if let Some(path) = path {
        reading.path(path);
    }
    reading.source(Source::new(file, text.to_owned()));
    reading.finish()
}

#[derive(Debug)]
struct FileReading<'k> {
    drafts: Vec<Draft>,
    problems: Vec<Problem>,
    /// Kept to the end for problems that involve several rules.
    sources: Vec<Source>,
    /// The domains of each file at the last reading.
    known: &'k FileDomains,
    /// Scopes from the settings.
    scopes: &'k Scopes,
    homes: FileDomains,
    homeless: Vec<Arc<str>>,
    unlisted: bool,
    /// The pools with a `shed` entry, in all domains.
    pools: PoolIndex,
}

impl<'k> FileReading<'k> {
    fn new(known: &'k FileDomains, scopes: &'k Scopes) -> FileReading<'k> {
        FileReading {
            drafts: Vec::new(),
            problems: Vec::new(),
            sources: Vec::new(),
            known,
            scopes,
            homes: FileDomains::new(),
            homeless: Vec::new(),
            unlisted: false,
            pools: PoolIndex::default(),
        }
    }

    fn path(&mut self, path: &Path) {
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => {
                for file in self.files_of(path) {
                    self.file(&file);
                }
            }
            Ok(_) => self.file(path),
            Err(error) => {
                self.unlisted = true;
                let mend = match error.kind() {
                    std::io::ErrorKind::NotFound => "create the directory, or say where the rules are",
                    _ => "let the user who runs this read it",
                };
                self.problems.push(about_file(
                    path,
                    ValueProblem::new(format!("cannot read the rules: {error}"), mend),
                ));
            }
        }
    }

    /// Lists the rules files of a directory, sorted by name.
    fn files_of(&mut self, directory: &Path) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(directory).and_then(|entries| {
            entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()
        });
        let mut files = listed.unwrap_or_else(|error| {
            let wrong = ValueProblem::new(
                format!("cannot list the directory: {error}"),
                "let the user who runs this read it",
            );
            self.problems.push(about_file(directory, wrong));
            self.unlisted = true;
            Vec::new()
        });
        files.sort_unstable();
        files.retain(|file| self.is_rules_file(file));
        if files.len() > FILES_MAX {
            // Reading a part of them could leave a domain incomplete.
            let message = format!("{} rules files in this directory: none is read", files.len());
            let wrong =
                ValueProblem::new(message, format!("put more rules into each: at most {FILES_MAX} files"));
            self.problems.push(about_file(directory, wrong));
            self.unlisted = true;
            files.clear();
        }
        if files.is_empty() && self.problems.is_empty() {
            let wrong = ValueProblem::new(
                "no rules files in this directory: nothing is limited",
                "write one whose name ends in `.yaml`",
            );
            self.problems.push(Problem { severity: Severity::Warning, ..about_file(directory, wrong) });
        }
        files
    }

    fn is_rules_file(&mut self, file: &Path) -> bool {
        // Editors and config maps keep their files behind a dot.
        if file.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.')) {
            return false;
        }
        let extension = file.extension().map(|extension| extension.to_string_lossy().into_owned());
        match extension.as_deref() {
            Some("yaml") => true,
            Some(near) if matches!(near.to_ascii_lowercase().as_str(), "yml" | "yaml") => {
                let wrong = ValueProblem::new(
                    format!("a file that ends in `.{near}` is not read"),
                    "let its name end in `.yaml`",
                );
                self.problems.push(Problem { severity: Severity::Warning, ..about_file(file, wrong) });
                false
            }
            _ => false,
        }
    }

    fn file(&mut self, path: &Path) {
        match Source::read(path) {
            Ok(source) => self.source(source),
            Err(unreadable) => {
                self.spoil(&unreadable.problem.position.file, &unreadable.text);
                self.problems.push(*unreadable.problem);
            }
        }
    }

    /// Breaks the domains of an unreadable file: those that its text appears to name, and those of the last
    /// reading, whose rules are now missing.
    fn spoil(&mut self, file: &Arc<str>, text: &str) {
        let mut domains = domains_by_sight(text);
        domains.extend(self.known.get(file).into_iter().flatten().map(ToString::to_string));
        if domains.is_empty() {
            self.homeless.push(Arc::clone(file));
        }
        for name in domains {
            self.draft(&name, |draft| draft.broken = true);
            self.settle(file, &name);
        }
    }

    /// Records that a file adds to a domain.
    fn settle(&mut self, file: &Arc<str>, domain: &str) {
        let homes = self.homes.entry(Arc::clone(file)).or_default();
        if homes.iter().all(|known| **known != *domain) {
            homes.push(domain.into());
        }
    }

    fn source(&mut self, source: Source) {
        self.tree(&source);
        self.sources.push(source);
    }

    fn tree(&mut self, source: &Source) {
        let root = match yaml::read(source) {
            Ok(root) => root,
            Err(problem) => {
                self.problems.push(*problem);
                self.spoil(source.file(), source.text());
                return;
            }
        };
        let mut report = Report::new(source);
        self.rules(&root, &mut report);
        self.problems.extend(report.into_problems());
    }

    fn rules(&mut self, root: &yaml::YamlNode, report: &mut Report<'_>) {
        if root.value == yaml::Value::Null {
            report.error(
                root.at,
                "the file is empty",
                "write `domain: NAME` and `limits:`, or remove the file",
            );
            self.spoil(report.source().file(), "");
            return;
        }
        let fields: Option<RulesFile<'_>> = de::read(root, report);
        let file = Mapping(root);
        let domain = fields.as_ref().map(|fields| fields.domain.0);
        let scope = domain.map_or(self.scopes.all, |name| self.scopes.of(name));
        let given = DefaultScope::by_settings(scope, self.scopes.weight)
            .or_defaults(fields.as_ref().and_then(|fields| fields.defaults.as_ref()));
        let entries = entries(file, given, report);
        let branches = meaning::descriptors(de::items(file, "descriptors"), given, report);
        let sheds: Vec<_> = de::items(file, "shed").iter().map(|node| meaning::shed(node, report)).collect();
        let Some(name) = domain else { return self.spoil(report.source().file(), "") };
        self.settle(report.source().file(), name);
        if self.drafts.len() >= DOMAINS_MAX && self.drafts.iter().all(|draft| *draft.name != *name) {
            let mend = "write fewer domains, and tell tenants apart by an attribute in `key`";
            report.error(file.at("domain"), format!("more than {DOMAINS_MAX} domains"), mend);
        }
        let sheds = self.pools.take(sheds, report);
        self.draft(name, |draft| {
            for entry in entries {
                match entry {
                    FileEntry::Rule(meant) => draft.add(*meant, report),
                    FileEntry::Listed(meant) => draft.add_listed(meant, report),
                }
            }
            draft.priorities.add(file, report);
            for (entry, at) in sheds {
                draft.add_shed(entry, at, report);
            }
            branches.into_iter().for_each(|branch| draft.graft(branch, report));
            draft.broken |= report.errors() > 0;
        });
        let is_empty = |field: &&str| de::items(file, field).is_empty();
        if ENTRIES.iter().all(is_empty) && !file.has("priorities") && report.errors() == 0 {
            report.warning(root.at, "no rules in this file", "write `limits:` and a list of rules");
        }
    }

    /// Changes the draft of a domain, creating it if needed.
    fn draft(&mut self, name: &str, change: impl FnOnce(&mut Draft)) {
        if let Some(known) = self.drafts.iter_mut().find(|draft| *draft.name == *name) {
            return change(known);
        }
        let mut new = Draft::new(name);
        change(&mut new);
        self.drafts.push(new);
    }

    fn finish(mut self) -> Loaded {
        let mut loaded = Loaded::default();
        let sources: HashMap<_, _> = self.sources.iter().map(|source| (source.file(), source)).collect();
        for draft in &mut self.drafts {
            self.problems.extend(draft.settle(&sources));
        }
        let (failed, drafts): (Vec<_>, Vec<_>) = self.drafts.into_iter().partition(|draft| draft.broken);
        let is_complete = failed.is_empty() && self.homeless.is_empty() && !self.unlisted;
        self.problems.extend(lint(&drafts, &sources, is_complete));
        loaded.failed = failed.into_iter().map(|draft| draft.name).collect();
        loaded.domains = drafts.into_iter().map(|draft| Arc::new(draft.into_domain())).collect();
        (loaded.homes, loaded.homeless, loaded.unlisted) = (self.homes, self.homeless, self.unlisted);
        loaded.problems = self.problems;
        loaded.problems.sort_by_cached_key(|problem| {
            let Position { file, line, column } = &problem.position;
            (Arc::clone(file), *line, *column)
        });
        loaded
    }
}

/// Reads the named entries in file order, so that the first of two with the same name keeps it.
fn entries(file: Mapping<'_>, given: DefaultScope, report: &mut Report<'_>) -> Vec<FileEntry> {
    let mut entries = Vec::new();
    for node in de::items(file, "limits") {
        entries.push((node.at.byte, FileEntry::Rule(Box::new(meaning::rule(node, given, report)))));
    }
    for node in de::items(file, "concurrency") {
        entries
            .push((node.at.byte, FileEntry::Rule(Box::new(meaning::concurrency_rule(node, given, report)))));
    }
    for (field, kind) in [("exempt", ListKind::Exempt), ("deny", ListKind::Deny)] {
        for node in de::items(file, field) {
            entries.push((node.at.byte, FileEntry::Listed(meaning::listed(node, kind, report))));
        }
    }
    entries.sort_by_key(|(byte, _)| *byte);
    entries.into_iter().map(|(_, entry)| entry).collect()
}

enum FileEntry {
    Rule(Box<ReadRule>),
    Listed(ReadListEntry),
}

/// The lists of a file.
const ENTRIES: [&str; 7] = ["limits", "concurrency", "shed", "descriptors", "exempt", "deny", "prioritize"];

/// More files indicate a wrong directory.
const FILES_MAX: usize = 10_000;

/// The lookup of a request's domain is linear.
const DOMAINS_MAX: usize = 256;
