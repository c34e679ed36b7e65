//! The files of a domain as texts, as they were when they were last good: to be read again when the files are not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Domain;
use super::source::{Source, Table};

/// The texts that one domain was read from.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Texts {
    /// The domain.
    pub domain: Box<str>,
    /// Its rules files, in their order: the name under which problems are told, and the text.
    pub files: Vec<(String, String)>,
    /// The tables that its rules name.
    pub tables: Vec<(String, String)>,
}

impl Texts {
    /// Reads the files that a domain is made of. `None`: one of them cannot be read any more.
    pub(super) fn of<'f>(domain: &Domain, files: impl Iterator<Item = &'f str>) -> Option<Texts> {
        let mut files: Vec<&str> = files.collect();
        files.sort_unstable();
        let read = |path: &Path| Source::read(path).ok().map(|source| source.text().to_owned());
        let tables: BTreeSet<(PathBuf, &str)> = domain
            .rules()
            .iter()
            .filter_map(|rule| {
                let table = rule.overrides.as_ref()?.file.as_deref()?;
                Some((Path::new(&*rule.position.file).with_file_name(table), table))
            })
            .collect();
        Some(Texts {
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

    /// The rules files, each with all tables beside it.
    pub(super) fn sources(&self) -> impl Iterator<Item = Source> + '_ {
        let tables: std::sync::Arc<[Table]> = self.tables.clone().into();
        self.files
            .iter()
            .map(move |(file, text)| Source::kept(file, text.clone(), std::sync::Arc::clone(&tables)))
    }
}
