//! The files that an import writes: all of them or none, and none in the place of another unless that is asked for.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::rules::native::Native;
use crate::rules::{self, open, shown};
use crate::state::Whole;

/// What is to be written, by the names of the files.
#[derive(Debug)]
pub(super) struct Files(BTreeMap<String, String>);

/// Why nothing is written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{} is where the descriptor files are: both would count; name another directory", .0.display())]
    SameDirectory(PathBuf),
    #[error("{} is there already: move it away, or say --force to replace it", .0.display())]
    There(PathBuf),
    #[error(
        "{file} has rules for the domain {} as well, which would count besides: move it away",
        shown(domain)
    )]
    Besides { file: String, domain: String },
    #[error("{}: {source}: name a directory that may be written to", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl Files {
    pub(super) fn of(domains: &[Native]) -> Files {
        let mut files = BTreeMap::new();
        for native in domains {
            let texts = [("limits", &native.rules), ("descriptors", &native.tree)];
            for (kind, text) in texts {
                if let Some(text) = text {
                    files.insert(free_name(&native.domain, kind, &files), text.clone());
                }
            }
        }
        Files(files)
    }

    /// The files, by name.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (&**name, &**text))
    }

    /// Writes all of them, or none.
    pub(super) fn write(
        &self,
        into: &Path,
        from: &Path,
        domains: &[Native],
        force: bool,
    ) -> Result<(), Failure> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| Failure::Io { path, source }
        };
        fs::create_dir_all(into).map_err(failed(into))?;
        let from = if from.is_dir() { from } else { from.parent().unwrap_or(Path::new("")) };
        if let (Ok(one), Ok(other)) = (into.canonicalize(), Path::new(".").join(from).canonicalize())
            && one == other
        {
            return Err(Failure::SameDirectory(into.to_owned()));
        }
        let there = self.0.keys().map(|name| into.join(name)).find(|path| path.symlink_metadata().is_ok());
        if let Some(there) = there.filter(|_| !force) {
            return Err(Failure::There(there));
        }
        self.look_besides(into, domains)?;
        let mut begun = Vec::new();
        for (name, text) in self.texts() {
            let path = into.join(name);
            let mut whole = Whole::begin(&path).map_err(failed(&path))?;
            whole.write_all(text.as_bytes()).map_err(failed(&path))?;
            begun.push((path, whole));
        }
        let mut done = Vec::new();
        for (path, whole) in begun {
            let was = open::beneath(&path).ok().and_then(|was| open::read(&was, u64::MAX).ok());
            if let Err(source) = whole.finish() {
                undo(&done);
                return Err(Failure::Io { path, source });
            }
            // Others read rules, the daemon among them.
            let _ = fs::set_permissions(&path, fs::Permissions::from_mode(READABLE));
            done.push((path, was));
        }
        Ok(())
    }

    /// Other files of the same domains would count besides.
    fn look_besides(&self, into: &Path, domains: &[Native]) -> Result<(), Failure> {
        for domain in rules::read(into).domains {
            if domains.iter().all(|native| *native.domain != *domain.name()) {
                continue;
            }
            let file = |position: &rules::Position| {
                Path::new(&*position.file).file_name()?.to_str().map(str::to_owned)
            };
            let besides = domain
                .rules()
                .iter()
                .find(|rule| file(&rule.position).is_none_or(|name| !self.0.contains_key(&name)));
            if let Some(rule) = besides {
                let (file, domain) = (rule.position.file.to_string(), domain.name().to_owned());
                return Err(Failure::Besides { file, domain });
            }
        }
        Ok(())
    }
}

/// Puts back what was there before. It is tried: there is nobody left to tell of a second failure.
fn undo(done: &[(PathBuf, Option<Vec<u8>>)]) {
    for (path, was) in done {
        let _ = match was {
            Some(bytes) => fs::write(path, bytes),
            None => fs::remove_file(path),
        };
    }
}

/// A name for the file of a domain, whose name may hold what is awkward in one, that no other file has.
fn free_name(domain: &str, kind: &str, taken: &BTreeMap<String, String>) -> String {
    let plain = |character: char| {
        if character.is_alphanumeric() || "-_.".contains(character) { character } else { '_' }
    };
    let mut stem: String = domain.chars().map(plain).collect();
    if stem.starts_with('.') {
        // It would not be read.
        stem.insert(0, '_');
    }
    let mut name = format!("{stem}.{kind}.yaml");
    let mut number = 2;
    while taken.contains_key(&name) {
        name = format!("{stem}-{number}.{kind}.yaml");
        number += 1;
    }
    name
}

const READABLE: u32 = 0o644;
