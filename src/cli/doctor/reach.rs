//! Checks whether a user can reach a socket through every directory of its path. It evaluates mode bits only,
//! as the kernel does without access control lists.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::super::running;
use super::Finding;
use super::daemon::start_help;
use crate::terms::without_number;

/// Checks whether a user can connect to the socket, and names the obstacle.
pub(in crate::cli) fn socket(path: &Path, user: &User) -> Finding {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut above: Vec<&Path> = absolute.ancestors().skip(1).collect();
    above.reverse();
    for directory in above {
        match std::fs::metadata(directory) {
            Ok(found) if may(&found, user, SEARCH) => {}
            Ok(found) => return closed(directory, &found, user),
            Err(error) => return missing(directory, &error, &absolute),
        }
    }
    match std::fs::symlink_metadata(&absolute) {
        Err(error) => missing(&absolute, &error, &absolute),
        Ok(found) if !found.file_type().is_socket() => {
            let message = format!("{} is not a socket", absolute.display());
            let help =
                "name the daemon's socket: --socket PATH; or remove the file, and start the daemon again";
            Finding::wrong(WHAT, message, help)
        }
        // Connecting requires write permission.
        Ok(found) if may(&found, user, WRITE) => {
            let by = described(&found);
            let message = format!("{} can reach {} ({by})", user.name, absolute.display());
            if found.mode() & 0o002 != 0 {
                let help = "write mode \"0660\" and a group that the applications are in";
                return Finding::warning(WHAT, format!("{message}, and so can everybody on this host"), help);
            }
            Finding::well(WHAT, message)
        }
        Ok(found) => not_let_in(&absolute, &found, user),
    }
}

/// Checks whether the daemon's user can read the rules; returns the obstacle.
pub fn rules(path: &Path, user: &User) -> Option<Finding> {
    let mut files: Vec<_> =
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.push(path.to_owned());
    let directories = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    let needed = directories.map(|above| (above.to_owned(), SEARCH));
    let needed = needed.chain(files.into_iter().map(|file| {
        let bits = if file.is_dir() { READ | SEARCH } else { READ };
        (file, bits)
    }));
    let obstacle = needed.filter_map(|(path, bits)| Some((std::fs::metadata(&path).ok()?, path, bits)));
    let obstacle = obstacle.filter(|(found, _, bits)| !may(found, user, *bits));
    obstacle.min_by_key(|(_, path, _)| path.components().count()).map(|(found, at, _)| {
        let group = user.gids.last().map_or_else(|| user.name.clone(), |gid| group_name(*gid));
        let help =
            format!("chgrp -R {group} {0} && chmod -R g+rX {0}; then: tidegate reload", path.display());
        denied("rules", user, "read", &at, &found, help)
    })
}

/// Checks whether the daemon's user can read a file that is read at the start; returns the obstacle.
pub(super) fn file(what: &'static str, path: &Path, user: &User) -> Option<Finding> {
    let found = std::fs::metadata(path).ok().filter(|found| !may(found, user, READ))?;
    let help = format!("chown {} {}; then: systemctl restart tidegate", user.name, path.display());
    Some(denied(what, user, "read", path, &found, help))
}

/// Checks whether the daemon's user can write to its state directory; returns the obstacle.
pub(super) fn state(what: &'static str, path: &Path, user: &User) -> Option<Finding> {
    let found = std::fs::metadata(path).ok().filter(|found| !may(found, user, WRITE | SEARCH))?;
    let help = format!("chown {} {1} && chmod 0700 {1}", user.name, path.display());
    Some(denied(what, user, "write to", path, &found, help))
}

/// Reports that the daemon's user may not use a path.
fn denied(
    what: &'static str,
    user: &User,
    verb: &str,
    path: &Path,
    found: &Metadata,
    help: String,
) -> Finding {
    let (name, path, mode) = (&user.name, path.display(), described(found));
    let message = format!("the daemon runs as {name}, which cannot {verb} {path}: it has {mode}");
    Finding::wrong(what, message, help)
}

fn not_let_in(path: &Path, found: &Metadata, user: &User) -> Finding {
    let (name, group) = (&user.name, group_name(found.gid()));
    let message = format!("{name} cannot ask: {} has {}", path.display(), described(found));
    let help = if found.mode() & 0o020 == 0 {
        "let its group write: SocketMode=0660 in tidegate.socket, or socket.mode of the settings".to_owned()
    } else if found.gid() == 0 {
        // Users should not have to join the root group.
        format!(
            "give it a group of its own: groupadd --system tidegate; usermod -aG tidegate {name}; \
             SocketGroup=tidegate in tidegate.socket, or `socket: {{group: tidegate}}` in the settings \
             (tidegate serve --config FILE); restart the daemon and the processes of {name}; then: \
             tidegate doctor --as {name}"
        )
    } else {
        format!(
            "usermod -aG {group} {name}, then restart the processes of {name}: a process keeps its groups"
        )
    };
    Finding::wrong(WHAT, message, help)
}

fn closed(directory: &Path, found: &Metadata, user: &User) -> Finding {
    let (name, shown) = (&user.name, directory.display());
    let message = format!("{name} cannot look into {shown}, which has {}", described(found));
    let help = format!("chmod o+x {shown}, or put the socket elsewhere: tidegate serve --socket PATH");
    Finding::wrong(WHAT, message, help)
}

fn missing(path: &Path, error: &std::io::Error, socket: &Path) -> Finding {
    let message = format!("{}: {}", path.display(), without_number(error));
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Finding::unseen(WHAT, message, "run this as root, which sees the whole path")
        }
        _ => match daemon_of(socket) {
            Some(pid) => {
                let message = format!("{message}; process {pid} serves this path, but its file was removed");
                let help = "the daemon makes it again within seconds; else its log and `tidegate status` say why not";
                Finding::wrong(WHAT, message, help)
            }
            None => {
                let help = format!("{}; or say where its socket is: --socket PATH", start_help(socket));
                Finding::wrong(WHAT, message, help)
            }
        },
    }
}

/// Returns the process of the daemon whose command line, environment or settings name this socket.
fn daemon_of(socket: &Path) -> Option<u32> {
    let socket = std::path::absolute(socket).ok()?;
    let daemons = running::sockets(Path::new("/")).into_iter();
    daemons.filter(|(_, other)| other.as_ref() == Some(&socket)).map(|(pid, _)| pid).next()
}

fn described(found: &Metadata) -> String {
    format!("mode {:04o}, group {}", found.mode() & 0o7777, group_name(found.gid()))
}

/// Evaluates the mode bits like the kernel: only the owner's bits apply to the owner.
fn may(found: &Metadata, user: &User, bit: u32) -> bool {
    allows(found.mode(), found.uid(), found.gid(), user, bit)
}

pub fn allows(mode: u32, owner: u32, group: u32, user: &User, bit: u32) -> bool {
    if user.uid == 0 {
        return true;
    }
    let shift = match () {
        () if owner == user.uid => 6,
        () if user.gids.contains(&group) => 3,
        () => 0,
    };
    mode >> shift & bit == bit
}

const WHAT: &str = "socket";

const READ: u32 = 4;
const SEARCH: u32 = 1;
const WRITE: u32 = 2;

/// A user whose access to files is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gids: Vec<u32>,
}

impl User {
    pub(in crate::cli) fn of_this_process() -> User {
        let uid = rustix::process::geteuid().as_raw();
        let mut gids: Vec<u32> = rustix::process::getgroups()
            .map(|groups| groups.into_iter().map(rustix::process::Gid::as_raw).collect())
            .unwrap_or_default();
        gids.push(rustix::process::getegid().as_raw());
        User { name: name_in(USERS_FILE, uid), uid, gids }
    }

    /// Reads the user of a process from `/proc/PID/status`.
    pub fn of_process(status: &str) -> Option<User> {
        let numbers = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field))?;
            line.split_whitespace().map(|number| number.parse::<u32>().ok()).collect::<Option<Vec<_>>>()
        };
        // Real, effective, saved, of the file system.
        let uid = *numbers("Uid:")?.get(1)?;
        // The group of the process last.
        let gids = [numbers("Groups:")?, vec![*numbers("Gid:")?.get(1)?]].concat();
        Some(User { name: name_in(USERS_FILE, uid), uid, gids })
    }

    pub(super) fn named(name: &str) -> Result<User, Finding> {
        let [users, groups] =
            [USERS_FILE, GROUPS_FILE].map(|file| std::fs::read_to_string(file).unwrap_or_default());
        User::found(name, &users, &groups).ok_or_else(|| {
            let message = format!("there is no user `{name}` in {USERS_FILE}");
            Finding::wrong("user", message, "write a user that is there, or its number: --as 33")
        })
    }

    pub fn found(name: &str, users: &str, groups: &str) -> Option<User> {
        let number = name.parse::<u32>().ok();
        let line = users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let found = fields.next()?;
            let uid: u32 = fields.nth(1)?.parse().ok()?;
            let gid: u32 = fields.next()?.parse().ok()?;
            (found == name || Some(uid) == number).then(|| (found.to_owned(), uid, gid))
        });
        // A number needs no name.
        let (name, uid, first) = match (line, number) {
            (Some((name, uid, gid)), _) => (name, uid, Some(gid)),
            (None, Some(uid)) => (uid.to_string(), uid, None),
            (None, None) => return None,
        };
        let member_of = groups.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let is_member = fields.get(3)?.split(',').any(|member| member == name);
            is_member.then(|| fields.get(2)?.parse().ok())?
        });
        let gids = first.into_iter().chain(member_of).collect();
        Some(User { name, uid, gids })
    }
}

/// Looks up the name of a user or group in the text of its file.
pub(super) fn name_of(file: &str, number: u32) -> Option<&str> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then_some(name)
    })
}

pub(super) fn group_name(gid: u32) -> String {
    name_in(GROUPS_FILE, gid)
}

fn name_in(file: &str, number: u32) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    name_of(&text, number).map_or_else(|| number.to_string(), str::to_owned)
}

const USERS_FILE: &str = "/etc/passwd";
const GROUPS_FILE: &str = "/etc/group";
