//! Checks whether a user can reach a socket through every directory of its path. It evaluates mode bits only,
//! as the kernel does without access control lists.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::finding::DoctorFinding;
use super::user::{User, group_name};

/// Checks whether a user can connect to the socket, and names the obstacle.
pub(super) fn socket(path: &Path, user: &User) -> DoctorFinding {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut above: Vec<&Path> = absolute.ancestors().skip(1).collect();
    above.reverse();
    for directory in above {
        match std::fs::metadata(directory) {
            Ok(found) if may(&found, user, SEARCH) => {}
            Ok(found) => return closed(directory, &found, user),
            Err(error) => return missing(directory, &error),
        }
    }
    match std::fs::symlink_metadata(&absolute) {
        Err(error) => missing(&absolute, &error),
        Ok(found) if !found.file_type().is_socket() => {
            let message = format!("{} is not a socket", absolute.display());
            DoctorFinding::wrong(WHAT, message, "remove it, and start the daemon again: it makes its own")
        }
        // Connecting requires write permission.
        Ok(found) if may(&found, user, WRITE) => {
            let by = described(&found);
            let message = format!("{} can reach {} ({by})", user.name, absolute.display());
            if found.mode() & 0o002 != 0 {
                let mend = "write mode \"0660\" and a group that the applications are in";
                return DoctorFinding::warning(
                    WHAT,
                    format!("{message}, and so can everybody on this host"),
                    mend,
                );
            }
            DoctorFinding::well(WHAT, message)
        }
        Ok(found) => not_let_in(&absolute, &found, user),
    }
}

fn not_let_in(path: &Path, found: &Metadata, user: &User) -> DoctorFinding {
    let (name, group) = (&user.name, group_name(found.gid()));
    let message = format!("{name} cannot ask: {} has {}", path.display(), described(found));
    let mend = if found.mode() & 0o020 == 0 {
        "let its group write: SocketMode=0660 in tidegate.socket, or socket.mode of the settings".to_owned()
    } else if found.gid() == 0 {
        // Users should not have to join the root group.
        "give it a group of its own: groupadd --system tidegate, SocketGroup=tidegate in tidegate.socket or \
         socket.group of the settings"
            .to_owned()
    } else {
        format!("usermod -aG {group} {name}, then restart what runs as {name}: a process keeps its groups")
    };
    DoctorFinding::wrong(WHAT, message, mend)
}

fn closed(directory: &Path, found: &Metadata, user: &User) -> DoctorFinding {
    let (name, shown) = (&user.name, directory.display());
    let message = format!("{name} cannot look into {shown}, which has {}", described(found));
    DoctorFinding::wrong(WHAT, message, format!("chmod o+x {shown}, or put the socket elsewhere"))
}

fn missing(path: &Path, error: &std::io::Error) -> DoctorFinding {
    let message = format!("{}: {error}", path.display());
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            DoctorFinding::unseen(WHAT, message, "run this as root, who sees all of the way")
        }
        _ => DoctorFinding::wrong(
            WHAT,
            message,
            "start the daemon (systemctl start tidegate.socket tidegate; by hand: tidegate serve), \
             or say where its socket is: --socket PATH",
        ),
    }
}

fn described(found: &Metadata) -> String {
    format!("mode {:04o}, group {}", found.mode() & 0o7777, group_name(found.gid()))
}

/// Evaluates the mode bits like the kernel: only the owner's bits apply to the owner.
fn may(found: &Metadata, user: &User, bit: u32) -> bool {
    allows(found.mode(), found.uid(), found.gid(), user, bit)
}

fn allows(mode: u32, owner: u32, group: u32, user: &User, bit: u32) -> bool {
    if user.uid == 0 {
        return true;
    }
    let shift = match () {
        () if owner == user.uid => 6,
        () if user.gids.contains(&group) => 3,
        () => 0,
    };
    mode >> shift & bit != 0
}

const WHAT: &str = "socket";

const SEARCH: u32 = 1;
const WRITE: u32 = 2;

#[cfg(test)]
mod tests {
    use super::{SEARCH, User, WRITE, allows};

    #[test]
    fn the_bits_decide_as_in_the_kernel() {
        let user = |uid, gids: &[u32]| User { name: String::new(), uid, gids: gids.into() };
        let (root, owner, member, other) =
            (user(0, &[]), user(9, &[90]), user(33, &[33, 90]), user(34, &[34]));
        let table: &[(u32, &User, u32, bool)] = &[
            (0o660, &root, WRITE, true),
            (0o660, &owner, WRITE, true),
            (0o660, &member, WRITE, true),
            (0o660, &other, WRITE, false),
            (0o640, &member, WRITE, false),
            (0o666, &other, WRITE, true),
            (0o060, &owner, WRITE, false),
            (0o755, &other, SEARCH, true),
            (0o750, &other, SEARCH, false),
            (0o750, &member, SEARCH, true),
            (0o000, &root, SEARCH, true),
        ];
        for (mode, user, bit, expected) in table {
            assert_eq!(allows(*mode, 9, 90, user, *bit), *expected, "{mode:o} {user:?} {bit}");
        }
    }
}
