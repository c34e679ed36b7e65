//! The kill switch without a command: while a file named `disable` exists, everything is allowed. Its owner
//! decides whether it counts; it is never opened.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tracing::warn;

#[derive(Debug)]
pub(super) struct DisableFiles {
    watched: Vec<DisableFilePath>,
    own_uid: u32,
}

#[derive(Debug)]
struct DisableFilePath {
    path: PathBuf,
    seen: DisableFileState,
}

/// The result of the last look at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DisableFileState {
    Nothing,
    Ours,
    /// A file that does not count, with the reason.
    NotOurs(&'static str),
}

impl DisableFiles {
    /// The paths beside the settings and beside the client socket.
    pub(super) fn new(socket: &Path) -> DisableFiles {
        let by_socket = socket.with_file_name(NAME);
        let watched = [PathBuf::from(SETTINGS_DIRECTORY).join(NAME), by_socket];
        DisableFiles::at(&watched, rustix::process::geteuid().as_raw())
    }

    fn at(paths: &[PathBuf], own_uid: u32) -> DisableFiles {
        let watched_file =
            |path: &PathBuf| DisableFilePath { path: path.clone(), seen: DisableFileState::Nothing };
        let mut watched: Vec<DisableFilePath> = paths.iter().map(watched_file).collect();
        watched.dedup_by(|one, other| one.path == other.path);
        DisableFiles { watched, own_uid }
    }

    /// Returns the first file that exists and counts. A file that does not count is logged once.
    pub(super) fn look(&mut self) -> Option<&Path> {
        for watched_file in &mut self.watched {
            watched_file.look(self.own_uid);
        }
        self.watched
            .iter()
            .find(|watched_file| watched_file.seen == DisableFileState::Ours)
            .map(|watched_file| watched_file.path.as_path())
    }
}

impl DisableFilePath {
    fn look(&mut self, own_uid: u32) {
        // Links are not followed, as another user may choose their target.
        let seen = match std::fs::symlink_metadata(&self.path) {
            Ok(found) => judge(&found, own_uid),
            Err(error) if is_absent(&error) => DisableFileState::Nothing,
            // Unknown: the last result stays.
            Err(_) => return,
        };
        if let DisableFileState::NotOurs(reason) = seen
            && self.seen != seen
        {
            warn!(path = %self.path.display(), reason, "this file switches nothing off");
        }
        self.seen = seen;
    }
}

fn judge(found: &std::fs::Metadata, own_uid: u32) -> DisableFileState {
    if !found.is_file() {
        DisableFileState::NotOurs("it is no regular file: `touch` one")
    } else if found.uid() != 0 && found.uid() != own_uid {
        DisableFileState::NotOurs("it belongs neither to root nor to the daemon's user: chown it")
    } else if found.nlink() != 1 {
        DisableFileState::NotOurs("it has a second name, and may be anybody's: remove it and `touch` one")
    } else {
        DisableFileState::Ours
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

const NAME: &str = "disable";

const SETTINGS_DIRECTORY: &str = "/etc/tidegate";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{DisableFileState, DisableFiles};

    #[test]
    fn ignores_file_of_another_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disable");
        let own = rustix::process::geteuid().as_raw();
        let mut files = DisableFiles::at(&[path.clone(), path.clone()], own);
        assert_eq!(files.watched.len(), 1, "one place is looked at once");
        assert_eq!(files.look(), None);
        fs::write(&path, "").unwrap();
        assert_eq!(files.look(), Some(path.as_path()));
        let other = directory.path().join("other");
        fs::hard_link(&path, &other).unwrap();
        assert_eq!(files.look(), None, "a second name");
        fs::remove_file(&path).unwrap();
        assert_eq!(files.look(), None);
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert_eq!(files.look(), None, "a link, also to a file of one's own");
        assert!(matches!(files.watched[0].seen, DisableFileState::NotOurs(_)));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(files.look(), None, "a directory");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(files.look(), Some(path.as_path()));
        let mut others = DisableFiles::at(std::slice::from_ref(&path), own + 1);
        let is_root = own == 0;
        assert_eq!(others.look().is_some(), is_root, "root's counts for everybody, another's for nobody");
    }
}
