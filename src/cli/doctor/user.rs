//! A user and its groups, from the files of this host. Users and groups of directory servers are not found.

use super::finding::DoctorFinding;

/// A user whose access to files is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gids: Vec<u32>,
}

impl User {
    pub(super) fn of_this_process() -> User {
        let uid = rustix::process::geteuid().as_raw();
        let mut gids: Vec<u32> = rustix::process::getgroups()
            .map(|groups| groups.into_iter().map(rustix::process::Gid::as_raw).collect())
            .unwrap_or_default();
        gids.push(rustix::process::getegid().as_raw());
        let users = std::fs::read_to_string(USERS_FILE).unwrap_or_default();
        let name = name_of(&users, uid).map_or_else(|| uid.to_string(), str::to_owned);
        User { name, uid, gids }
    }

    /// Looks up a user by name or number.
    pub(super) fn named(name: &str) -> Result<User, DoctorFinding> {
        let [users, groups] =
            [USERS_FILE, GROUPS_FILE].map(|file| std::fs::read_to_string(file).unwrap_or_default());
        User::found(name, &users, &groups).ok_or_else(|| {
            let message = format!("there is no user `{name}` in {USERS_FILE}");
            DoctorFinding::wrong("user", message, "write a user that is there, or its number: --as 33")
        })
    }

    fn found(name: &str, users: &str, groups: &str) -> Option<User> {
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
    let groups = std::fs::read_to_string(GROUPS_FILE).unwrap_or_default();
    name_of(&groups, gid).map_or_else(|| gid.to_string(), str::to_owned)
}

const USERS_FILE: &str = "/etc/passwd";
const GROUPS_FILE: &str = "/etc/group";

#[cfg(test)]
mod tests {
    use super::{User, name_of};

    #[test]
    fn users_and_their_groups_are_found() {
        let users = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:33::/:/bin/false\nbroken\n";
        let groups = "root:x:0:\nweb:x:33:\ntidegate:x:900:web,other\nlimits:x:901:other\n";
        let user = |name: &str, uid, gids: &[u32]| Some(User { name: name.into(), uid, gids: gids.into() });
        let table = [
            ("web", user("web", 33, &[33, 900])),
            ("33", user("web", 33, &[33, 900])),
            ("root", user("root", 0, &[0])),
            ("4711", user("4711", 4711, &[])),
            ("nobody", None),
            ("broken", None),
        ];
        for (name, expected) in table {
            assert_eq!(User::found(name, users, groups), expected, "{name}");
        }
        assert_eq!(name_of(groups, 900), Some("tidegate"));
        assert_eq!(name_of(groups, 902), None);
    }
}
