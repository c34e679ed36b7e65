//! Finds files that steer the daemon and that users besides root and the daemon's own may change: the state directory,
//! the settings, the rules, the secrets, and the directories of the sockets; and secrets that every user may read.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use tracing::warn;

use super::settings::Settings;

/// A file or directory that another user may change, or a secret that every user may read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExposedFile {
    pub(crate) path: PathBuf,
    owner: u32,
    mode: u32,
    pub(crate) message: String,
    pub(crate) help: String,
}

/// Warns of other writers of this daemon's state directory.
pub(super) fn warn_of_state(directory: &Path) {
    log(of_state(directory, Some(rustix::process::geteuid().as_raw())));
}

/// Warns of other writers of the settings file, and of the files and directories that the settings name.
pub(super) fn warn_of_settings(file: Option<&Path>, settings: &Settings) {
    log(of_settings(file, settings, Some(rustix::process::geteuid().as_raw())));
}

fn log(foreign: Vec<ExposedFile>) {
    for ExposedFile { path, owner, mode, message, help } in foreign {
        let (path, mode) = (path.display(), format!("{mode:04o}"));
        warn!(%path, owner, mode, "{message}; help: {help}");
    }
}

/// Checks the state directory of a daemon of the user `uid` (`None`: unknown, so that owners are not checked), and its
/// files.
pub(crate) fn of_state(directory: &Path, uid: Option<u32>) -> Vec<ExposedFile> {
    let is_trusted = |owner: u32| uid.is_none_or(|uid| [0, uid].contains(&owner));
    let Ok(found) = directory.metadata() else { return Vec::new() };
    let shown = directory.display();
    let help = match uid.filter(|_| !is_trusted(found.uid())) {
        Some(uid) => format!("chown -R {uid} {shown} && chmod 0700 {shown}"),
        None => format!("chmod 0700 {shown}"),
    };
    let message = |whose| format!("{whose} may replace the files of the state directory");
    let whose = other_writer(&found, 0o022, is_trusted);
    let foreign = whose.map(|whose| foreign(directory, &found, message(whose), help));
    let help = "remove it, or give it to the daemon's user; another user's is not read";
    let files = entries(directory).filter_map(|file| changeable(&file, 0o022, is_trusted, help));
    foreign.into_iter().chain(files).collect()
}

/// Checks the settings file, and the rules, the secrets and the directories of sockets that the settings name.
pub(crate) fn of_settings(file: Option<&Path>, settings: &Settings, uid: Option<u32>) -> Vec<ExposedFile> {
    let is_trusted = |owner: u32| uid.is_none_or(|uid| [0, uid].contains(&owner));
    let redis = settings.redis.as_ref();
    let password = redis.and_then(|redis| redis.link.password_file.as_deref());
    let secret = redis.and_then(|redis| redis.fleet_secret_file.as_deref());
    let tokens = settings.adapters.iter().filter(|(_, endpoint)| endpoint.listen.is_some());
    let tokens = tokens.map(|(_, endpoint)| &*endpoint.token_file);
    let passwords: Vec<&Path> = password.into_iter().chain(tokens).collect();
    let named = file.into_iter().chain(secret).chain(passwords.iter().copied());
    let mut foreign: Vec<_> = named.filter_map(|path| changeable(path, 0o002, is_trusted, OWN)).collect();
    foreign.extend(passwords.iter().filter_map(|path| readable(path)));
    // Rules may belong to the user that deploys them, and be writable by the group of their authors.
    let directory = if settings.rules.is_dir() { Some(&*settings.rules) } else { settings.rules.parent() };
    let deployer = directory.and_then(|directory| directory.metadata().ok()).map(|found| found.uid());
    let is_trusted = |owner| is_trusted(owner) || deployer == Some(owner);
    let rules = std::iter::once(settings.rules.clone()).chain(entries(&settings.rules));
    foreign.extend(rules.filter_map(|path| changeable(&path, 0o002, is_trusted, OWN)));
    foreign.extend(of_sockets(settings, uid));
    foreign
}

/// Checks the directories of the sockets, where the `disable` file is looked for, too.
fn of_sockets(settings: &Settings, uid: Option<u32>) -> impl Iterator<Item = ExposedFile> {
    let adapters = settings.adapters.iter().filter_map(|(_, endpoint)| endpoint.socket.clone());
    let sockets = [settings.socket.path.clone(), settings.admin_socket()].into_iter().chain(adapters);
    let directories = sockets.filter_map(|socket| Some(socket.parent()?.to_owned()));
    directories.collect::<BTreeSet<_>>().into_iter().filter_map(move |directory| {
        let found = directory.metadata().ok()?;
        // With the sticky bit only its owner replaces a file.
        let bits = if found.mode() & 0o1000 == 0 { 0o022 } else { 0 };
        let whose = other_writer(&found, bits, |owner| uid.is_none_or(|uid| [0, uid].contains(&owner)))?;
        let message = format!("{whose} may replace the sockets, and so switch limits off");
        Some(foreign(&directory, &found, message, OWN.to_owned()))
    })
}

/// Returns the users that may write, by one of these bits in the mode, or as an owner that is not trusted.
fn other_writer(found: &Metadata, bits: u32, is_trusted: impl Fn(u32) -> bool) -> Option<String> {
    match found.mode() & bits {
        bits if bits & 0o002 != 0 => Some("every user".to_owned()),
        0 => (!is_trusted(found.uid())).then(|| format!("the user {}", found.uid())),
        _ => Some(format!("the group {}", found.gid())),
    }
}

fn changeable(path: &Path, bits: u32, is_trusted: impl Fn(u32) -> bool, help: &str) -> Option<ExposedFile> {
    let found = path.metadata().ok()?;
    let whose = other_writer(&found, bits, is_trusted)?;
    // A mounted config map is: its directory has mode 0777.
    let is_read_only = statvfs(path).is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::RDONLY));
    if is_read_only {
        return None;
    }
    Some(foreign(path, &found, format!("{whose} may change it"), help.to_owned()))
}

/// Returns a password or token that every user may read. The fleet secret is checked where it is read.
fn readable(path: &Path) -> Option<ExposedFile> {
    let found = path.metadata().ok().filter(|found| found.mode() & 0o004 != 0)?;
    let help = format!("chmod 0600 {}", path.display());
    Some(foreign(path, &found, "every user may read it".to_owned(), help))
}

fn foreign(path: &Path, found: &Metadata, message: String, help: String) -> ExposedFile {
    ExposedFile { path: path.to_owned(), owner: found.uid(), mode: found.mode() & 0o7777, message, help }
}

/// Lists the files of a directory, except hidden ones; empty if it is none.
fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = directory.read_dir().into_iter().flatten().flatten().take(ENTRIES_MAX);
    let visible = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    visible.map(|entry| entry.path()).filter(|path| path.is_file())
}

const OWN: &str = "let root or the daemon's user own it, and no other user write it: chown, chmod go-w";

/// More files of one directory are not looked at.
const ENTRIES_MAX: usize = 1_000;
