//! Reader of a directory of rules files, or one file. An error in any file leaves its domain out.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::contents::{OpenFiles, visible};
use super::de::FileNode;
use super::draft::Draft;
use super::file::RulesFile;
use super::lints::lint;
use super::meaning::{self, DefaultScope, name_of};
use super::open::read_help;
use super::problem::{Problem, Severity, ValueProblem, shown};
use super::source::{Report, Source, about_file};
use super::{Domain, DomainTexts, Position, Scopes, yaml};
use crate::terms::without_number;

/// The domains that were read, and the problems of the others.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The domains without errors, in the order in which files first name them.
    pub domains: Vec<Arc<Domain>>,
    /// Errors and warnings, sorted by file, line and column.
    pub problems: Vec<Problem>,
    /// The domains left out because of errors: they have no limits.
    pub failed: Vec<Box<str>>,
    pub(super) homes: FileDomains,
    pub(super) homeless: Vec<Arc<str>>,
    /// Whether the files could not be listed, so that nothing is known of any domain.
    pub(super) unlisted: bool,
}

/// The domains that each file adds to, usually one. Keyed by the file name in problems.
pub(super) type FileDomains = HashMap<Arc<str>, Vec<Box<str>>>;

impl Loaded {
    /// Whether there are errors.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(Problem::is_error)
    }

    /// Merges with the domains in force: those read, and for failed ones the old version. `None` if an error
    /// cannot be attributed to a domain; the caller then changes nothing.
    #[must_use]
    pub(crate) fn over(self, before: &[Arc<Domain>]) -> Option<Vec<Arc<Domain>>> {
        if self.unlisted || !self.homeless.is_empty() {
            return None;
        }
        let kept = before.iter().filter(|domain| self.failed.iter().any(|failed| **failed == *domain.name()));
        Some(self.domains.into_iter().chain(kept.cloned()).collect())
    }
}

/// Reads the rules at a path: every `*.yaml` of a directory, sorted by name, or one file.
pub fn read(path: &Path) -> Loaded {
    read_scoped(path, &Scopes::default())
}

/// Like [`read`], with scopes from the settings for rules without one.
pub fn read_scoped(path: &Path, scopes: &Scopes) -> Loaded {
    read_knowing(path, &FileDomains::default(), &OpenFiles::default(), scopes)
}

/// Reads the rules at a path. A file without a readable domain breaks the domains it had at the last reading, an open
/// one does so without a report.
pub(super) fn read_knowing(path: &Path, known: &FileDomains, open: &OpenFiles, scopes: &Scopes) -> Loaded {
    read_by(known, open, scopes, |reading| reading.path(path))
}

/// Reads one domain from saved texts. `None` if this version finds errors in texts saved by another.
pub(super) fn read_kept(texts: &DomainTexts, scopes: &Scopes) -> Option<Arc<Domain>> {
    let loaded = read_by(&FileDomains::default(), &OpenFiles::default(), scopes, |reading| {
        texts.sources().for_each(|source| reading.source(source));
    });
    loaded.domains.into_iter().find(|domain| domain.name() == &*texts.domain)
}

/// Reads the rules of one text as a file of this name.
pub fn read_text(file: &str, text: &str) -> Loaded {
    read_with_text(None, file, text)
}

/// Reads the rules at a path, if given, and then one text as another file.
pub(crate) fn read_with_text(path: Option<&Path>, file: &str, text: &str) -> Loaded {
    read_by(&FileDomains::default(), &OpenFiles::default(), &Scopes::default(), |reading| {
        path.into_iter().for_each(|path| reading.path(path));
        reading.source(Source::new(file, text.to_owned()));
    })
}

fn read_by(
    known: &FileDomains,
    open: &OpenFiles,
    scopes: &Scopes,
    read: impl FnOnce(&mut FileReading<'_>),
) -> Loaded {
    let (drafts, loaded, sources, pools) = Default::default();
    let mut reading = FileReading { drafts, loaded, sources, known, open, scopes, pools };
    read(&mut reading);
    reading.finish()
}

#[derive(Debug)]
struct FileReading<'k> {
    drafts: Vec<Draft>,
    /// The result so far, without domains.
    loaded: Loaded,
    /// Kept to the end for problems that involve several rules.
    sources: Vec<Source>,
    /// The domains of each file at the last reading.
    known: &'k FileDomains,
    /// Files whose text may be half of one.
    open: &'k OpenFiles,
    scopes: &'k Scopes,
    /// The position of each pool's `shed` entry, in all domains.
    pools: HashMap<Box<str>, Position>,
}

impl FileReading<'_> {
    fn path(&mut self, path: &Path) {
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => {
                for file in self.files_of(path) {
                    self.file(&file);
                }
            }
            Ok(_) => self.file(path),
            Err(error) => {
                self.loaded.unlisted = true;
                let is_file =
                    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
                let help = match error.kind() {
                    std::io::ErrorKind::NotFound if !is_file => {
                        "create the directory, or say where the rules are"
                    }
                    _ => read_help(&error),
                };
                let message = format!("cannot read the rules: {}", without_number(&error));
                self.report(Severity::Error, path, message, help);
            }
        }
    }

    fn report(&mut self, severity: Severity, path: &Path, message: String, help: impl Into<String>) {
        let problem = about_file(path, ValueProblem::new(message, help));
        self.loaded.problems.push(Problem { severity, ..problem });
    }

    /// Lists the rules files of a directory, sorted by name.
    fn files_of(&mut self, directory: &Path) -> Vec<PathBuf> {
        let mut files = visible(directory).unwrap_or_else(|error| {
            self.loaded.unlisted = true;
            let message = format!("cannot list the directory: {}", without_number(&error));
            self.report(Severity::Error, directory, message, read_help(&error));
            Vec::new()
        });
        files.retain(|file| self.is_rules_file(file));
        if files.len() > FILES_MAX {
            // Reading a part of them could leave a domain incomplete.
            self.loaded.unlisted = true;
            let message = format!("{} rules files in this directory: none is read", files.len());
            let help = format!("put more rules into each: at most {FILES_MAX} files");
            self.report(Severity::Error, directory, message, help);
            files.clear();
        }
        if files.is_empty() && self.loaded.problems.is_empty() {
            let message = "no rules files in this directory: nothing is limited".to_owned();
            self.report(Severity::Warning, directory, message, "write one whose name ends in `.yaml`");
        }
        files
    }

    fn is_rules_file(&mut self, file: &Path) -> bool {
        let extension = file.extension().unwrap_or_default().to_string_lossy();
        if extension != "yaml" && !extension.eq_ignore_ascii_case("csv") {
            let message = format!("a file that ends in `.{extension}` is not read");
            self.report(Severity::Warning, file, message, "let its name end in `.yaml`");
        }
        extension == "yaml"
    }

    fn file(&mut self, path: &Path) {
        let read = Source::read(path);
        if self.open.has(path) {
            let text = read.map_or_else(|unreadable| unreadable.text, |source| source.text().to_owned());
            return self.hold(path, &text);
        }
        match read {
            Ok(source) => self.source(source),
            Err(unreadable) => {
                self.spoil(&unreadable.problem.position.file, &unreadable.text);
                self.loaded.problems.push(*unreadable.problem);
            }
        }
    }

    /// Breaks the domains of an unreadable file: those that its text appears to name, and those of the last
    /// reading, whose rules are now missing.
    fn spoil(&mut self, file: &Arc<str>, text: &str) {
        let mut domains = domains_by_sight(text);
        domains.extend(self.known.get(file).into_iter().flatten().map(ToString::to_string));
        if domains.is_empty() {
            self.loaded.homeless.push(Arc::clone(file));
        }
        self.break_domains(file, &domains);
    }

    /// Breaks the domains of a file that is being written: those of the last reading, and other known ones that its text
    /// appears to name.
    fn hold(&mut self, path: &Path, text: &str) {
        let file = path.to_string_lossy().into();
        let mut domains = domains_by_sight(text);
        domains.retain(|name| self.known.values().flatten().any(|known| **known == **name));
        domains.extend(self.known.get(&file).into_iter().flatten().map(ToString::to_string));
        self.break_domains(&file, &domains);
    }

    fn break_domains(&mut self, file: &Arc<str>, domains: &[String]) {
        for name in domains {
            self.draft(name, |draft| draft.broken = true);
            self.settle(file, name);
        }
    }

    fn settle(&mut self, file: &Arc<str>, domain: &str) {
        let homes = self.loaded.homes.entry(Arc::clone(file)).or_default();
        if homes.iter().all(|known| **known != *domain) {
            homes.push(domain.into());
        }
    }

    fn source(&mut self, source: Source) {
        match yaml::read(&source) {
            Ok(root) => {
                let report = Report::new(&source);
                self.rules(FileNode::new(&root, &report));
                self.loaded.problems.extend(report.into_problems());
            }
            Err(problem) => {
                self.loaded.problems.push(*problem);
                self.spoil(source.file(), source.text());
            }
        }
        self.sources.push(source);
    }

    fn rules(&mut self, file: FileNode<'_>) {
        let report = file.report;
        if file.value == yaml::Value::Null {
            file.error("the file is empty", "write `domain: NAME` and `limits:`, or remove the file");
            self.spoil(report.source().file(), "");
            return;
        }
        let fields: Option<RulesFile<'_>> = file.read();
        let domain = fields.as_ref().map(|fields| fields.domain.0);
        let defaults = fields.as_ref().and_then(|fields| fields.defaults.as_ref());
        let given = DefaultScope::new(self.scopes, domain, defaults);
        let Some(name) = domain else {
            for entry in meaning::entries(file) {
                meaning::add_entry(entry, given, &mut Draft::new(""));
            }
            meaning::descriptors(file, given);
            file.items("shed").for_each(|node| drop(meaning::shed(node, None)));
            return self.spoil(report.source().file(), "");
        };
        self.settle(report.source().file(), name);
        if self.drafts.len() >= DOMAINS_MAX && self.drafts.iter().all(|draft| *draft.name != *name) {
            let help = "write fewer domains, and tell tenants apart by an attribute in `key`";
            file.error_at("domain", format!("more than {DOMAINS_MAX} domains"), help);
        }
        self.check_pools(file);
        self.draft(name, |draft| {
            meaning::entries(file).into_iter().for_each(|entry| meaning::add_entry(entry, given, draft));
            draft.add_priorities(file);
            meaning::descriptors(file, given).into_iter().for_each(|branch| draft.graft(branch, report));
            draft.broken |= report.errors() > 0;
        });
        let is_empty = |field: &&str| file.items(field).len() == 0;
        if ENTRIES.iter().all(is_empty) && !file.has("priorities") && report.errors() == 0 {
            file.warn("no rules in this file", "write `limits:` and a list of rules");
        }
    }

    /// Reports second `shed` entries for a pool: both would shed by the same slots.
    fn check_pools(&mut self, file: FileNode<'_>) {
        for node in file.items("shed") {
            let Some((pool, at)) = name_of(node, "pool") else { continue };
            if let Some(first) = self.pools.get(&pool) {
                let message = format!("a second entry of `shed` for the pool {}", shown(&pool));
                let help = format!("a pool is shed in one entry of one domain; the first is at {first}");
                at.error(message, help);
                continue;
            }
            self.pools.insert(pool, at.position());
        }
    }

    /// Changes the draft of a domain, creating it if needed.
    fn draft(&mut self, name: &str, change: impl FnOnce(&mut Draft)) {
        match self.drafts.iter_mut().find(|draft| *draft.name == *name) {
            Some(known) => change(known),
            None => change(self.drafts.push_mut(Draft::new(name))),
        }
    }

    fn finish(self) -> Loaded {
        let FileReading { mut drafts, mut loaded, sources, .. } = self;
        let sources: HashMap<_, _> = sources.iter().map(|source| (source.file(), source)).collect();
        loaded.problems.extend(drafts.iter_mut().flat_map(|draft| draft.settle(&sources)));
        let (failed, drafts): (Vec<_>, Vec<_>) = drafts.into_iter().partition(|draft| draft.broken);
        let is_complete = failed.is_empty() && loaded.homeless.is_empty() && !loaded.unlisted;
        loaded.problems.extend(lint(&drafts, &sources, is_complete));
        loaded.failed = failed.into_iter().map(|draft| draft.name).collect();
        loaded.domains = drafts.into_iter().map(|draft| Arc::new(draft.into_domain())).collect();
        loaded.problems.sort_by_cached_key(|Problem { position, .. }| {
            (Arc::clone(&position.file), position.line, position.column)
        });
        loaded
    }
}

/// Returns the domains that lines starting with `domain:` appear to name, of a file that is not valid YAML.
pub(super) fn domains_by_sight(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let source = Source::new("", line.to_owned());
        let root = yaml::read(&source).ok()?;
        let report = Report::new(&source);
        let file: RulesFile<'_> = FileNode::new(&root, &report).read()?;
        Some(file.domain.0.to_owned())
    };
    text.lines().filter(|line| line.starts_with("domain:")).take(SIGHTED_MAX).filter_map(name).collect()
}

const ENTRIES: [&str; 7] = ["limits", "concurrency", "shed", "descriptors", "exempt", "deny", "prioritize"];

/// More files indicate a wrong directory.
const FILES_MAX: usize = 10_000;

/// The lookup of a request's domain is linear.
const DOMAINS_MAX: usize = 256;

/// A file has one domain, or a few if files were concatenated.
const SIGHTED_MAX: usize = 16;
