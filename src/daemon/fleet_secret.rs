//! The fleet secret: bytes that only the hosts of a fleet share, so that all derive the same keys for the
//! same callers and no other party can identify a caller by its key.

use std::fmt;
use std::fs::{Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::redis_settings::how_to_make;
use crate::rules::source::about_file;
use crate::rules::{Problem, Severity, ValueProblem};

/// The bytes of one file. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetSecret(Box<[u8]>);

impl FleetSecret {
    /// Returns the bytes to derive keys from, at least 32.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for FleetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetSecret(…)")
    }
}

/// Reads the file. A daemon without the secret starts all the same and limits on its own host.
#[must_use]
pub fn fleet_secret(path: &Path) -> (Option<FleetSecret>, Option<Problem>) {
    match read(path) {
        Ok((secret, doubt)) => (Some(secret), doubt.map(|wrong| warning(path, wrong))),
        Err(wrong) => (None, Some(about_file(path, wrong))),
    }
}

fn read(path: &Path) -> Result<(FleetSecret, Option<ValueProblem>), ValueProblem> {
    let unreadable = |error: std::io::Error| {
        let help = match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{}, the same on every host", how_to_make(&path.to_string_lossy()))
            }
            _ => "let the daemon's user read it".to_owned(),
        };
        ValueProblem::new(format!("cannot read the fleet secret: {error}"), help)
    };
    // Opening a named pipe does not wait; it reads as empty.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let mut bytes = Vec::new();
    // A device never ends.
    file.by_ref().take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let make = || format!("{}, the same on every host", how_to_make(&path.to_string_lossy()));
    match bytes.len() as u64 {
        few @ 0..BYTES_MIN => Err(ValueProblem::new(
            format!("a fleet secret of {few} bytes can be guessed: at least {BYTES_MIN}"),
            make(),
        )),
        many if many > BYTES_MAX => {
            Err(ValueProblem::new(format!("a fleet secret of more than {BYTES_MAX} bytes"), make()))
        }
        _ => Ok((FleetSecret(bytes.into()), open_to_others(path, &metadata))),
    }
}

/// Warns of a file that others can read or its group can write: the group may be the daemon's own.
fn open_to_others(path: &Path, metadata: &Metadata) -> Option<ValueProblem> {
    let mode = metadata.mode() & 0o7777;
    let message = format!("the fleet secret has mode {mode:04o}: others can read or change it");
    (mode & 0o027 != 0).then(|| ValueProblem::new(message, format!("chmod 0600 {}", path.display())))
}

fn warning(path: &Path, wrong: ValueProblem) -> Problem {
    Problem { severity: Severity::Warning, ..about_file(path, wrong) }
}

/// Twice the bits of the digest.
const BYTES_MIN: u64 = 32;

/// A page; anything larger is a wrong file.
const BYTES_MAX: u64 = 4_096;
