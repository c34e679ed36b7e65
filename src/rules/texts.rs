//! Saved texts of a domain as last valid, for a start with invalid files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Domain;
use super::source::{NamedTable, Source};

/// The texts of one domain.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainTexts {
    /// The domain.
    pub domain: Box<str>,
    /// Its rules files, sorted: the name in problems, and the text.
    pub files: Vec<(String, String)>,
    /// The tables that its rules name, with their texts.
    pub tables: Vec<(String, String)>,
}

impl DomainTexts {
    /// Reads the files of a domain; `None` if one of them is no longer readable.
    pub(super) fn of<'f>(domain: &Domain, files: impl Iterator<Item = &'f str>) -> Option<DomainTexts> {
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
        let tables: std::sync::Arc<[NamedTable]> = self.tables.clone().into();
        self.files
            .iter()
            .map(move |(file, text)| Source::kept(file, text.clone(), std::sync::Arc::clone(&tables)))
    }
}
