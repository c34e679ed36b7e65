//! The rules that were last good, as texts on disk: a start at which a domain's files have errors goes on with what it had.
//! Kept beside the tables, never in place of the files.

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use siphasher::sip::SipHasher13;
use tracing::{debug, info, warn};

use crate::rules::{Library, Texts};
use crate::state::write_whole;

/// Where they are kept.
#[derive(Debug)]
pub(super) struct LastGood {
    path: PathBuf,
    /// Whether it was said that they cannot be.
    is_told: bool,
}

impl LastGood {
    /// Kept in this file.
    pub(super) fn at(path: PathBuf) -> LastGood {
        LastGood { path, is_told: false }
    }

    /// What was kept; nothing where that is damaged, of another version, or cannot be read.
    pub(super) fn read(&self) -> Vec<Texts> {
        self.try_read().unwrap_or_else(|error| {
            warn!(path = %self.path.display(), "the rules that were kept cannot be read, and are not used: {error}");
            Vec::new()
        })
    }

    fn try_read(&self) -> io::Result<Vec<Texts>> {
        let mut bytes = Vec::new();
        match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?,
        };
        let texts = parse(&bytes).filter(|_| bytes.len() as u64 <= BYTES_MAX);
        Ok(texts.unwrap_or_else(|| {
            warn!(path = %self.path.display(), "the rules that were kept are damaged or another version's: not used");
            Vec::new()
        }))
    }

    /// Keeps what is in force: of each domain the texts as they stand, else what was kept of it before. False: it should be
    /// tried again.
    pub(super) fn write(&mut self, library: &Library) -> bool {
        let path = self.path.display();
        match self.try_write(library) {
            Ok(()) => {
                if std::mem::take(&mut self.is_told) {
                    info!(%path, "the rules can be kept again");
                }
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_told, true) {
                    warn!(%path, "the rules cannot be kept for a start at which their files have errors: {error}; tried again");
                }
                false
            }
        }
    }

    fn try_write(&self, library: &Library) -> io::Result<()> {
        // Read before anything is written: what cannot be read now is not to be replaced by less.
        let (standing, before) = (library.texts(), self.try_read()?);
        let of = |texts: &[Texts], name: &str| texts.iter().find(|texts| *texts.domain == *name).cloned();
        let domains = library.domains();
        let texts = domains
            .iter()
            .filter_map(|domain| of(&standing, domain.name()).or_else(|| of(&before, domain.name())));
        let texts: Vec<Texts> = texts.collect();
        if texts == before {
            return Ok(());
        }
        match written(&texts).filter(|bytes| bytes.len() as u64 <= BYTES_MAX) {
            Some(bytes) => write_whole(&self.path, &bytes)?,
            // Which no second try mends.
            None => {
                let path = self.path.display();
                warn!(%path, "the rules are too large to be kept for a start at which their files have errors");
                return Ok(());
            }
        }
        debug!(domains = texts.len(), "the rules were kept");
        Ok(())
    }
}

/// A line of what this is, with a checksum of what follows: texts as JSON.
fn written(texts: &[Texts]) -> Option<Vec<u8>> {
    let body = serde_json::to_vec(texts).ok()?;
    let mut bytes = format!("{TITLE}{:016x}\n", SipHasher13::new().hash(&body)).into_bytes();
    bytes.extend(body);
    Some(bytes)
}

fn parse(bytes: &[u8]) -> Option<Vec<Texts>> {
    let rest = bytes.strip_prefix(TITLE.as_bytes())?;
    let (checksum, rest) = rest.split_at_checked(CHECKSUM_DIGITS)?;
    let body = rest.strip_prefix(b"\n")?;
    let expected = format!("{:016x}", SipHasher13::new().hash(body));
    if checksum != expected.as_bytes() {
        return None;
    }
    serde_json::from_slice(body).ok()
}

/// With the version of what follows.
const TITLE: &str = "tidegate rules 1 ";

const CHECKSUM_DIGITS: usize = 16;

/// A hundred thousand rules and the tables beside them; more are not kept.
const BYTES_MAX: u64 = 64 << 20;
